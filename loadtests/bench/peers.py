"""The gateways that we compare with, each in a virtual environment of its own."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# 130 MB each; a slow line takes a minute or two.
_INSTALL_DEADLINE_S: Final = 600.0


class PeerMissing(Exception):
    """A peer cannot be installed here: one line with the reason."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One released gateway.

    Attributes:
        package: Name on the package index; its command has the same one.
        version: The one that our figures are about.
        arguments: For its command, before the addresses.
    """

    package: str
    version: str
    arguments: Sequence[str]

    def install(self, folder: Path) -> Path:
        """Return its command, installed into `folder/<package>` unless it is there already.

        Raises:
            PeerMissing: pip failed: no network, no wheel for this machine.
        """
        home = folder / self.package
        stamp = home / ".installed"  # written last, so half an installation is made anew
        if not stamp.is_file() or stamp.read_text("utf-8") != self.version:
            _run([sys.executable, "-m", "venv", "--clear", str(home)])
            requirement = f"{self.package}=={self.version}"
            _run([str(home / "bin" / "python"), "-m", "pip", "install", "-qq", requirement])
            stamp.write_text(self.version, "utf-8")
        return home / "bin" / self.package

    def argv(
        self, command: Path, port: int, metrics_port: int, replicas: Sequence[str]
    ) -> list[str]:
        """Return how it is started in front of some replicas."""
        where = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port)]
        return [str(command), *self.arguments, *where, "--worker-urls", *replicas]


VLLM_ROUTER: Final = Peer(
    "vllm-router", "0.1.17", ("--policy", "round_robin", "--log-level", "warning")
)
# Its default policy: an approximate tree of the prompts' text.
SGLANG_ROUTER: Final = Peer(
    "sglang-router", "0.3.2", ("launch", "--policy", "cache_aware", "--log-level", "warn")
)


def _run(argv: Sequence[str]) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments, no shell
            argv, capture_output=True, text=True, check=False, timeout=_INSTALL_DEADLINE_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissing(f"cannot be installed: {type(error).__name__}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["pip failed"]
        raise PeerMissing(f"cannot be installed: {errors[-1]}")

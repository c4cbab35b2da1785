"""The Makefile: what it lists, and what it does on machines that lack something."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = sorted(
    target
    for line in re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    for target in line.split()
    if target != "FORCE"
)

# Stand-ins for what a machine may call python3; they answer the Makefile's questions as it would.
SHIM_THAT_FAILS = "#!/bin/sh\necho 'no such version' >&2\nexit 127\n"
TOO_OLD = '#!/bin/sh\ncase "$2" in *print*) echo 3.9 ;; esac\nexit 1\n'
WITHOUT_VENV = '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1 ;; *) echo 3.12 ;; esac\n'
WHOLE = "#!/bin/sh\nexit 0\n"


def make(
    *arguments: str, cwd: Path = ROOT, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    if path is not None:
        environment["PATH"] = path
    return subprocess.run(
        [shutil.which("make") or "make", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(autouse=True)
def _needs_make(require) -> None:
    require("make", shutil.which("make") is not None, "apt-get install make")


def test_help_lists_every_target_with_a_line():
    listed = dict(re.findall(r"^  make (\S+) +(\S.*)$", make("help").stdout, re.MULTILINE))
    assert sorted(listed) == TARGETS


def test_plain_make_is_help():
    assert make().stdout == make("help").stdout


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_can_be_planned(target: str):
    planned = make("-n", target)
    assert planned.returncode == 0, planned.stderr


def test_the_demo_passes_its_options_on():
    assert make("-n", "demo").stdout.strip().endswith("-m loadtests.demo")
    planned = make("-n", "demo", "ONCE=1", "TRACE=a folder").stdout.strip()
    assert planned.endswith('-m loadtests.demo --once --trace "a folder"')
    planned = make("-n", "demo", "WORKERS=2").stdout.strip()
    assert planned.endswith('-m loadtests.demo --workers "2"')


def test_a_second_setup_takes_under_five_seconds(require):
    stamp = ROOT / ".venv/.set-up"
    inputs = [ROOT / "requirements-dev.lock", ROOT / "pyproject.toml"]
    fresh = stamp.is_file() and stamp.stat().st_mtime >= max(f.stat().st_mtime for f in inputs)
    require("a finished set-up", fresh, "make setup")
    started = time.monotonic()
    second = make("setup")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert time.monotonic() - started < 5.0


@pytest.mark.parametrize(
    ("stamp", "plans_a_new_one"),
    [
        # Interrupted: the stamp is written last.
        (None, True),
        # The tree was moved or copied, and scripts in .venv name the old place.
        ("/somewhere/else", True),
        ("HERE", False),
    ],
)
def test_a_venv_that_cannot_be_trusted_is_made_anew(
    tmp_path: Path, stamp: str | None, plans_a_new_one: bool
):
    locks = ("requirements-dev.lock", "requirements-helm.lock")
    for name in ("Makefile", "pyproject.toml", *locks):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    if stamp is not None:
        (tmp_path / ".venv/.locked").write_text(stamp.replace("HERE", str(tmp_path)))
    plan = make("-n", "setup", cwd=tmp_path).stdout
    assert ("-m venv --clear .venv" in plan) == plans_a_new_one


@pytest.mark.parametrize(
    ("interpreters", "says"),
    [
        ({}, "Debian, Ubuntu: apt-get install python3.11 python3.11-venv"),
        ({"python3": TOO_OLD, "python3.12": SHIM_THAT_FAILS}, "Python 3.11 or newer is missing."),
        ({"python3.12": WITHOUT_VENV}, "apt-get install python3.12-venv"),
    ],
)
def test_a_missing_python_is_named_with_its_package(
    tmp_path: Path, interpreters: dict[str, str], says: str
):
    write_programs(tmp_path, interpreters)
    result = make("--silent", "python", path=str(tmp_path))
    assert result.returncode != 0
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_a_python_that_lacks_something_does_not_hide_a_whole_one(tmp_path: Path):
    write_programs(
        tmp_path, {"python3.11": WITHOUT_VENV, "python3.12": SHIM_THAT_FAILS, "python3": WHOLE}
    )
    assert make("--silent", "python", path=str(tmp_path)).stdout == "python3\n"


def write_programs(folder: Path, programs: dict[str, str]) -> None:
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

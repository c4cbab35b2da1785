"""What a worker is told when it starts."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import SecretStr

from gateway.config.models import GatewayConfig


@dataclass(frozen=True, slots=True)
class Post:
    """What a worker is told by its supervisor, through its standard input.

    Attributes:
        number: From 0; log lines carry it.
        supervisor: Its process id.
        config: As the file says.
        file: Where that came from, to load it again; None where it came from flags.
        family: Of `address`.
        address: Of the public listener, which all workers share.
        admin_path: Unix socket of its admin API; the supervisor alone asks there.
        index_url: Of the embedded server that stands in for `index.backend: memory`; else None.
        late: Whether clients' connections wait until it can serve them, as others do so meanwhile.
        started_fd: File descriptor that gets one byte when all is built.
    """

    number: int
    supervisor: int
    config: GatewayConfig
    file: Path | None
    family: int
    address: Any
    admin_path: str
    index_url: str | None
    late: bool = False
    started_fd: int = -1

    def adapt(self, said: GatewayConfig) -> GatewayConfig:
        """Return the configuration to run of what the file says."""
        if self.index_url is None:
            return said
        shared = {"backend": "redis", "url": SecretStr(self.index_url)}
        return said.model_copy(update={"index": said.index.model_copy(update=shared)})

    def packed(self) -> bytes:
        """Return it as bytes, for `unpack`."""
        return pickle.dumps(self)


def unpack(source: BinaryIO) -> Post:
    """Read what a supervisor of the same version wrote."""
    post = pickle.load(source)  # noqa: S301 - a pipe from our own parent
    if not isinstance(post, Post):
        raise TypeError(f"a post was expected, not {type(post).__name__}")
    return post

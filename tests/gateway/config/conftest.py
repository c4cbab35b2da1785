from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from gateway.config import ConfigError, GatewayConfig, load_config

Load = Callable[..., GatewayConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads YAML text, as the file gateway.yaml."""

    def load(text: str, environ: Mapping[str, str] | None = None) -> GatewayConfig:
        file = tmp_path / "gateway.yaml"
        file.write_text(dedent(text), encoding="utf-8")
        return load_config(file, environ or {})

    return load


@pytest.fixture
def problems(load: Load, tmp_path: Path) -> Callable[..., list[str]]:
    """Loads YAML text that must be refused; returns the lines of the message, without folder."""

    def problems(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(text, environ)
        return str(caught.value).replace(f"{tmp_path}/", "").splitlines()

    return problems

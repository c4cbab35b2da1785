"""Configuration: what the keys are, how a file becomes a `GatewayConfig`, and what is told."""

from gateway.config.check import check_file
from gateway.config.describe import configuration_markdown
from gateway.config.errors import ConfigError
from gateway.config.load import config_from_flags, load_config
from gateway.config.models import GatewayConfig

__all__ = [
    "ConfigError",
    "GatewayConfig",
    "check_file",
    "config_from_flags",
    "configuration_markdown",
    "load_config",
]

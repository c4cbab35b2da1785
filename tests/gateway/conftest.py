"""The shared fixtures: scripted replicas and gateways that end with the test."""

from tests.support.fixtures import chat, engines, gateways, replicas
from tests.support.live import live

__all__ = ["chat", "engines", "gateways", "live", "replicas"]

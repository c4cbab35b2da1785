"""The shared fixtures: scripted replicas and gateways that end with the test."""

from tests.support.fixtures import chat, engines, gateways, replicas

__all__ = ["chat", "engines", "gateways", "replicas"]

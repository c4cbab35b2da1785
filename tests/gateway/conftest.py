"""The shared fixtures: scripted replicas and gateways that end with the test."""

from tests.support.fixtures import chat, gateways, replicas

__all__ = ["chat", "gateways", "replicas"]

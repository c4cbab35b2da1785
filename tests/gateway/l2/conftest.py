"""Fixtures: gateways in step with engines that publish."""

from tests.support.event_fleets import fleet, publishers

__all__ = ["fleet", "publishers"]

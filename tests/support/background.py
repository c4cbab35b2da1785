"""A `Background` of no gateway."""

import logging

from gateway.background import Background
from gateway.observability.logging import EventLog
from gateway.observability.metrics import Metrics


def some_background(log=None) -> Background:
    return Background(log or EventLog(logging.getLogger("test.background")), Metrics().background)

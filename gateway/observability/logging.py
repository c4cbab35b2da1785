"""Logs: one JSON object a line on stdout. Never prompt text, keys or tokens."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

LOGGER = "warmroute"


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, event, and the record's `fields`.

    Args:
        always: Fields of every line.
    """

    def __init__(self, always: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._always = dict(always or {})

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= self._always | getattr(record, "fields", {})
        if record.exc_info and record.exc_info[1] is not None:
            line |= crash_fields(record.exc_info[1])
        return json.dumps(line, ensure_ascii=False, default=str)


def crash_fields(error: BaseException) -> dict[str, Any]:
    """Return what a log may say of an exception: all but its text, which may quote a prompt or key.

    Args:
        error: Of a group, its first one is told.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return {
        "error": type(error).__name__,
        "errno": getattr(error, "errno", None),
        "traceback": "".join(traceback.format_tb(error.__traceback__)),
    }


class EventLog:
    """Writes named events with fields.

    Args:
        logger: Where they go.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def set_level(self, level: str) -> None:
        """Write this level and more severe ones: debug, info, warning or error."""
        self._logger.setLevel(level.upper())

    def info(self, event: str, **fields: Any) -> None:
        """Something that happens in a good day."""
        self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, **fields: Any) -> None:
        """Something that costs quality: a replica is ejected, a tokenizer is missing."""
        self._logger.warning(event, extra={"fields": fields})

    def error(self, event: str, **fields: Any) -> None:
        """Something that an operator has to mend."""
        self._logger.error(event, extra={"fields": fields})

    def exception(self, event: str, **fields: Any) -> None:
        """A bug: with what `crash_fields` says of the exception being handled."""
        self._logger.error(event, exc_info=True, extra={"fields": fields})  # noqa: LOG014 - callers handle one


def _is_news(record: logging.LogRecord) -> bool:
    # How we cut a broken answer short, so that its length is seen to be wrong, and how a request
    # ends whose client left before it got anything; our own line about the request says it better.
    return not record.getMessage().startswith("ASGI callable returned without ")


def configure(level: str, always: Mapping[str, Any] | None = None) -> EventLog:
    """Send our log and uvicorn's to stdout as JSON lines.

    Args:
        level: debug, info, warning or error.
        always: Fields of every line.
    """
    handler: logging.Handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter(always))
    handler.addFilter(_is_news)
    # uvicorn's own news (started, shutting down) repeats ours; its warnings are worth having.
    for name, at_least in ((LOGGER, level.upper()), ("uvicorn", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(at_least)
        logger.propagate = False
    return EventLog(logging.getLogger(LOGGER))

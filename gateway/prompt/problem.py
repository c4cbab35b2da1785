"""Why a prompt's token ids cannot be known."""

from __future__ import annotations

REFUSED = "refused"
"""Reason of bodies that the engine will answer with an error."""


class PromptProblem(Exception):
    """This prompt's token ids cannot be known here; `reason` says why, in one word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

"""What can go wrong with a call to Redis. Callers see these and no others.

LinkError           reason
+-- LinkDown        not sent, or the connection broke: there is nobody to ask now
+-- LinkTimeout     no reply within the call's deadline; it may have run
+-- CallRefused     the server answered with an error
"""

from __future__ import annotations


class LinkError(Exception):
    """A call that has no reply.

    Attributes:
        reason: One of few words; also the metrics label.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class LinkDown(LinkError):
    """The call was not sent, or its connection broke."""


class LinkTimeout(LinkError):
    """No reply came within the call's deadline."""

    def __init__(self) -> None:
        super().__init__("timeout")


class CallRefused(LinkError):
    """The server answered with an error.

    Attributes:
        code: Its first word: READONLY, OOM, NOPERM, ERR.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code.lower(), message)
        self.code = code

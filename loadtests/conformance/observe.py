"""Asks through the gateway, and compares what it foresaw with what the engine had cached."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from loadtests.children import ChildError, Children, wait_until
from loadtests.conformance.cases import CHAT
from loadtests.conformance.traffic import MODEL, Conversation
from loadtests.measurement import MeasurementError
from loadtests.programs import start_gateway

_TIMEOUT_S: Final = 120.0
# An engine hands a step's events to its publisher's thread while the answer goes out, so they may
# come some milliseconds after it, on busy cores some tens. What comes later than this is missing.
_EVENTS_LATE_S: Final = 0.3
# Probes come every second or so, after an ejection later and later.
READY_DEADLINE_S: Final = 60.0


class NotAnswered(MeasurementError):
    """A request was refused or failed: one line."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One request.

    Attributes:
        stage: The part of the program.
        name: Of the conversation or document.
        replica: That answered.
        prompt_tokens: By the engine's count.
        foreseen_tokens: By the gateway's count.
        predicted: Tokens that the gateway expected to be cached.
        confirmed: The part of them that events told of, just before.
        actual: Tokens that the engine had cached.
        cause: Why the two differ; empty where they do not.
    """

    stage: str
    name: str
    replica: str
    prompt_tokens: int
    foreseen_tokens: int
    predicted: int
    confirmed: int
    actual: int
    cause: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the gateway foresaw what was cached."""
        return self.predicted == self.actual


class Observer:
    """Sends requests one after the other.

    Args:
        url: The gateway's public listener.
        admin_url: Its admin listener.

    Attributes:
        url: As given.
    """

    def __init__(self, url: str, admin_url: str) -> None:
        self.url = url
        self._admin_url = admin_url
        self._last_ended_by_replica: dict[str, float] = {}

    def converse(self, stage: str, conversation: Conversation) -> Seen:
        """Ask a conversation's next request."""
        body = conversation.body()
        seen, answer = self._ask(stage, conversation.name, conversation.path, body)
        choice = answer["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        conversation.answered(text or "", choice["token_ids"])
        return seen

    def ask(self, stage: str, name: str, path: str, body: Mapping[str, Any]) -> Seen:
        """Ask a request that stands alone."""
        return self._ask(stage, name, path, body)[0]

    def admin(self, method: str, path: str) -> Any:
        """Return what the admin listener answers, decoded."""
        return json.loads(_fetch(f"{self._admin_url}{path}", method, b"")[1])

    def explain(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return where a request would go now, and why."""
        query = urllib.parse.urlencode({"path": path})
        data = json.dumps(body).encode()
        return json.loads(_fetch(f"{self._admin_url}/admin/explain?{query}", "POST", data)[1])

    def metrics(self) -> str:
        """Return the gateway's metrics."""
        return _fetch(f"{self._admin_url}/metrics", "GET", None)[1].decode()

    def replica(self, name: str) -> Mapping[str, Any]:
        """Return what the gateway says of a replica."""
        told: Mapping[str, Any] = self.admin("GET", f"/admin/replicas/{name}")
        return told

    def only(self, name: str, names: Iterable[str]) -> None:
        """Let one replica have all new requests.

        Args:
            name: Of that one.
            names: Of all.

        Raises:
            ChildError: It is not ready in time.
        """
        for other in names:
            verb = "uncordon" if other == name else "cordon"
            self.admin("POST", f"/admin/replicas/{other}/{verb}")
        self.wait_state(name, "ready")

    def wait_state(self, name: str, state: str) -> None:
        """Wait until the gateway says that a replica is in this state.

        Raises:
            ChildError: It is not in time.
        """
        if not wait_until(lambda: self.replica(name)["state"] == state, READY_DEADLINE_S):
            raise ChildError(f"replica {name} is {self.replica(name)['state']}, not {state}")

    def wait_precise(self) -> None:
        """Wait until decisions are based on token ids and events.

        Raises:
            ChildError: They are not in time.
        """
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}

        def is_precise() -> bool:
            with suppress(NotAnswered):
                return bool(self.explain(CHAT, chat)["rung"] == "precise")
            return False

        if not wait_until(is_precise, READY_DEADLINE_S):
            raise ChildError("the gateway has no token ids or no events")

    def _ask(
        self, stage: str, name: str, path: str, body: Mapping[str, Any]
    ) -> tuple[Seen, dict[str, Any]]:
        data = json.dumps(body).encode()
        told = self.explain(path, body)
        began = time.monotonic()
        headers, content = _fetch(f"{self.url}{path}", "POST", data)
        answer = json.loads(content)
        replica = headers["x-warmroute-replica"]
        since_s = began - self._last_ended_by_replica.get(replica, 0.0)
        self._last_ended_by_replica[replica] = time.monotonic()
        usage = answer["usage"]
        details = usage.get("prompt_tokens_details") or {}
        confirmed = {c["replica"]: c["matched_tokens"]["confirmed_L0"] for c in told["candidates"]}
        predicted = int(headers["x-warmroute-matched-tokens"])
        actual = details.get("cached_tokens") or 0
        seen = Seen(
            stage=stage,
            name=name,
            replica=replica,
            prompt_tokens=usage["prompt_tokens"],
            foreseen_tokens=told["num_prompt_tokens"],
            predicted=predicted,
            confirmed=confirmed.get(replica, 0),
            actual=actual,
            cause=cause(predicted, confirmed.get(replica, 0), actual, since_s),
        )
        return seen, answer


def observed_gateway(
    children: Children, config: Mapping[str, Any], names: Iterable[str]
) -> Observer:
    """Start a gateway, and return when it decides by token ids and events of all replicas.

    Args:
        children: Ends it.
        config: Its own.
        names: Of the replicas.

    Raises:
        ChildError: It did not start, or does not see the replicas in time.
    """
    ready = start_gateway(children, "gateway", config).wait_ready()
    observer = Observer(ready["url"], ready["admin_url"])
    for name in names:
        observer.wait_state(name, "ready")
    observer.wait_precise()
    return observer


def cause(predicted: int, confirmed: int, actual: int, since_s: float) -> str:
    """Return why a prediction differs from what was cached.

    Args:
        predicted: Tokens, from events and from the gateway's own routing.
        confirmed: Tokens, from events alone.
        actual: Tokens that the engine had.
        since_s: Seconds from the end of the replica's last request to the start of this one.
    """
    if predicted == actual:
        return ""
    if predicted > confirmed and actual == confirmed:
        return "routed there, and not stored"
    if predicted < actual and since_s < _EVENTS_LATE_S:
        return "events on their way"
    return "unknown"


def longest_wrong_run(seen: Sequence[Seen]) -> int:
    """Return how many requests in a row were foreseen wrongly, at most."""
    longest = run = 0
    for request in seen:
        run = 0 if request.is_right else run + 1
        longest = max(longest, run)
    return longest


def _fetch(url: str, method: str, data: bytes | None) -> tuple[Mapping[str, str], bytes]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - our child
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return dict(answer.headers.items()), answer.read()
    except urllib.error.HTTPError as error:
        said = error.read()[:300].decode(errors="replace")
        raise NotAnswered(f"{method} {url}: {error.code} {said}") from None
    except OSError as error:
        raise NotAnswered(f"{method} {url}: {error}") from None

"""vLLM's arguments in a container: what is there, and what the gateway and the pool need. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.patch.settings import URL_NAME, CannotPatch, Settings
from routing.value import value

EVENTS = "--kv-events-config"
DETAILS = "--enable-prompt-tokens-details"
CONNECTOR = "--kv-transfer-config"
_LMCACHE: Mapping[str, str] = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
_SHELLS = frozenset({"sh", "bash", "ash", "dash"})


@value
class Found:
    """An option that is written there.

    Attributes:
        index: Of the word that holds its value; of the flag for one without.
        text: Its value; empty for a flag.
        head: What precedes the value in that word: `--option=` or nothing.
    """

    index: int
    text: str
    head: str


def find(words: Sequence[str], option: str) -> Found | None:
    """Return an option, written as `--option value` or `--option=value`; of several the last.

    Raises:
        CannotPatch: Its value is missing, or given in parts (`--option.key`).
    """
    found = None
    for index, word in enumerate(words):
        # vLLM takes underscores in names of options as well.
        name, equals, text = word.partition("=")
        name = name.replace("_", "-")
        if name.startswith(f"{option}."):
            raise CannotPatch(f"{option} is given in parts ({name}): write it as one JSON object")
        if name != option:
            continue
        if equals:
            found = Found(index, text, f"{word.partition('=')[0]}=")
        elif option == DETAILS:
            found = Found(index, "", "")
        elif index + 1 == len(words):
            raise CannotPatch(f"{option} has no value")
        else:
            found = Found(index + 1, words[index + 1], "")
    return found


def words_of(container: Mapping[str, Any]) -> list[str]:
    """Return command and arguments.

    Raises:
        CannotPatch: They are one line for a shell, or none.
    """
    command, arguments = container.get("command") or [], container.get("args") or []
    words = [str(word) for word in (*command, *arguments)]
    if not words:
        raise CannotPatch(
            "it has no args: what its image starts is not known here, and args would replace it. "
            "Write out vLLM's arguments"
        )
    shell = str(command[0]).rpartition("/")[2] in _SHELLS if command else words[0] == "-c"
    if shell and "-c" in words[:3]:
        wanted = f"{DETAILS} {EVENTS} '{{...}}'"
        raise CannotPatch(
            f"its arguments are one line for a shell: add {wanted} there by hand, or write a list"
        )
    return words


def with_arguments(
    container: Mapping[str, Any], settings: Settings, *, connector: bool
) -> dict[str, list[str]]:
    """Return `command` and `args` with what is missing, as far as each is there.

    Args:
        container: Its `command` and `args` are read.
        settings: Ports of the events.
        connector: Also have vLLM load LMCache; the operator of HyperPod does that itself.

    Raises:
        CannotPatch: They cannot be read, or want another connector.
    """
    words = words_of(container)
    _refuse_other_connector(words)
    edited = {key: [str(w) for w in container[key]] for key in ("command", "args")
              if container.get(key)}  # fmt: skip
    added: list[str] = []
    events = find(words, EVENTS)
    if events is None:
        added += [EVENTS, _completed("{}", settings)]
    else:
        _set(edited, events, _completed(events.text, settings))
    if find(words, DETAILS) is None:
        added.append(DETAILS)
    if connector and find(words, CONNECTOR) is None:
        added += [CONNECTOR, json.dumps(dict(_LMCACHE))]
    if added:
        edited["args"] = edited.get("args", []) + added
    return edited


def events_problem(words: Sequence[str]) -> str:
    """Return what is wrong with the KV events of an engine with these words; empty for nothing."""
    events = find(words, EVENTS)
    if events is None:
        return f"no {EVENTS}: the gateway learns nothing of what it caches"
    told = _object(events.text)
    if not told.get("enable_kv_cache_events"):
        return f"{EVENTS} does not enable them"
    if not told.get("replay_endpoint"):
        return f"{EVENTS} has no replay_endpoint: every gap empties what is known of the replica"
    return ""


def connector_problem(words: Sequence[str]) -> str:
    """Return whether these words load LMCache: what is wrong, or empty."""
    found = find(words, CONNECTOR)
    if found is None or "LMCacheConnector" not in found.text:
        return f"no {CONNECTOR} with LMCacheConnectorV1: nothing reads {URL_NAME}"
    return ""


def _set(edited: dict[str, list[str]], found: Found, text: str) -> None:
    command = edited.get("command", [])
    key, index = "command", found.index
    if index >= len(command):
        key, index = "args", index - len(command)
    edited[key][index] = found.head + text


def _completed(text: str, settings: Settings) -> str:
    told = _object(text)
    if told.get("publisher") == "null":
        told.pop("publisher")
    wanted = {**settings.events(), **told, "enable_kv_cache_events": True}
    events, replay = (str(wanted[key]) for key in ("endpoint", "replay_endpoint"))
    if events.rpartition(":")[2] == replay.rpartition(":")[2]:
        raise CannotPatch(
            f"{EVENTS} would have {events} for events and {replay} for their replay, and "
            "the engine would not start: give another --events-port or --replay-port"
        )
    return text if wanted == told else json.dumps(wanted)


def _object(text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise CannotPatch(f"{EVENTS} is no JSON object: {text[:60]}")
    return told


def _refuse_other_connector(words: Sequence[str]) -> None:
    found = find(words, CONNECTOR)
    if found is None:
        return
    if "LMCacheMPConnector" in found.text:
        raise CannotPatch(
            f"{CONNECTOR} has LMCacheMPConnector: its pool is an --l2-adapter of the LMCache "
            "server beside the engine, and no variable of the engine's"
        )
    if "LMCache" not in found.text:
        raise CannotPatch(f"{CONNECTOR} has no LMCache: nothing would read {URL_NAME}")

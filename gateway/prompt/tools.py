"""The tools of a chat, as vLLM's models dump them for the template. Pure.

Source: vLLM 0.32, the types of its chat request and the checks before it renders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.config.engine import EngineConfig
from gateway.prompt.coercion import as_bool
from gateway.prompt.problem import REFUSED, PromptProblem


def shown_tools(body: Mapping[str, Any], engine: EngineConfig) -> list[dict[str, Any]] | None:
    """Return the tools that the template gets: this key order, nulls filled, unknown dropped.

    Args:
        body: The fields of a chat.
        engine: What the engines' command line says.

    Raises:
        PromptProblem: `refused`.
    """
    given = body.get("tools")
    if given is not None and (not isinstance(given, list) or not given):
        raise PromptProblem(REFUSED)
    choice = _choice(body, given or [])
    if choice not in (None, "none") and not engine.tool_parser:
        raise PromptProblem(REFUSED)
    if given is None:
        return None
    tools = [_tool(tool) for tool in given]
    return None if choice == "none" and engine.exclude_tools_when_tool_choice_none else tools


def _choice(body: Mapping[str, Any], tools: list[Any]) -> Any:
    """Return the tool choice as the engine reads it: a word, a mapping or None."""
    if "tool_choice" not in body:
        return "auto" if tools else "none"
    choice = body["tool_choice"]
    if choice in (None, "none"):
        return choice
    if not tools:
        raise PromptProblem(REFUSED)
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        known = [tool.get("function") for tool in tools if isinstance(tool, dict)]
        if not name or choice.get("type", "function") != "function":
            raise PromptProblem(REFUSED)
        if not any(isinstance(entry, dict) and entry.get("name") == name for entry in known):
            raise PromptProblem(REFUSED)
        return choice
    if choice not in ("auto", "required"):
        raise PromptProblem(REFUSED)
    return choice


def _tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise PromptProblem(REFUSED)
    deferred = tool.get("defer_loading")
    if deferred is not None:
        deferred = as_bool(deferred)
        function = {**function, "defer_loading": function.get("defer_loading", deferred)}
    dumped: dict[str, Any] = {"type": "function", "function": dump_function(function)}
    return dumped if deferred is None else dumped | {"defer_loading": deferred}


def dump_function(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return a function as the engine dumps it.

    Raises:
        PromptProblem: `refused`.
    """
    name, description, parameters = (
        function.get(key) for key in ("name", "description", "parameters")
    )
    if not isinstance(name, str) or not isinstance(description, str | None):
        raise PromptProblem(REFUSED)
    if not isinstance(parameters, dict | None):
        raise PromptProblem(REFUSED)
    dumped: dict[str, Any] = {"name": name, "description": description, "parameters": parameters}
    for key in ("strict", "defer_loading"):
        if function.get(key) is not None:
            dumped[key] = as_bool(function[key])
    return dumped

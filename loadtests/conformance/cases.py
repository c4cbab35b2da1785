"""The requests of the golden file: what can change a prompt's token ids, one case for each.

Made here and nowhere else, so that another engine version can be recorded with the same requests.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MODEL: Final = "golden"
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"

# One token is enough to make the engine compute the prompt.
_ONE_TOKEN: Final[Mapping[str, Mapping[str, Any]]] = {
    CHAT: {"model": MODEL, "max_tokens": 1, "temperature": 0, "return_token_ids": True},
    COMPLETIONS: {"model": MODEL, "max_tokens": 1, "temperature": 0, "return_token_ids": True},
    RESPONSES: {"model": MODEL, "max_output_tokens": 1, "temperature": 0, "store": False},
    MESSAGES: {"model": MODEL, "max_tokens": 1, "temperature": 0},
}


@dataclass(frozen=True, slots=True)
class Case:
    """One request.

    Attributes:
        name: Unique.
        path: Of the API.
        body: What is sent, as JSON text: some cases are about its spelling.
    """

    name: str
    path: str
    body: str


def case(name: str, path: str, fields: Mapping[str, Any]) -> Case:
    """Return a request with these fields beside the usual ones; None takes a usual one out."""
    usual = {key: value for key, value in _ONE_TOKEN[path].items() if key not in fields}
    dropped = {key for key in _ONE_TOKEN[path] if key in fields and fields[key] is None}
    body = {**usual, **{key: value for key, value in fields.items() if key not in dropped}}
    return Case(name, path, json.dumps(body))


def spelled(name: str, path: str, fields: Mapping[str, Any], raw: Mapping[str, str]) -> Case:
    """Return a request in which JSON strings that equal a key of `raw` are its text instead."""
    made = case(name, path, fields)
    body = made.body
    for placeholder, text in raw.items():
        body = body.replace(json.dumps(placeholder), text)
    return Case(name, path, body)


def user(content: Any, **fields: Any) -> dict[str, Any]:
    """Return a user's message."""
    return {"role": "user", "content": content, **fields}


def assistant(content: Any, **fields: Any) -> dict[str, Any]:
    """Return an assistant's message."""
    return {"role": "assistant", "content": content, **fields}


def system(content: Any) -> dict[str, Any]:
    """Return a system message."""
    return {"role": "system", "content": content}


def chat(name: str, *messages: Mapping[str, Any], **fields: Any) -> Case:
    """Return a chat."""
    return case(f"chat/{name}", CHAT, {"messages": messages, **fields})


def text(part: str) -> dict[str, str]:
    """Return a text part."""
    return {"type": "text", "text": part}


WEATHER: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    },
}

SEARCH: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the documents.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["query"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


def call(arguments: Any, name: str = "get_weather", call_id: str = "call_1") -> dict[str, Any]:
    """Return a call of a tool."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def result(content: Any, call_id: str = "call_1") -> dict[str, Any]:
    """Return a tool's result."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}

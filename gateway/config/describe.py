"""docs/configuration.md, written from the configuration's own types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from inspect import cleandoc
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from gateway.config.fields import Section
from gateway.config.fleet import COST_PROFILES
from gateway.config.models import GatewayConfig
from gateway.config.schema import bare, is_section, members, sections_of, words

INTRODUCTION = """
# Configuration

<!-- Generated from gateway/config by `make docs`. Edit the descriptions there. -->

`warmroute serve --config gateway.yaml` reads one YAML file; `warmroute check gateway.yaml` says
without starting anything whether it can be used (exit status 0, or 2 with one line for each
problem). `deploy/policies/` holds a commented file for each kind of traffic.

```yaml
{example}```

## The file

- UTF-8, YAML 1.2 with its core types: `off` and `yes` are text, `1e-3` is a number. Anchors,
  aliases and `<<` merges are allowed; tags and keys given twice are refused.
- Unknown keys are refused, as are values of another type: `"8080"` is no port.
- `${{NAME}}` is the environment variable's value and `${{NAME:-text}}` the text where the variable
  is unset or empty; without a default that is a problem. `$$` is a dollar sign. An unquoted value
  gets its type afterwards, so `port: ${{PORT}}` is a number; a quoted one stays text. Keys are
  taken as written. Inside `{{}}` and `[]` YAML ends an unquoted value at a brace: put such a value
  on its own line.
- A problem is told as `file:line: key: what is wrong, what would be right`, all of them at once.
  Values of secrets and of environment variables are never shown.
- Times are seconds, sizes are bytes; the unit ends the key's name.
- A key that may be left out may also be `null` where the table says *none*.
"""

EXAMPLE = """\
models:
  - name: qwen3-8b
    aliases: [qwen3]
    tokenizer: /models/qwen3-8b
    api_key: ${ENGINE_API_KEY:-}
    policy: chat
    replicas:
      - url: http://engine-0:8000
      - url: http://engine-1:8000
        id: engine-1
        kv_events:
          endpoint: tcp://engine-1:5557
          replay_endpoint: tcp://engine-1:5558

policies:
  chat:
    kind: expected_ttft
    load_bound: 1.5
  batch:
    kind: least_loaded

rules:
  - when:
      path: /v1/completions
      headers:
        x-priority: batch
    policy: batch
"""


def configuration_markdown() -> str:
    """Return the text of docs/configuration.md; the same types give the same text."""
    parts = [
        cleandoc(INTRODUCTION.format(example=EXAMPLE)),
        *_section("The root", GatewayConfig, ""),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, section: type[Section], prefix: str) -> Iterator[str]:
    """Yield a section's paragraphs, and then those of the sections inside it."""
    yield f"## {title}"
    yield cleandoc(section.__doc__ or "")
    yield _table(section)
    if "profile" in section.model_fields and prefix.endswith("cost"):
        yield _profiles()
    for key, field in section.model_fields.items():
        inner = list(sections_of(field))
        for found in inner:
            path = _inner_path(prefix, key, field)
            kind = words(found) if len(inner) > 1 else ()
            name = f"`{path}`" + (f" of kind `{kind[0]}`" if kind else "")
            yield from _section(name, found, path)


def _inner_path(prefix: str, key: str, field: FieldInfo) -> str:
    path = f"{prefix}.{key}" if prefix else key
    return path + {tuple: "[]", dict: ".NAME"}.get(get_origin(bare(field.annotation)), "")


def _table(section: type[Section]) -> str:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    # `kind` comes last among the fields that a policy inherits, and first in a reader's mind.
    fields = sorted(section.model_fields.items(), key=lambda item: item[0] != "kind")
    for key, field in fields:
        cells = (f"`{key}`", _type(field), _default(field), field.description or "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _type(field: FieldInfo) -> str:
    return " or ".join(_type_of(member) for member in members(field.annotation)) + _range(field)


def _type_of(expected: Any) -> str:
    if get_origin(expected) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(expected))
    if get_origin(expected) is tuple:
        return f"list of {_type_of(bare(get_args(expected)[0]))}s"
    if get_origin(expected) is dict:
        key, value = (_type_of(bare(arg)) for arg in get_args(expected))
        return f"mapping of {key} to {value}"
    if is_section(expected) or words(expected):
        return "mapping"
    names = {bool: "true or false", int: "integer", float: "number", str: "text", Any: "any value"}
    return "secret text" if expected is SecretStr else names[expected]


def _range(field: FieldInfo) -> str:
    bounds = []
    for mark in field.metadata:
        if isinstance(mark, annotated_types.Gt):
            bounds.append(f"> {mark.gt:g}")
        elif isinstance(mark, annotated_types.Ge):
            bounds.append(f">= {mark.ge:g}")
        elif isinstance(mark, annotated_types.Le):
            bounds.append(f"<= {mark.le:g}")
    return f", {', '.join(bounds)}" if bounds else ""


def _default(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "default_text" in extra:
        return str(extra["default_text"])
    if field.is_required():
        return "required"
    if any(sections_of(field)) and field.default_factory is not None:
        return "see below"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "*none*"
    return f"`{value if value and isinstance(value, str) else json.dumps(value)}`"


def _profiles() -> str:
    rows = ["Profiles, in seconds:", ""]
    rows.append("| key | " + " | ".join(f"`{name}`" for name in COST_PROFILES) + " |")
    rows.append("|---" * (len(COST_PROFILES) + 1) + "|")
    for key in next(iter(COST_PROFILES.values())):
        values = (json.dumps(costs[key]) for costs in COST_PROFILES.values())
        rows.append(f"| `{key}` | " + " | ".join(values) + " |")
    return "\n".join(rows)

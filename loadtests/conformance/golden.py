"""Records which token ids a real vLLM makes of each golden case: `make golden`.

The ids are those of the run itself: from the answer (`return_token_ids`), and for the APIs that do
not tell them from the engine's own log. /tokenize is no substitute, as it differs from the run.
"""

import argparse
import ast
import datetime as dt
import json
import re
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtests.children import Child, Children, wait_until
from loadtests.conformance import cases_chat, cases_other, cases_tools
from loadtests.conformance.cases import CHAT, COMPLETIONS, MODEL, Case
from loadtests.conformance.engine import STOP_DEADLINE_S, Engine, environment, wait_started
from loadtests.conformance.environment import Environment, ready
from loadtests.measurement import BUILD, ROOT, guarded
from loadtests.programs import free_ports

GOLDEN: Final = ROOT / "tests" / "data" / "golden"
TOKENIZERS: Final = ROOT / "tests" / "data" / "tokenizers"
# A template with a loop over parts: vLLM gives such a one its parts instead of joined text.
PARTS_TEMPLATE: Final = GOLDEN / "parts.jinja"
# Enough for a long prompt, small enough that the cases of too long ones are short.
_MAX_MODEL_LEN: Final = 4096
_REQUEST_TIMEOUT_S: Final = 120.0
_LOG_DEADLINE_S: Final = 5.0
# Sizes of a model that computes next to nothing: only its token ids matter here.
_TINY: Final[Mapping[str, Any]] = {
    "hidden_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "head_dim": 64,
    "max_position_embeddings": 8192,
}
_LOGGED_IDS: Final = re.compile(r"prompt_token_ids: (\[[0-9, ]*\])")


@dataclass(frozen=True, slots=True)
class Setup:
    """One recording: a tokenizer and vLLM's options.

    Attributes:
        tokenizer: A folder's name in tests/data/tokenizers.
        name: What the options are called in the file's name.
        flags: vLLM's options by name, underscores for dashes. A `chat_template` is the name of a
            file beside the recordings.
    """

    tokenizer: str
    name: str
    flags: Mapping[str, Any]

    @property
    def file(self) -> str:
        """The recording's name."""
        return f"{self.tokenizer}-{self.name}.jsonl"

    def options(self) -> dict[str, Any]:
        """Return the options as this machine needs them."""
        template = self.flags.get("chat_template")
        found = {} if template is None else {"chat_template": str(GOLDEN / template)}
        return {**self.flags, **found}


_TOOLS: Final[Mapping[str, Any]] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
_THOUGHTLESS: Final[Mapping[str, Any]] = {
    **_TOOLS,
    "reasoning_parser": "qwen3",
    "default_chat_template_kwargs": {"enable_thinking": False},
    "exclude_tools_when_tool_choice_none": True,
}
_PARTS: Final[Mapping[str, Any]] = {
    **_TOOLS,
    "chat_template": PARTS_TEMPLATE.name,
    "trust_request_chat_template": True,
}

_MISTRAL: Final[Mapping[str, Any]] = {"tokenizer_mode": "mistral"}

SETUPS: Final = (
    Setup("qwen3", "tools", _TOOLS),
    Setup("qwen3", "plain", {}),
    Setup("qwen3", "thoughtless", _THOUGHTLESS),
    Setup("smollm2", "plain", {}),
    Setup("smollm2", "parts", _PARTS),
    Setup("smollm2", "tools", _TOOLS),
    Setup("tekken3", "mistral", {**_MISTRAL, **_TOOLS, "tool_call_parser": "mistral"}),
    Setup("tekken13", "mistral", _MISTRAL),
)
"""All recordings."""


def all_cases() -> list[Case]:
    """Return every case, always in the same order."""
    return [*cases_chat.cases(), *cases_tools.cases(), *cases_other.cases()]


def main(argv: Sequence[str] | None = None) -> int:
    """Record, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.conformance.golden",
        description="Records the token ids that a real vLLM makes of each golden case.",
    )
    names = [setup.file.removesuffix(".jsonl") for setup in SETUPS]
    told = f"of {', '.join(names)}; all by default"
    parser.add_argument("setups", nargs="*", metavar="SETUP", help=told)
    parser.add_argument("--folder", type=Path, default=GOLDEN, help="for the recordings")
    options = parser.parse_args(argv)
    wanted = options.setups or names
    if unknown := set(wanted) - {*names}:
        parser.error(f"no such setup: {', '.join(sorted(unknown))}")
    chosen = [setup for setup, name in zip(SETUPS, names, strict=True) if name in wanted]
    return guarded("golden", lambda: _record_all(chosen, options.folder))


def _record_all(setups: Sequence[Setup], folder: Path) -> int:
    found = ready(BUILD)
    for setup in setups:
        record(setup, found, folder)
    return 0


def record(setup: Setup, found: Environment, folder: Path) -> None:
    """Start an engine, ask it every case, and write the recording.

    Raises:
        ChildError: The engine did not start.
    """
    work = BUILD / "golden"
    (port,) = free_ports(1)
    flags = {
        "dtype": "float32",
        "load_format": "dummy",
        "max_model_len": _MAX_MODEL_LEN,
        "max_num_seqs": 4,
        "no_enable_prefix_caching": True,
        "enable_log_requests": True,
        **setup.options(),
    }
    debug = {"VLLM_LOGGING_LEVEL": "DEBUG"}
    model = tiny_model(setup.tokenizer, work)
    name = setup.file.removesuffix(".jsonl")
    engine = Engine(name, found.python, model, MODEL, port, flags, environ=debug)
    with Children(environment(), work, STOP_DEADLINE_S) as children:
        child = engine.start(children)
        wait_started(child, engine.url)
        header = {
            "origin": "what a real vLLM on CPU computed for these requests; recorded by "
            "loadtests/conformance/golden.py with random weights, which no token id depends on",
            "vllm": json.loads(_ask(f"{engine.url}/version", None)[1])["version"],
            "transformers": found.version("transformers"),
            "tokenizer": setup.tokenizer,
            "flags": {"max_model_len": _MAX_MODEL_LEN, **setup.flags},
            "recorded": dt.datetime.now(dt.UTC).date().isoformat(),
        }
        lines = [header, *_recorded(engine, child)]
    text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / setup.file).write_text(text, encoding="ascii")
    good = sum(line.get("status") == 200 for line in lines)
    print(f"{setup.file}: {len(lines) - 1} cases, {good} of them answered", flush=True)


def tiny_model(tokenizer: str, folder: Path) -> Path:
    """Return a folder with this tokenizer and the configuration of a tiny model of its kind."""
    source, target = TOKENIZERS / tokenizer, folder / f"model-{tokenizer}"
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        shutil.copy(file, target / file.name)
    config = json.loads((source / "config.json").read_text("utf-8"))
    (target / "config.json").write_text(json.dumps({**config, **_TINY}), encoding="utf-8")
    return target


def _recorded(engine: Engine, child: Child) -> Iterator[dict[str, Any]]:
    for case in all_cases():
        log_bytes = child.log.stat().st_size
        status, answer = _ask(f"{engine.url}{case.path}", case.body)
        line = {"name": case.name, "path": case.path, **_body(case.body), "status": status}
        prompts = _prompts(case, answer, child.log, log_bytes) if status == 200 else []
        line["prompt_token_ids"] = prompts[0] if prompts else None
        if len(prompts) > 1:
            line["more_prompt_token_ids"] = prompts[1:]
        if status != 200:
            line["message"] = _message(answer)
        yield line


def _prompts(case: Case, answer: bytes, log: Path, start: int) -> list[list[int]]:
    """Return the ids of a request's prompts: as the answer tells them, else as the log does."""
    prompts = _told(case.path, answer)
    if not prompts:
        wait_until(lambda: bool(_logged(log, start)), _LOG_DEADLINE_S)
        prompts = _logged(log, start)
    return prompts


def _body(text: str) -> dict[str, Any]:
    """Return the body as JSON, or as text where reading and writing it would change it."""
    body = json.loads(text)
    spelled = json.dumps(body) != text
    return {"raw_body": text} if spelled else {"body": body}


def _ask(url: str, body: str | None) -> tuple[int, bytes]:
    headers = {"Content-Type": "application/json"}
    data = None if body is None else body.encode()
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - our own child
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def _told(path: str, answer: bytes) -> list[list[int]]:
    """Return the prompts' ids from an answer, one for each prompt, as far as it has them."""
    fields = json.loads(answer)
    if path == CHAT:
        ids = fields.get("prompt_token_ids")
        return [] if ids is None else [ids]
    if path != COMPLETIONS:
        return []
    found = [choice.get("prompt_token_ids") for choice in fields["choices"]]
    return [ids for ids in found if ids is not None]


def _logged(log: Path, start: int) -> list[list[int]]:
    """Return the prompts' ids that an engine logged after the first `start` bytes."""
    with log.open("rb") as opened:
        opened.seek(start)
        text = opened.read().decode(errors="replace")
    return [ast.literal_eval(ids) for ids in _LOGGED_IDS.findall(text)]


def _message(answer: bytes) -> str:
    """Return an error's first lines: for people, as they depend on the version."""
    try:
        error = json.loads(answer)["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(message).split())[:200]


if __name__ == "__main__":
    sys.exit(main())

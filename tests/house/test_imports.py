"""Who may import what, read from the syntax trees: docs/architecture.md, "Import rules"."""

import ast
import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Rule:
    """`module`, and all below it, may be imported by files of `inside` only where `allowed`."""

    module: str
    inside: tuple[str, ...]
    allowed: tuple[str, ...]
    why: str


GATEWAY = ("gateway/*",)
NOWHERE: tuple[str, ...] = ()

# Of two rules that match an import the one with the longer module name decides.
RULES = (
    Rule(
        "loadtests", ("gateway/*", "routing/*"), NOWHERE, "what ships must not need its test tools"
    ),
    Rule(
        "tests",
        ("gateway/*", "routing/*", "loadtests/*"),
        NOWHERE,
        "tests look at code, never back",
    ),
    Rule("gateway", ("routing/*",), NOWHERE, "routing is pure: the lab and the tests run it alone"),
    Rule("gateway", ("loadtests/*",), NOWHERE, "load tests see the gateway as clients do, by HTTP"),
    Rule(
        "redis",
        GATEWAY,
        ("gateway/redis/*",),
        "a gateway without Redis never loads its client",
    ),
    Rule(
        "hiredis",
        GATEWAY,
        ("gateway/redis/*",),
        "how replies look on the wire is known to the link alone",
    ),
    Rule("zmq", GATEWAY, ("gateway/kvevents/subscriber.py",), "decoding stays sans-IO"),
    Rule("transformers", GATEWAY, ("gateway/prompt/*",), "seconds to import, one place to replace"),
    Rule(
        "mistral_common",
        GATEWAY,
        ("gateway/prompt/mistral.py",),
        "an extra: only for models in that format",
    ),
    Rule("tokenizers", GATEWAY, ("gateway/prompt/*",), "seconds to import, one place to replace"),
    Rule(
        "prometheus_client",
        GATEWAY,
        ("gateway/observability/*",),
        "every metric is declared once, in one file that docs/metrics.md is made from",
    ),
    Rule(
        "prometheus_client.parser",
        GATEWAY,
        ("gateway/replicas/engine_metrics.py",),
        "reading what an engine exports declares no metric of ours",
    ),
    Rule(
        "fastapi",
        GATEWAY,
        ("gateway/api/*", "gateway/app.py"),
        "the pipeline knows nothing of the web framework",
    ),
    Rule(
        "dns",
        GATEWAY,
        ("gateway/replicas/discovery/dns.py",),
        "a gateway without DNS discovery never loads its client",
    ),
    Rule(
        "uvicorn",
        GATEWAY,
        ("gateway/server.py", "gateway/http.py", "gateway/http_response.py"),
        "only the listeners know which server runs them",
    ),
    Rule(
        "lightkube",
        GATEWAY,
        ("gateway/replicas/discovery/kubernetes_api.py",),
        "a gateway without Kubernetes discovery never loads its client",
    ),
    Rule(
        "httpx2",
        GATEWAY,
        ("gateway/replicas/discovery/kubernetes_api.py",),
        "it is lightkube's HTTP client; ours for control traffic is httpx",
    ),
)

# The whole world of routing/: no I/O, event loop, clock, logging or environment comes in through
# these. `random` is for random.Random instances that the caller seeds; test_state.py refuses the
# module's own functions.
ROUTING_MAY_IMPORT = frozenset(
    {
        "__future__",
        "abc",
        "array",
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "heapq",
        "itertools",
        "math",
        "numpy",
        "operator",
        "random",
        "routing",
        "statistics",
        "struct",
        "types",
        "typing",
        "xxhash",
    }
)


def imported_names(path: str, source: str) -> list[tuple[int, str]]:
    """Return (line, absolute dotted name) of every import in `source`, nested or relative."""
    names: list[tuple[int, str]] = []
    package = path.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            names += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return names


def is_below(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def violations(path: str, source: str) -> list[str]:
    """Return one line for each import of `source` that breaks a rule, if it stood at `path`."""
    found = []
    for line, name in imported_names(path, source):
        applying = [
            rule
            for rule in RULES
            if is_below(name, rule.module) and any(fnmatch(path, tree) for tree in rule.inside)
        ]
        if applying:
            rule = max(applying, key=lambda rule: len(rule.module))
            if not any(fnmatch(path, place) for place in rule.allowed):
                found.append(f"{path}:{line}: {name}: {rule.why}")
        elif path.startswith("routing/") and name.split(".")[0] not in ROUTING_MAY_IMPORT:
            found.append(f"{path}:{line}: {name}: not on the list of what routing may import")
    return found


def python_files() -> list[Path]:
    return sorted(
        p for tree in ("gateway", "routing", "loadtests") for p in (ROOT / tree).rglob("*.py")
    )


def test_every_file_imports_only_what_it_may():
    assert python_files()
    found = [
        violation
        for file in python_files()
        for violation in violations(file.relative_to(ROOT).as_posix(), file.read_text("utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("routing/router.py", "import time"),
        ("routing/router.py", "def f():\n    import asyncio"),
        ("routing/lab/replay.py", "from pathlib import Path"),
        ("routing/router.py", "import gateway.errors"),
        ("routing/router.py", "from ..gateway import errors"),
        ("routing/router.py", "import loadtests"),
        ("gateway/app.py", "from loadtests import demo"),
        ("gateway/app.py", "import tests.conftest"),
        ("gateway/pipeline.py", "import fastapi"),
        ("gateway/pipeline.py", "from fastapi.responses import Response"),
        ("gateway/index/memory.py", "import redis.asyncio"),
        ("gateway/index/redis.py", "import hiredis"),
        ("gateway/kvevents/decode.py", "import zmq"),
        ("gateway/app.py", "import uvicorn"),
        ("gateway/replicas/discovery/kubernetes.py", "from lightkube import AsyncClient"),
        ("gateway/app.py", "if True:\n    from transformers import AutoTokenizer"),
        ("gateway/replicas/engine_metrics.py", "from prometheus_client import Counter"),
        ("gateway/proxy/transport.py", "from prometheus_client.parser import anything"),
        ("loadtests/simulator/server.py", "import gateway"),
    ],
)
def test_a_planted_violation_is_found(path: str, source: str):
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "routing/router.py",
            "import math\nfrom routing.bound import load_cap\nfrom . import types",
        ),
        ("routing/hashing.py", "import xxhash\nimport numpy as np"),
        ("gateway/pipeline.py", "from routing.router import Router\nimport asyncio"),
        ("gateway/redis/connection.py", "import hiredis, redis.crc"),
        ("gateway/replicas/engine_metrics.py", "from prometheus_client.parser import anything"),
        ("gateway/replicas/discovery/kubernetes_api.py", "import httpx2, lightkube.config"),
        (
            "loadtests/simulator/server.py",
            "import zmq, fastapi\nfrom routing.lab import engine_model",
        ),
        ("gateway/redis_names.py", "import redistribution"),
    ],
)
def test_what_the_rules_allow_is_not_reported(path: str, source: str):
    assert violations(path, source) == []


def test_the_allow_list_of_routing_names_real_modules():
    third_party = {"numpy", "xxhash", "routing"}
    assert third_party | set(sys.stdlib_module_names) >= ROUTING_MAY_IMPORT

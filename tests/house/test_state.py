"""Nothing lives at module level but constants, and routing/ has no way to the world outside.

What a module keeps is shared by all its users, whether they know it or not: two gateways in one
process, a test and the next one. So state has an owner that is passed (runtime.Gateway), and a
module holds constants, types and functions.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# UPPER_CASE constants, CamelCase type aliases, dunders, and the one usual exception: a logger.
CONSTANT_NAME = re.compile(r"_?[A-Z][A-Za-z0-9_]*|__\w+__|log|logger")

MUTABLE_DISPLAYS = (
    ast.List,
    ast.Dict,
    ast.Set,
    ast.ListComp,
    ast.DictComp,
    ast.SetComp,
    ast.GeneratorExp,
)
MUTABLE_CALLS = frozenset(
    [
        "bytearray",
        "dict",
        "list",
        "set",
        "defaultdict",
        "deque",
        "Counter",
        "OrderedDict",
        "ChainMap",
        "count",
        "cycle",
        "iter",
        "WeakKeyDictionary",
        "WeakValueDictionary",
        "WeakSet",
        "Lock",
        "RLock",
        "Event",
        "Semaphore",
        "Queue",
        "ContextVar",
    ]
)
# Behind these annotations mypy refuses every change, so a literal is as good as frozen.
READ_ONLY_ANNOTATIONS = frozenset({"Mapping", "Sequence", "Collection", "Set", "AbstractSet"})

# Builtins that reach outside the process or run text as code.
IMPURE_BUILTINS = frozenset(
    ["open", "print", "input", "breakpoint", "exec", "eval", "__import__", "id", "hash"]
)


def last_name(node: ast.expr | None) -> str:
    """Return the last part of a dotted, subscripted or called name: `t.Final[dict]` gives Final."""
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def module_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run on import: the module's and those of its if, try, with, for."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from module_statements(getattr(statement, field, []))
        for handler in getattr(statement, "handlers", []):
            yield from module_statements(handler.body)


def is_mutable(statement: ast.Assign | ast.AnnAssign, names: list[str]) -> bool:
    if names == ["__all__"]:
        return False
    if isinstance(statement, ast.AnnAssign):
        annotation = statement.annotation
        inner = (
            annotation.slice
            if last_name(annotation) == "Final" and isinstance(annotation, ast.Subscript)
            else annotation
        )
        if last_name(inner) in READ_ONLY_ANNOTATIONS:
            return False
    value = statement.value
    return isinstance(value, MUTABLE_DISPLAYS) or (
        isinstance(value, ast.Call) and last_name(value.func) in MUTABLE_CALLS
    )


def module_state(path: str, tree: ast.Module) -> Iterator[str]:
    """Yield what the module keeps beside constants."""
    for statement in module_statements(tree.body):
        if isinstance(statement, ast.AugAssign):
            yield f"{path}:{statement.lineno}: changes a module's value"
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        names = [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        for name in names:
            if not CONSTANT_NAME.fullmatch(name):
                yield f"{path}:{statement.lineno}: {name} is not named as a constant"
        if is_mutable(statement, names):
            where = f"{path}:{statement.lineno}"
            yield f"{where}: {', '.join(names)} can change: annotate it Mapping or Sequence"


def hidden_state(path: str, tree: ast.Module) -> Iterator[str]:
    """Yield `global` statements, and singletons made by caching a function without arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield f"{path}:{node.lineno}: global {', '.join(node.names)}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            cached = any(last_name(d) in {"cache", "lru_cache"} for d in node.decorator_list)
            if cached and not (node.args.args or node.args.kwonlyargs or node.args.posonlyargs):
                yield f"{path}:{node.lineno}: {node.name} is a singleton: pass the object instead"


def impurities(path: str, tree: ast.Module) -> Iterator[str]:
    """Yield the calls by which code of routing/ would do I/O or take unseeded randomness."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "random":
            for alias in node.names:
                if alias.name != "Random":
                    yield f"{path}:{node.lineno}: random.{alias.name}: take a random.Random"
        called = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if called.startswith("random.") and called != "random.Random":
            yield f"{path}:{node.lineno}: {called}: take a random.Random"
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS:
                yield f"{path}:{node.lineno}: {node.func.id}() in pure code"
            if last_name(node.func) == "Random" and not node.args:
                yield f"{path}:{node.lineno}: random.Random() without a seed"


def violations(path: str, source: str) -> list[str]:
    tree = ast.parse(source, path)
    found = [*module_state(path, tree), *hidden_state(path, tree)]
    return [*found, *impurities(path, tree)] if path.startswith("routing/") else found


def test_no_module_keeps_state_and_routing_is_pure():
    files = [p for tree in ("gateway", "routing", "loadtests") for p in (ROOT / tree).rglob("*.py")]
    assert files
    found = [
        violation
        for file in sorted(files)
        for violation in violations(file.relative_to(ROOT).as_posix(), file.read_text("utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("gateway/app.py", "CACHE = {}"),
        ("gateway/app.py", "CACHE: dict[str, int] = {}"),
        ("gateway/app.py", "CACHE: Final = {}"),
        ("gateway/app.py", "CACHE: Final[dict[str, int]] = {}"),
        ("gateway/app.py", "if True:\n    SEEN = set()"),
        ("gateway/app.py", "try:\n    pass\nexcept ValueError:\n    QUEUE = collections.deque()"),
        ("gateway/app.py", "NAMES = [n for n in 'ab']"),
        ("gateway/app.py", "app = Application()"),
        ("gateway/app.py", "COUNT = 0\nCOUNT += 1"),
        ("gateway/app.py", "def f():\n    global COUNT"),
        ("gateway/app.py", "@lru_cache(maxsize=1)\ndef get_settings():\n    return 1"),
        ("routing/router.py", "def f():\n    return random.random()"),
        ("routing/router.py", "from random import choice"),
        ("routing/router.py", "def f():\n    return random.Random()"),
        ("routing/router.py", "def f():\n    print(1)"),
        ("routing/router.py", "def f(path):\n    return open(path)"),
        ("routing/router.py", "def f(name):\n    return hash(name)"),
    ],
)
def test_a_planted_violation_is_found(path: str, source: str):
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "gateway/app.py",
            "__all__ = ['a']\nTIMEOUT_S = 3.0\nNAMES = ('a', 'b')\nSEEN = frozenset({1})",
        ),
        (
            "gateway/app.py",
            "KINDS: Mapping[str, int] = {'a': 1}\nMORE: Final[Mapping[str, int]] = {'a': 1}",
        ),
        ("gateway/app.py", "TABLE = MappingProxyType({'a': 1})\nlog = logging.getLogger(__name__)"),
        (
            "gateway/app.py",
            "Row = tuple[int, str]\nT_co = TypeVar('T_co')\n_PATTERN = re.compile('a')",
        ),
        ("gateway/app.py", "def f():\n    seen = {}\n    print(seen)"),
        ("gateway/app.py", "class A:\n    def __init__(self):\n        self.seen = {}"),
        (
            "routing/router.py",
            "import random\ndef f(rng: random.Random, seed: int):\n    return random.Random(seed)",
        ),
        ("routing/router.py", "@lru_cache(maxsize=64)\ndef f(n):\n    return n"),
    ],
)
def test_constants_and_owned_state_are_not_reported(path: str, source: str):
    assert violations(path, source) == []

"""Files and functions stay small enough to be read at one go."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

MAX_FILE_LINES = 400
# Without the docstring: explaining a contract must not cost a function its room.
MAX_FUNCTION_LINES = 60
MAX_README_LINES = 250


def sources() -> list[Path]:
    trees = ("gateway", "routing", "loadtests")
    return sorted(file for tree in trees for file in (ROOT / tree).rglob("*.py"))


def function_lengths(source: str) -> Iterator[tuple[str, int]]:
    """Yield (name, lines from `def` to the end, docstring left out) of every function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            has_docstring = ast.get_docstring(node, clean=False) is not None
            docstring = first.end_lineno - first.lineno + 1 if has_docstring else 0
            yield node.name, node.end_lineno - node.lineno + 1 - docstring


def num_lines(file: Path) -> int:
    return len(file.read_text("utf-8").splitlines())


def test_no_file_is_too_long():
    assert sources()
    too_long = {
        str(f.relative_to(ROOT)): n for f in sources() if (n := num_lines(f)) > MAX_FILE_LINES
    }
    assert too_long == {}


def test_no_function_is_too_long():
    too_long = {
        f"{file.relative_to(ROOT)}: {name}": lines
        for file in sources()
        for name, lines in function_lengths(file.read_text("utf-8"))
        if lines > MAX_FUNCTION_LINES
    }
    assert too_long == {}


def test_the_readme_is_short():
    assert num_lines(ROOT / "README.md") <= MAX_README_LINES


def test_a_function_is_counted_without_its_docstring():
    docstring = '        """One.\n\n        Two.\n        """\n'
    source = f"class A:\n    async def f(self):\n{docstring}        return (\n            1)\n"
    assert list(function_lengths(source)) == [("f", 3)]

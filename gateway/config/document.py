"""A YAML file as plain data that still knows its lines.

YAML 1.2's core schema, not the 1.1 that PyYAML follows: `off` is text, `1e-3` is a number and
`010` is ten. Anchors, aliases and `<<` merges are allowed; tags and doubled keys are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from gateway.config.environment import SubstitutionError, has_reference, substitute
from gateway.config.errors import ConfigError, Finding, Path, Problem, key_text

_MAX_SHOWN = 60  # characters of a value in a message: an address fits, a pasted certificate not

# YAML 1.2.2, section 10.3.2, the core schema.
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"(true|True|TRUE)|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

Pair = tuple[yaml.Node, yaml.Node]


class _Loader(yaml.SafeLoader):
    """Composes nodes only: values are made by `_Reader`, so no tag can construct anything."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - PyYAML's own, emptied

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call] # the stubs lack it
        tag = getattr(event, "tag", None)
        if tag is not None:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise yaml.MarkedYAMLError(problem=f"tag {shown}", problem_mark=event.start_mark)
        return super().compose_node(parent, index)


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed file.

    Attributes:
        file: Its name, as messages show it.
        value: Mappings, lists, text, numbers, booleans and None.
        root: The node that `value` was made from.
        findings: What was wrong while reading; `value` has None in those places.
    """

    file: str
    value: Any
    root: yaml.Node
    findings: tuple[Finding, ...]
    _reader: _Reader = field(repr=False)

    def problem(self, finding: Finding) -> Problem:
        """Return the finding with its line and, where it may be shown, the value there."""
        key, value = self._locate(finding.path)
        got = ""
        if finding.show_value and value is not None:
            got = f", got {self._shown(value, finding.path)}"
        line = finding.line or _line(key)
        text = f"{finding.text}{got}{finding.hint}"
        return Problem(f"{self.file}:{line}", key_text(finding.path), text)

    def is_unreadable(self, path: Path) -> bool:
        """Return whether `findings` already say why the value at `path` is not what it should."""
        return path in self._reader.unreadable

    def _locate(self, path: Path) -> Pair | tuple[yaml.Node, None]:
        # A missing key is looked for where it should be added: in the mapping around it.
        key = value = self.root
        for step in path:
            pairs = self._reader.pairs.get(id(value), {})
            if isinstance(step, str) and step in pairs:
                key, value = pairs[step]
            elif isinstance(step, int) and isinstance(value, yaml.SequenceNode):
                key = value = value.value[step]
            else:
                return value, None
        return key, value

    def _shown(self, node: yaml.Node, path: Path) -> str:
        # What came from the environment stays there: it may be a secret in the wrong place.
        reference = self._reader.references.get(id(node))
        if reference is not None:
            return f"the environment's value of {shown_value(reference)}"
        value = self.value
        for step in path:
            value = value[step]
        return shown_value(value)


def shown_value(value: Any) -> str:
    """Return a value as a message shows it: short, on one line, without passwords of addresses."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if not isinstance(value, str):
        return str(value)
    if "://" in value:
        value = re.sub(r"//[^/]*@", "//***@", value)
        value = re.sub(r"\?.*", "?***", value, flags=re.DOTALL)
    return repr(value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN] + "...")


def parse(text: str, file: str, environ: Mapping[str, str]) -> Document:
    """Read YAML text and fill in its `${NAME}` references.

    Raises:
        ConfigError: The text is not YAML, or empty. All else becomes the document's `findings`.
    """
    try:
        return _parse(text, file, environ)
    except yaml.YAMLError as error:
        raise ConfigError([_syntax_problem(error, text, file)]) from None
    except RecursionError:
        problem = Problem(f"{file}:1", "(file)", "nested too deeply, a configuration has 6 levels")
        raise ConfigError([problem]) from None


def _parse(text: str, file: str, environ: Mapping[str, str]) -> Document:
    root = yaml.compose(text, Loader=_Loader)
    if root is None:
        what = "is empty, the least is `models: [{replicas: [{url: 'http://engine-0:8000'}]}]`"
        raise ConfigError([Problem(f"{file}:1", "(file)", what)])
    reader = _Reader(environ)
    value = reader.value(root, ())
    return Document(file, value, root, tuple(reader.findings), reader)


def _syntax_problem(error: yaml.YAMLError, text: str, file: str) -> Problem:
    lines = text.splitlines()
    line, what = 1, str(error)
    if isinstance(error, yaml.MarkedYAMLError):
        marks = [mark.line + 1 for mark in (error.problem_mark, error.context_mark) if mark]
        # What is never closed is found at the end of the file, and mended where it begins.
        line = next((found for found in marks if found <= len(lines)), 1)
        what = " ".join(filter(None, (error.context, error.problem)))
    elif isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        what = "control character"
    source_line = lines[line - 1] if line <= len(lines) else ""
    return Problem(f"{file}:{line}", "(file)", _syntax_text(what, source_line))


def _syntax_text(what: str, source_line: str) -> str:
    if what.startswith("tag "):
        return f"{what} is not allowed, remove it and write the plain value"
    if what == "control character":
        return "a control character is in this line, remove it"
    if "\\t" in what or source_line.lstrip(" ").startswith("\t"):
        return "a tab begins this line, indent with spaces"
    if "${" in source_line:
        return (
            f"not YAML ({what}), write ${{NAME}} on its own line: inside {{}} and [] braces end it"
        )
    return f"not YAML ({what}), check indentation, colons and quotes up to this line"


@dataclass(slots=True)
class _Reader:
    """Makes plain values of nodes, and collects what is wrong with them."""

    environ: Mapping[str, str]
    findings: list[Finding] = field(default_factory=list)
    pairs: dict[int, dict[str, Pair]] = field(default_factory=dict)
    references: dict[int, str] = field(default_factory=dict)
    unreadable: set[Path] = field(default_factory=set)
    _made: dict[int, Any] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)

    def value(self, node: yaml.Node, path: Path) -> Any:
        """Return the value of a node.

        What aliases share is made once, or a few lines of them could ask for more than memory.
        """
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._made:
            return self._made[id(node)]
        if id(node) in self._open:
            return self._unread(path, "alias inside its own anchor, write the value out")
        self._open.add(id(node))
        made = self._make(node, path)
        self._open.remove(id(node))
        self._made[id(node)] = made
        return made

    def _make(self, node: yaml.Node, path: Path) -> Any:
        if isinstance(node, yaml.MappingNode):
            pairs = self._pairs_of(node, path)
            return {key: self.value(child, (*path, key)) for key, (_, child) in pairs.items()}
        return [self.value(child, (*path, i)) for i, child in enumerate(node.value)]

    def _pairs_of(self, node: yaml.MappingNode, path: Path) -> dict[str, Pair]:
        if id(node) not in self.pairs:  # merges, too, could ask for more than memory
            self.pairs[id(node)] = self._read_pairs(node, path)
        return self.pairs[id(node)]

    def _read_pairs(self, node: yaml.MappingNode, path: Path) -> dict[str, Pair]:
        own: dict[str, Pair] = {}
        merged: dict[str, Pair] = {}
        for key_node, child in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(
                    path, "has a key that is not text, write `key: value`", _line(key_node)
                )
            elif key_node.value == "<<" and key_node.style is None:
                merged = self._merge(child, path) | merged
            elif key_node.value in own:
                text = f"given twice, first on line {_line(own[key_node.value][0])}, keep one"
                self._refuse((*path, key_node.value), text, _line(key_node))
            else:
                own[key_node.value] = (key_node, child)
        return merged | own

    def _merge(self, node: yaml.Node, path: Path) -> dict[str, Pair]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Pair] = {}
        for source in sources:
            if isinstance(source, yaml.MappingNode) and id(source) not in self._open:
                self._open.add(id(source))
                merged = self._pairs_of(source, path) | merged  # the earlier source wins
                self._open.remove(id(source))
            else:
                text = "must name one mapping or a list of mappings, and not itself"
                self._refuse((*path, "<<"), text, _line(source))
        return merged

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text = node.value
        if has_reference(text):
            self.references[id(node)] = text
            try:
                text = substitute(text, self.environ)
            except SubstitutionError as error:
                return self._unread(path, str(error))
        if node.style is not None:  # quoted or a block: always text
            return text
        try:
            return _plain(text)
        except ValueError:  # more digits than Python converts
            return self._unread(path, "too long for a number, quote it if it is text")

    def _unread(self, path: Path, text: str) -> None:
        self.unreadable.add(path)
        self._refuse(path, text)

    def _refuse(self, path: Path, text: str, line: int | None = None) -> None:
        self.findings.append(Finding(path, text, show_value=False, line=line))


def _plain(text: str) -> Any:
    """Return the value of an unquoted scalar."""
    if _NULL.fullmatch(text):
        return None
    boolean = _BOOL.fullmatch(text)
    if boolean:
        return boolean[1] is not None
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1

"""Changes a YAML text so that it says something else, and leaves every other byte as it is. Pure.

A round trip through a parser keeps comments, but not where they stand, nor indentation, quotes and
line breaks. Here the text is parsed only to learn where its values are; what has to change is cut
out or put in, and at the end the new text is read and must say exactly what was wanted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import yaml

from routing.value import value

_ENDLESS = 2**30  # columns, so that nothing is folded
_NAMED = "name: "
_SEPARATOR = re.compile(r"^---[ \t]*(?:#.*)?$\n?", re.MULTILINE)


class CannotChange(Exception):
    """A text cannot be read, or its form does not let the change in."""


@value
class Part:
    """One document of a stream.

    Attributes:
        head: The `---` line before it, or empty.
        text: Its own lines.
        line: Where they begin in the stream, from 1.
    """

    head: str
    text: str
    line: int


def split(stream: str) -> list[Part]:
    """Return the documents of a stream; heads and texts in order are the stream."""
    parts, head, begin = [], "", 0
    for found in _SEPARATOR.finditer(stream):
        parts.append(_part(stream, head, begin, found.start()))
        head, begin = found[0], found.end()
    parts.append(_part(stream, head, begin, len(stream)))
    return [part for part in parts if part.head or part.text]


def _part(stream: str, head: str, begin: int, end: int) -> Part:
    return Part(head, stream[begin:end], stream.count("\n", 0, begin) + 1)


def read(text: str) -> Any:
    """Return what a document says.

    Raises:
        CannotChange: It is no YAML.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise CannotChange(f"{where}{getattr(error, 'problem', None) or 'no YAML'}") from error


def rewrite(text: str, wanted: Any) -> str:
    """Return the text changed so that it says `wanted`.

    Args:
        text: One document.
        wanted: Plain values; the same kind of collection at the top as in the text.

    Raises:
        CannotChange: The form of the text does not let the change in; anchors, for example.
    """
    old = read(text)
    if old == wanted:
        return text
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        raise CannotChange("it is empty")
    writer = _Writer(text)
    writer.change(root, old, wanted, key=None)
    changed = writer.result()
    try:
        same = read(changed) == wanted
    except CannotChange:
        same = False
    if not same:
        raise CannotChange("its form (anchors, mixed styles) does not let the change in")
    return changed


class _Writer:
    """Collects replacements of parts of a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._edits: list[tuple[int, int, int, str]] = []
        self._offset = _sequence_offset(text)
        self._in_brackets = 0

    def result(self) -> str:
        """Return the text with all replacements made."""
        text = self._text
        for start, end, _, new in sorted(self._edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def change(self, node: yaml.Node, old: Any, new: Any, key: yaml.Node | None) -> None:
        """Make a node say something else.

        Args:
            node: Where it stands.
            old: What it says.
            new: What it is to say.
            key: The key before it, where it is a value of a mapping.
        """
        if old == new and type(old) is type(new):
            return
        brackets = isinstance(node, yaml.CollectionNode) and bool(node.flow_style)
        self._in_brackets += brackets
        if isinstance(node, yaml.MappingNode) and isinstance(new, Mapping) and node.value:
            self._mapping(node, old, new)
        elif isinstance(node, yaml.SequenceNode) and _is_list(new) and node.value:
            self._sequence(node, old, new, key)
        elif isinstance(new, Mapping) or _is_list(new):
            self._collection(node, new, key)
        else:
            self._scalar(node, new)
        self._in_brackets -= brackets

    def _mapping(self, node: yaml.MappingNode, old: Any, new: Mapping[str, Any]) -> None:
        for key, child in node.value:
            if key.value in new:
                self.change(child, old[key.value], new[key.value], key)
            elif node.flow_style:
                raise CannotChange("keys are not taken out of a mapping in brackets")
            else:
                self._cut(key.start_mark.index, self._end(child, key))
        added = {key: new[key] for key in new if key not in old}
        if added and node.flow_style:
            inside = json.dumps(added)[1:-1]
            self._put(node.end_mark.index - 1, f", {inside}")
        elif added:
            lines = self._lines(added, node.start_mark.column)
            self._put(self._line_end(self._end(node)), "\n" + "\n".join(lines))

    def _sequence(
        self, node: yaml.SequenceNode, old: Any, new: Sequence[Any], key: yaml.Node | None
    ) -> None:
        names, new_names = _identities(old), _identities(new)
        if node.flow_style and not Counter(names) <= Counter(new_names):
            # Which comma goes with what is taken out depends on the rest: all of it anew.
            self._whole(node, new)
            return
        matcher = SequenceMatcher(None, names, new_names, autojunk=False)
        for kind, old_from, old_to, new_from, new_to in matcher.get_opcodes():
            named = any(name.startswith(_NAMED) for name in names[old_from:old_to])
            # An item with a name does not become the one of another name.
            common = 0 if named and kind != "equal" else min(old_to - old_from, new_to - new_from)
            for step in range(common):
                item = node.value[old_from + step]
                self.change(item, old[old_from + step], new[new_from + step], None)
            for item in node.value[old_from + common : old_to]:
                dash = self._text.rfind("-", 0, item.start_mark.index + 1)
                self._cut(dash, self._end(item))
            if new_from + common < new_to:
                self._insert(node, old_from + common, new[new_from + common : new_to], key)

    def _insert(
        self, node: yaml.SequenceNode, index: int, items: Sequence[Any], key: yaml.Node | None
    ) -> None:
        """Put items before the one at `index`, right behind the one before that."""
        if node.flow_style:
            inside = json.dumps(list(items))[1:-1]
            if index == 0:
                self._put(node.start_mark.index + 1, f"{inside}, ")
            else:
                self._put(node.value[index - 1].end_mark.index, f", {inside}")
            return
        column = node.start_mark.column
        lines = [line for item in items for line in self._lines([item], column)]
        if index > 0:
            after = self._line_end(self._end(node.value[index - 1]))
        elif key is not None:
            after = self._line_end(key.end_mark.index)
        else:
            raise CannotChange("a list in a list is not changed at its beginning")
        self._put(after, "\n" + "\n".join(lines))

    def _whole(self, node: yaml.Node, new: Any) -> None:
        start, end = node.start_mark.index, node.end_mark.index
        if "#" in self._text[start:end]:
            raise CannotChange("a list in brackets with comments in it is not written anew")
        self._edits.append((start, end, 0, json.dumps(new)))

    def _collection(self, node: yaml.Node, new: Any, key: yaml.Node | None) -> None:
        """Write a collection where there is none yet, or an empty one."""
        if key is None:
            raise CannotChange("an empty item of a list is not filled")
        own = isinstance(node, yaml.CollectionNode) and bool(node.flow_style)
        if not new or self._in_brackets > own:
            self._replace(node, json.dumps(new))
            return
        indent = key.start_mark.column + (self._offset if _is_list(new) else 2)
        block = "\n" + "\n".join(self._lines(new, indent))
        if node.start_mark.index == node.end_mark.index:
            self._put(self._line_end(key.end_mark.index), block)
        else:
            start = node.start_mark.index
            while self._text[start - 1] == " ":
                start -= 1
            self._edits.append((start, node.end_mark.index, 0, block))

    def _scalar(self, node: yaml.Node, new: Any) -> None:
        style = getattr(node, "style", None)
        if isinstance(new, str) and style == "'" and "\n" not in new:
            self._replace(node, "'" + new.replace("'", "''") + "'")
        elif isinstance(new, str) and (style == '"' or self._in_brackets):
            self._replace(node, json.dumps(new, ensure_ascii=False))
        else:
            self._replace(node, _dumped(new)[0])

    def _replace(self, node: yaml.Node, new: str) -> None:
        if node.start_mark.index == node.end_mark.index:
            raise CannotChange(f"line {node.start_mark.line + 1}: an empty value is not replaced")
        self._edits.append((node.start_mark.index, self._end(node), 0, new))

    def _put(self, index: int, new: str) -> None:
        # Several at one place stay in the order in which they came.
        self._edits.append((index, index, len(self._edits), new))

    def _cut(self, start: int, end: int) -> None:
        """Take out whole lines, with the line break before them: what is put behind them stays."""
        start = self._text.rfind("\n", 0, start)
        end = self._line_end(end)
        if start < 0:
            self._edits.append((0, min(end + 1, len(self._text)), 0, ""))
        else:
            self._edits.append((start, end, 0, ""))

    def _lines(self, new: Any, column: int) -> list[str]:
        """Return the lines of a block collection that begins at a column."""
        if _is_list(new):
            lines = []
            for item in new:
                first, *rest = _dumped(item)
                lines += [f"- {first}", *(f"  {line}" for line in rest)]
        else:
            lines = []
            for key, child in new.items():
                if child and (_is_list(child) or isinstance(child, Mapping)):
                    offset = self._offset if _is_list(child) else 2
                    lines += [f"{key}:", *self._lines(child, offset)]
                else:
                    lines += [f"{key}: {_dumped(child)[0]}"]
        return [f"{' ' * column}{line}" if line else line for line in lines]

    def _end(self, node: yaml.Node, key: yaml.Node | None = None) -> int:
        """Return where the last character of a node's content ends, comments left out."""
        if isinstance(node, yaml.ScalarNode):
            if node.start_mark.index == node.end_mark.index and key is not None:
                return int(key.end_mark.index) + 1
            text = self._text[node.start_mark.index : node.end_mark.index]
            return int(node.start_mark.index) + len(text.rstrip())
        assert isinstance(node, yaml.CollectionNode)  # noqa: S101 - there is no other kind
        if node.flow_style or not node.value:
            return int(node.end_mark.index)
        if isinstance(node, yaml.MappingNode):
            last_key, last = node.value[-1]
            return self._end(last, last_key)
        return self._end(node.value[-1])

    def _line_end(self, index: int) -> int:
        end = self._text.find("\n", index)
        return len(self._text) if end < 0 else end


def _is_list(thing: Any) -> bool:
    return isinstance(thing, list | tuple)


def _identities(items: Sequence[Any]) -> list[str]:
    """Return what tells which item is which: Kubernetes merges by `name`; else all of it."""
    return [
        f"{_NAMED}{item['name']}"
        if isinstance(item, Mapping) and "name" in item
        else json.dumps(item, sort_keys=True, default=str)
        for item in items
    ]


def _dumped(thing: Any) -> list[str]:
    text = yaml.safe_dump(thing, sort_keys=False, width=_ENDLESS, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").split("\n")


def _sequence_offset(text: str) -> int:
    """Return how far the dashes of lists are from their keys in this document: 0 or 2."""
    found = re.search(
        r"^( *)(?:- )*[^\s#-][^\n]*:[ \t]*(?:#.*)?\n(?: *(?:#.*)?\n)*( *)- ", text, re.MULTILINE
    )
    if found is None:
        return 2
    return 0 if len(found[2]) <= len(found[1]) else 2

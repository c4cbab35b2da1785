"""Changing what a YAML text says, and nothing else of it."""

import contextlib
import copy

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.patch.yamltext import CannotChange, Part, read, rewrite, split

TEXT = """\
# the engine
spec:
    # why
    env:   # variables
    # first
    - name: A
      value: "1"   # one
    - {name: B, value: '2'}
    # about ports

    # more about ports
    ports: []
    args: ["--a", "b"]
    empty:
    text: |
      hello
      world

    # the end
"""


def changed(change) -> str:
    wanted = copy.deepcopy(read(TEXT))
    change(wanted["spec"])
    text = rewrite(TEXT, wanted)
    assert read(text) == wanted
    assert rewrite(text, wanted) == text
    return text


def lines_that_differ(text: str) -> tuple[list[str], list[str]]:
    old, new = TEXT.splitlines(), text.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


def test_a_text_that_says_it_already_is_left_alone():
    assert changed(lambda _: None) == TEXT


@pytest.mark.parametrize(
    ("change", "gone", "new"),
    [
        (lambda s: s["env"][0].update(value='x"'), ['value: "1"   # one'],
         [r'value: "x\""   # one']),
        (lambda s: s["env"][1].update(value="it's"), ["- {name: B, value: '2'}"],
         ["- {name: B, value: 'it''s'}"]),
        (lambda s: s["env"][1].update(more=3), ["- {name: B, value: '2'}"],
         ["- {name: B, value: '2', \"more\": 3}"]),
        (lambda s: s["args"].extend(["--c"]), ['args: ["--a", "b"]'],
         ['args: ["--a", "b", "--c"]']),
        (lambda s: s["args"].insert(0, "--c"), ['args: ["--a", "b"]'],
         ['args: ["--c", "--a", "b"]']),
        (lambda s: s.update(empty=["x"]), [], ["- x"]),
        (lambda s: s.update(ports=[{"port": 80}]), ["ports: []"], ["ports:", "- port: 80"]),
        (lambda s: s.update(text="one line"), ["text: |", "hello", "world"], ["text: one line"]),
        (lambda s: s.pop("args"), ['args: ["--a", "b"]'], []),
        (lambda s: s["env"].pop(0), ["- name: A", 'value: "1"   # one'], []),
    ],
)  # fmt: skip
def test_only_the_lines_that_say_it_change(change, gone: list[str], new: list[str]):
    old_lines, new_lines = lines_that_differ(changed(change))
    assert [line.strip() for line in old_lines] == gone
    assert [line.strip() for line in new_lines] == new


def test_new_items_stand_behind_the_one_before_and_before_comments_on_what_follows():
    text = changed(lambda s: s["env"].extend([{"name": "C", "value": "3"}, {"name": "D"}]))
    assert (
        """\
    - {name: B, value: '2'}
    - name: C
      value: '3'
    - name: D
    # about ports
"""
        in text
    )


def test_an_item_at_the_front_stands_before_comments_on_the_first():
    text = changed(lambda s: s["env"].insert(0, {"name": "C"}))
    assert "    env:   # variables\n    - name: C\n    # first\n" in text


def test_new_keys_stand_at_the_end_of_their_mapping_before_later_comments():
    text = changed(lambda s: s.update(volumes=[{"name": "v", "claim": {"name": "c"}}]))
    assert "      world\n    volumes:\n    - name: v\n      claim:\n        name: c\n" in text
    assert text.endswith("\n\n    # the end\n")


def test_lists_are_indented_as_others_of_the_document_are():
    indented = "a:\n  - 1\n"
    assert rewrite(indented, {"a": [1], "b": [2]}) == "a:\n  - 1\nb:\n  - 2\n"
    level = "a:\n- 1\n"
    assert rewrite(level, {"a": [1], "b": [2]}) == "a:\n- 1\nb:\n- 2\n"


def test_a_text_without_a_last_line_break_is_changed_too():
    assert rewrite("a: 1", {"a": 1, "b": 2}) == "a: 1\nb: 2"
    assert rewrite("a: 1", {"a": 2}) == "a: 2"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a: &x [1]\nb: *x\n", {"a": [1, 2], "b": [1]}),
        ("b: [1, # one\n 2]\n", {"b": [2]}),
        ("b: {c: 1, d: 2}\n", {"b": {"c": 1}}),
        ("", {"a": 1}),
        ("- - 1\n", [[0, 1]]),
    ],
)
def test_what_its_form_does_not_let_in_is_refused_and_never_written_wrong(text: str, wanted):
    with pytest.raises(CannotChange):
        rewrite(text, wanted)


def test_what_is_no_yaml_is_told_with_its_line():
    with pytest.raises(CannotChange, match="line 2"):
        read("a: 1\nb: {{ .Values.b }}x: 2\n")


def test_documents_are_found_and_nothing_between_them_is_lost():
    stream = "# head\n---\na: |\n  x\n  --- no\n--- # second\nb: 1\n---\n"
    assert split(stream) == [
        Part("", "# head\n", 1),
        Part("---\n", "a: |\n  x\n  --- no\n", 3),
        Part("--- # second\n", "b: 1\n", 7),
        Part("---\n", "", 9),
    ]


words = st.text("abc: #'\"-{}[]\n$", max_size=6) | st.sampled_from(["yes", "1", "null", "~", "é"])
scalars = words | st.integers(-3, 3) | st.booleans() | st.none()
keys = st.sampled_from(["a", "b", "c", "name", "d-e"])
things = st.recursive(
    scalars, lambda t: st.lists(t, max_size=3) | st.dictionaries(keys, t, max_size=3), max_leaves=12
)


@given(
    st.dictionaries(keys, things, min_size=1, max_size=4),
    st.dictionaries(keys, things, min_size=1, max_size=4),
    st.booleans(),
)
@settings(deadline=None)  # a machine that is busy takes its time
def test_it_says_what_was_wanted_or_refuses(old: dict, new: dict, flow: bool):
    text = yaml.safe_dump(old, sort_keys=False, default_flow_style=flow or None)
    with contextlib.suppress(CannotChange):
        assert read(rewrite(text, new)) == new


@given(st.text("a: -#[]{}'\"|\n&*!%", max_size=40))
def test_any_text_is_read_or_refused(text: str):
    try:
        said = read(text)
    except CannotChange:
        return
    assert rewrite(text, said) == text

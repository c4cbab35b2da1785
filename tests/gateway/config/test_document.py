from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.config import ConfigError
from gateway.config.document import parse, shown_value


def value_of(text: str) -> object:
    document = parse(text, "gateway.yaml", {})
    assert not document.findings
    return document.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("off", "off"),
        ("Yes", "Yes"),
        ("true", True),
        ("FALSE", False),
        ("70e-6", 70e-6),
        ("1.", 1.0),
        (".5", 0.5),
        ("-3", -3),
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2026-11-29", "2026-11-29"),
        ("~", None),
        ("'null'", "null"),
        ('"7"', "7"),
        ("-.inf", float("-inf")),
    ],
)
def test_types_are_those_of_yaml_1_2(text: str, expected: object) -> None:
    assert value_of(text) == expected
    assert type(value_of(text)) is type(expected)


def test_keys_are_text_as_written() -> None:
    assert value_of("{1: a, true: b, null: c, $HOME: d}") == {
        "1": "a",
        "true": "b",
        "null": "c",
        "$HOME": "d",
    }


def test_a_merge_fills_in_what_the_mapping_does_not_say() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 3}\nd: {<<: *b}"
    document = value_of(text)
    assert isinstance(document, dict)
    assert document["c"] == {"x": 3, "y": 1, "z": 2}
    assert document["d"] == {"y": 2, "z": 2}


def test_aliases_of_aliases_are_read_once_each() -> None:
    # 2**60 values if they were written out
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)]
    lines += ["m0: &m0 {x: 1}"]
    lines += [f"m{i}: &m{i} {{<<: [*m{i - 1}, *m{i - 1}]}}" for i in range(1, 60)]
    document = value_of("\n".join(lines))
    assert isinstance(document, dict)
    assert document["m59"] == {"x": 1}


# The deep nesting alone takes most of a second.
@settings(deadline=None)
@given(st.text() | st.text(alphabet="{}[]:-&*!<$|> \n\tax1'\""))
@example("a: &a {<<: *a}")
@example("{<<: &a {<<: *a}}")
@example("&a [*a]")
@example("[" * 2000)
@example("1" * 5000)
@example("%YAML 3.0\n---\na: 1")
@example('{"\\ud800": 1, "\\ud800": 2}')
def test_any_text_is_a_document_or_a_config_error(text: str) -> None:
    try:
        document = parse(text, "gateway.yaml", {})
    except ConfigError as error:
        problems = list(error.problems)
    else:
        problems = [document.problem(finding) for finding in document.findings]
    for problem in problems:
        line = int(problem.source.removeprefix("gateway.yaml:"))
        assert 1 <= line <= len(text.splitlines()) + 1
        str(problem).encode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "nothing"),
        (True, "true"),
        (0.8, "0.8"),
        ([1], "a list"),
        ("a\nb", "'a\\nb'"),
        ("x" * 100, f"'{'x' * 60}...'"),
        ("redis://:pw@host/0?key=pw", "'redis://***@host/0?***'"),
    ],
)
def test_a_value_in_a_message_is_short_and_without_passwords(value: object, expected: str) -> None:
    assert shown_value(value) == expected

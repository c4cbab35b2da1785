"""Long JSON is read in pieces, and comes out as Python's json reads it whole."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway.prompt.json as reading
from gateway.prompt.json import read_json

TEXTS = st.text(st.sampled_from('ab "\\/\n\u00e9\u4f60\U0001f600\ud83d\ude00\x7f'), max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)
NOT_PLAIN = [
    b'{"a": 1, "b": "x x x", "a": {"c": 2, "c": 3}}',
    b'{"a": NaN, "b": [Infinity, -Infinity, 1e999, -0, -0.0, 1E5]}',
    b'{"a": "\\ud83d \\ude00", "b": "\\ud83d\\ude00", "c": "\\ud800"}',
    b"\xef\xbb\xbf[1, 2, 3]",
    '{"a": "x y z"}'.encode("utf-16"),
    b'{"a": "\xed\xa0\x80 x"}',
    b'  {"a"  : [ "x y" , 12345678901234567890123 ] }  ',
    b'["' + b"\\u0041 " * 40 + b'"]',
    b'"a lone text of some words"',
    b"12345678901234567890",
]
NOT_JSON = [
    b'{"a": "x',
    b'{"a": "x \n y z"}',
    b'{"a": "x \\q y z"}',
    b'{"a": 01, "b": "x y"}',
    b"[1, 2, 3,]",
    b'{"a": "x y z"} x',
    b'{"a": "x \xff y"}',
    b"nothing of this",
]


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    monkeypatch.setattr(reading, "PIECE_BYTES", 4)
    monkeypatch.setattr(reading, "TEXT_BYTES", 4)


def outcome(read, body):
    try:
        return json.dumps(read(body))
    except (ValueError, RecursionError) as error:
        return "refused" if isinstance(error, ValueError) else "too deep"


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_any_value_reads_as_json_reads_it(value, ascii_only, indent):
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode(errors="surrogatepass")
    assert outcome(read_json, body) == outcome(json.loads, body)


@pytest.mark.parametrize("body", NOT_PLAIN)
def test_what_only_json_takes_is_taken(body):
    assert outcome(read_json, body) == outcome(json.loads, body) != "refused"


@pytest.mark.parametrize("body", NOT_JSON)
def test_what_json_refuses_is_refused(body):
    assert outcome(read_json, body) == outcome(json.loads, body) == "refused"


def test_what_is_nested_deeply_reads_as_json_reads_it():
    body = b'[ "x",' * 400 + b'"x y"' + b"]" * 400
    assert outcome(read_json, body) == outcome(json.loads, body)
    body = b"[" * 100_000 + b"]" * 100_000
    assert outcome(read_json, body) == outcome(json.loads, body) == "too deep"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("abcdefghijklmnop", ["abcde", "fghi", "jklm", "nop"]),
        ("\u4f60\u597d\u4e16\u754c!", ["\u4f60\u597d", "\u4e16\u754c", "!"]),
        (r"\u4f60\u597d\u4e16", [r"\u4f60", r"\u597d", r"\u4e16"]),
        (r"\ud83d\ude00\ud83d\ude00x", [r"\ud83d\ude00", r"\ud83d\ude00", "x"]),
        (r"\n\n\n\n\n\n", [r"\n\n", r"\n\n", r"\n\n"]),
        (r"abc\u4f60defghijk", [r"abc\u4f60", "defg", "hijk"]),
        (r"abc\ud83d\ude00defgh", [r"abc\ud83d\ude00", "defg", "h"]),
        (r"abc\\u4f60", [r"abc\\u4f60"]),
        ("\\" * 16, ["\\" * 16]),
    ],
)
def test_a_text_is_cut_between_two_characters_only(text, pieces, monkeypatch):
    seen = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: seen.append(text[1:-1]) or loads(text))
    quoted = f'"{text}"'
    assert reading._text(memoryview(quoted.encode())) == loads(quoted)
    assert seen == pieces


@given(
    st.text(st.sampled_from('a\\"\n\u00e9\u4f60\U0001f600\ud83d\ude00 '), min_size=1, max_size=60),
    st.booleans(),
)
def test_any_text_reads_as_json_reads_it(text, ascii_only):
    body = json.dumps(text, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    assert outcome(lambda quoted: reading._text(memoryview(quoted)), body) == outcome(
        json.loads, body
    )

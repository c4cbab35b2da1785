"""Every file in tests/data/config/broken is refused with exactly the lines beside it."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

from gateway.config import ConfigError, check_file, load_config

BROKEN = Path(__file__).parents[2] / "data/config/broken"
FILES = sorted(BROKEN.glob("*.yaml"))
ENVIRON = {"PORT_AS_TEXT": "eighty", "PORT": "8080", "EMPTY": "", "SECRET": "canary"}


@pytest.fixture(autouse=True)
def _in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BROKEN)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_is_refused_with_file_line_key_and_cure(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(file.name, ENVIRON)

    expected = file.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    assert str(caught.value).splitlines() == expected
    assert [str(problem) for problem in caught.value.problems] == expected


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_message_holds_a_secret(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(file.name, ENVIRON)

    assert "canary" not in repr(caught.value)
    assert caught.value.__cause__ is None  # a cause would print the text that we left out


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_check_prints_the_same_lines_and_returns_2(file: Path) -> None:
    out = StringIO()

    assert check_file(file.name, ENVIRON, out) == 2
    assert out.getvalue() == file.with_suffix(".txt").read_text(encoding="utf-8")


def test_every_expectation_belongs_to_a_file() -> None:
    assert len(FILES) >= 10
    assert {f.stem for f in BROKEN.glob("*.txt")} == {f.stem for f in FILES}


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("absent.yaml", {})

    assert str(caught.value) == (
        "absent.yaml:1: (file): cannot be read: no such file or directory, "
        "give the path of a readable YAML file"
    )


def test_a_folder_in_place_of_a_file() -> None:
    with pytest.raises(ConfigError, match=r"^\.:1: \(file\): cannot be read: is a directory"):
        load_config(".", {})

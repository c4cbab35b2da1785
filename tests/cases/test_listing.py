"""docs/cases.md and the tests are in step: every case has a test, or a reason why it has none."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/cases.md"
ROW = re.compile(r"^\| ([A-Z]\d{3}) \| ([^|]+) \| ([^|]+) \|([^|]*)\|$", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text("utf-8"))
FILES = sorted(HERE.glob("test_*.py"))


def cases_tested_in(file: Path) -> set[str]:
    return {
        found.upper() for found in re.findall(r"def test_([a-z]\d{3})", file.read_text("utf-8"))
    }


@pytest.mark.parametrize(
    ("case", "tests", "note"), [(r[0], r[2], r[3]) for r in ROWS if r[0][0] in "AB"]
)
def test_a_row_names_the_files_that_test_its_case(case: str, tests: str, note: str):
    found = {file.name for file in FILES if case in cases_tested_in(file)}
    named = set(re.findall(r"`(test_\w+\.py)", tests))
    assert named <= found, "a file without a test of this case"
    assert named or note.strip(), "neither a test nor a reason"


def test_every_case_that_is_tested_has_one_row():
    listed = [row[0] for row in ROWS]
    assert len(listed) == len(set(listed))
    areas = {case[0] for case in listed}
    tested = {case for file in FILES for case in cases_tested_in(file)}
    assert {case for case in tested if case[0] in areas} <= set(listed)


def test_areas_a_and_b_are_complete():
    assert sum(row[0][0] in "AB" for row in ROWS) == 47

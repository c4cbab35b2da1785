"""Documents that can be checked by a machine: generated pages, decision records, links."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADRS = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(
            p
            for tree in ("docs", "deploy", "gateway", "routing", "loadtests", "tests")
            for p in (ROOT / tree).rglob("*.md")
        ),
    ]
)
FENCED = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
INLINE_CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_generated_pages_are_up_to_date():
    check = subprocess.run(
        [sys.executable, str(ROOT / "docs/generate.py"), "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stderr


def test_decision_records_are_numbered_without_gaps():
    assert [adr.name[:5] for adr in ADRS] == [f"{n:04}-" for n in range(1, len(ADRS) + 1)]
    assert ADRS


@pytest.mark.parametrize("adr", ADRS, ids=lambda adr: adr.stem)
def test_a_decision_record_has_its_parts_and_is_listed(adr: Path):
    text = adr.read_text("utf-8")
    title = text.partition("\n")[0]
    assert re.fullmatch(rf"# {adr.name[:4]}\. \S.*", title), title
    assert re.search(r"^Status: (proposed|accepted|superseded by \[\d{4}\])", text, re.MULTILINE)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "Context",
        "Decision",
        "Consequences",
        "Evidence",
    ]
    assert f"]({adr.name})" in (ROOT / "docs/adr/README.md").read_text("utf-8")


def anchors(page: Path) -> set[str]:
    """Return the fragments that GitHub makes of the headings of `page`."""
    headings = HEADING.findall(FENCED.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def broken_links(page: Path) -> list[str]:
    """Return the links of `page` to files or headings of this repository that are not there."""
    text = INLINE_CODE.sub("", FENCED.sub("", page.read_text("utf-8")))
    broken = []
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, fragment = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (
            fragment and file.suffix == ".md" and fragment not in anchors(file)
        ):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_inside_the_repository_lead_somewhere(page: Path):
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A b: c\n[ok](#a-b-c) [gone](x.md) [no](#d) `[code](y.md)` [out](https://example.com/z)\n"
    )
    assert broken_links(page) == ["x.md", "#d"]

"""What is committed works anywhere: no address of a package index, no path of one machine."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Put together from parts, so that this file does not hold what it looks for.
FORBIDDEN = tuple(
    "".join(parts)
    for parts in (
        ("/wo", "rk/"),
        ("/tmp/", "boot"),
        ("--index", "-url"),
        ("files.python", "hosted"),
        ("pypi.org/", "simple"),
    )
)
PATTERN = re.compile("|".join(map(re.escape, FORBIDDEN)))
# A real request trace may hold such words in its prompts; it is data that was not written here.
DATA = ("tests/data/",)


def leaks(text: str) -> list[str]:
    return [
        f"{n}: {line[:100]}" for n, line in enumerate(text.splitlines(), 1) if PATTERN.search(line)
    ]


def committed_files() -> list[Path]:
    """Return the files that are tracked or about to be: all that .gitignore does not leave out."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return [ROOT / name for name in listing.stdout.decode().split("\0") if name]


def test_no_committed_text_names_an_index_or_a_path_of_one_machine(require):
    in_checkout = shutil.which("git") is not None and (ROOT / ".git").exists()
    require("a git checkout", in_checkout, "apt-get install git, and clone the repository")
    found = {}
    for file in committed_files():
        name = file.relative_to(ROOT).as_posix()
        if name.startswith(DATA) or not file.is_file():
            continue
        try:
            text = file.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        if lines := leaks(text):
            found[name] = lines
    assert found == {}


@pytest.mark.parametrize("planted", FORBIDDEN)
def test_a_planted_leak_is_found(planted: str):
    assert leaks(f"fine\nsee {planted}x\n") == [f"2: see {planted}x"]


def test_the_build_lock_agrees_with_the_development_lock():
    pinned = re.compile(r"^([a-z0-9.-]+)==(\S+)", re.MULTILINE)
    build = dict(pinned.findall((ROOT / "requirements-build.lock").read_text("utf-8")))
    development = dict(pinned.findall((ROOT / "requirements-dev.lock").read_text("utf-8")))
    assert build
    assert build.items() <= development.items()

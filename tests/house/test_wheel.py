"""The wheel holds the two packages, whole, and nothing else (docs/adr/0010)."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    out = tmp_path_factory.mktemp("wheel")
    build = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stderr
    (wheel,) = out.glob("warmroute-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_its_top_level_names_are_gateway_and_routing(wheel_names: list[str]):
    top_level = {name.split("/")[0] for name in wheel_names}
    assert {name for name in top_level if not name.endswith(".dist-info")} == {"gateway", "routing"}
    assert sum(name.endswith(".dist-info") for name in top_level) == 1


def test_every_file_of_the_packages_is_in_it(wheel_names: list[str]):
    # Scripts, templates and pages are read at run time: one left out fails only in the container.
    files = {
        file.relative_to(ROOT).as_posix()
        for package in ("gateway", "routing")
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert {name for name in wheel_names if ".dist-info/" not in name} == files


def test_it_carries_the_command_and_the_license(wheel_names: list[str]):
    suffixes = ("dist-info/entry_points.txt", "dist-info/licenses/LICENSE")
    for suffix in suffixes:
        assert any(name.endswith(suffix) for name in wheel_names), suffix

"""The files in deploy/policies and the example in the documentation can be used as they are."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest

from gateway.config import check_file, configuration_markdown, load_config
from gateway.config.models import PolicyConfig
from gateway.config.schema import words

FOLDER = Path(__file__).parents[3] / "deploy/policies"
FILES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_loads_without_any_environment(file: Path) -> None:
    load_config(file, {})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_has_nothing_to_be_warned_of_but_tokenizers(file: Path) -> None:
    out = StringIO()
    assert check_file(file, {}, out) == 0
    warnings = [line for line in out.getvalue().splitlines() if ": warning: " in line]
    assert [line for line in warnings if ".tokenizer: " not in line] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_says_when_to_use_it(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert "\n# When to use: " in text


def test_there_is_one_for_each_use() -> None:
    assert {file.stem for file in FILES} >= {
        "agents",
        "baseline_round_robin",
        "batch",
        "canary",
        "chat",
        "hot_prompt",
        "minimal",
        "rag",
        "tenants",
    }


def test_two_measurements_can_run_side_by_side() -> None:
    environ = {"WARMROUTE_PORT": "8081", "WARMROUTE_ADMIN_PORT": "9091"}
    config = load_config(FOLDER / "baseline_round_robin.yaml", environ)
    assert (config.listen.port, config.admin.port) == (8081, 9091)


def test_the_documentation_is_deterministic_and_names_every_policy() -> None:
    text = configuration_markdown()
    assert text == configuration_markdown()
    assert text.endswith("|\n")
    assert [kind for kind in words(PolicyConfig) if f"of kind `{kind}`" not in text] == []
    assert "see below" in text
    assert "PydanticUndefined" not in text


def test_the_documentations_yaml_loads(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", configuration_markdown(), re.DOTALL)
    assert blocks
    for block in blocks:
        file = tmp_path / "gateway.yaml"
        file.write_text(block, encoding="utf-8")
        load_config(file, {})


def test_the_documentation_is_tables_of_four_cells() -> None:
    for line in configuration_markdown().splitlines():
        if line.startswith("| `") and "`reference`" not in line and line.count("|") != 4:
            assert len(re.findall(r"(?<!\\)\|", line)) == 5, line

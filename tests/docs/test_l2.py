"""Every command of docs/l2.md, and of the pool's examples, is one that works."""

import re
import shlex
from pathlib import Path

import pytest

from gateway.cli import _parser, main

ROOT = Path(__file__).parents[2]
PAGES = ("docs/l2.md", "deploy/hyperpod/README.md", "deploy/curvine/README.md")
BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
# Programs that need a cluster; tests/deploy holds their files against schemas.
ELSEWHERE = ("kubectl", "helm", "docker", "curl")

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: engines}
spec:
  selector: {matchLabels: {app: engines}}
  template:
    metadata: {labels: {app: engines}}
    spec:
      containers:
        - {name: vllm, image: lmcache/vllm-openai, args: [/opt/ml/model]}
"""


def commands(page: str) -> list[str]:
    text = (ROOT / page).read_text("utf-8")
    lines = "\n".join(BLOCK.findall(text)).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip()]


ALL = [(page, command) for page in PAGES for command in commands(page)]
OURS = [(page, command) for page, command in ALL if command.startswith("warmroute")]


def test_commands_are_ours_or_need_a_cluster():
    assert len(OURS) >= 8
    others = [command for page, command in ALL if (page, command) not in OURS]
    assert all(command.startswith((*ELSEWHERE, "-d ")) for command in others), others


@pytest.mark.parametrize(("page", "command"), OURS)
def test_the_parser_takes_each_command(page: str, command: str):
    words = shlex.split(command.partition(" > ")[0])[1:]
    given = _parser().parse_args(words)
    assert given.command == words[0]


@pytest.mark.parametrize(("page", "command"), ALL)
def test_files_of_the_repository_that_are_named_are_there(page: str, command: str):
    for word in re.findall(r"deploy/[\w./-]+", command):
        assert (ROOT / word).exists(), word


def test_the_steps_of_the_page_work_in_order(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "engines.yaml").write_text(DEPLOYMENT)
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool/m@1@0@beef@half.data").write_bytes(b"x")
    done = []
    for command in commands("docs/l2.md"):
        # Of the two ways to verify the one without a cluster; of the rounds the first.
        if command.startswith("kubectl"):
            (tmp_path / "live.yaml").write_text("kind: List\nitems: []\n")
            continue
        words = shlex.split(command.replace("l2-janitor /mnt/l2", "l2-janitor pool"))[1:]
        if "--kubeconfig" in words:
            continue
        done.append(main([*words, *(["--once"] if "--interval" in words else [])]))
    # Without a pod there is something to be told.
    assert done == [0, 0, 1, 0, 0]
    told = capsys.readouterr().out
    assert "claimName: l2-pool" in told
    assert "no pod with app=engines" in told
    assert "1 files of LMCache" in told

"""Area I: two engines that store into one directory at the same time."""

import json
import threading
from pathlib import Path

import pytest
import yaml

from gateway.cli import main
from gateway.l2.file_form import parse_name

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "deploy/hyperpod/policy-l2.yaml"
CHUNKS = [f"m@1@0@{number:x}@half.data" for number in range(32)]
CHUNK_BYTES = b"\1" * 4096


class FsConnector:
    """LMCache's fs connector as far as names and the order of its calls go (0.5.6).

    Args:
        base: The pool.
        extra: LMCACHE_EXTRA_CONFIG, expanded as kubelet does.
        between: Called between writing and renaming.
    """

    def __init__(self, base: Path, extra: dict, between=lambda: None) -> None:
        self._base = base
        self._tmp_dir = extra.get("fs_connector_relative_tmp_dir")
        self._between = between
        if self._tmp_dir is not None:
            (base / self._tmp_dir).mkdir(parents=False, exist_ok=True)

    def put(self, name: str) -> None:
        final = self._base / name
        if self._tmp_dir is None:
            temporary = final.with_suffix(".tmp")
        else:
            temporary = self._base / self._tmp_dir / name
        temporary.write_bytes(CHUNK_BYTES)
        self._between()
        temporary.replace(final)  # os.replace, as there


def extra_of_pod(pod: str) -> dict:
    """What the example's policy gives a pod, after Kyverno and kubelet."""
    spec = yaml.safe_load(POLICY.read_text("utf-8"))["spec"]["rules"][0]["mutate"]
    (engine,) = spec["patchStrategicMerge"]["spec"]["containers"]
    (text,) = (one["value"] for one in engine["env"] if one["name"] == "LMCACHE_EXTRA_CONFIG")
    return json.loads(text.replace(r"\$(POD_NAME)", pod))


def put_at_once(one: FsConnector, other: FsConnector) -> list[OSError]:
    """Let both store all chunks in parallel; return what failed."""
    failed: list[OSError] = []

    def store(engine: FsConnector) -> None:
        for name in CHUNKS:
            try:
                engine.put(name)
            except OSError as error:
                failed.append(error)

    threads = [threading.Thread(target=store, args=(engine,)) for engine in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def test_i152_equal_prompts_at_two_replicas_at_once_are_stored_with_the_examples_setting(
    tmp_path: Path,
):
    # Both have written when either renames: the order that breaks a shared temporary name.
    meeting = threading.Barrier(2, timeout=20)
    engines = [
        FsConnector(tmp_path, extra_of_pod(pod), meeting.wait)
        for pod in ("qwen3-8b-a", "qwen3-8b-b")
    ]
    assert put_at_once(*engines) == []
    stored = sorted(tmp_path.glob("*.data"))
    assert [file.name for file in stored] == sorted(CHUNKS)
    assert {file.read_bytes() for file in stored} == {CHUNK_BYTES}
    assert all(parse_name(file.name) for file in stored)
    assert list(tmp_path.glob("tmp-*/*")) == []


def test_i152_without_it_one_of_the_two_fails(tmp_path: Path):
    meeting = threading.Barrier(2, timeout=20)
    engines = [FsConnector(tmp_path, {}, meeting.wait) for _ in range(2)]
    failed = put_at_once(*engines)
    assert len(failed) >= len(CHUNKS) // 2
    assert all(isinstance(error, FileNotFoundError) for error in failed)


def test_i152_a_janitor_that_works_while_engines_store_takes_nothing_from_them(tmp_path: Path):
    def rounds() -> None:
        told = ["--max-age", "0", "--folders", "0", "--delete"]
        assert main(["l2-janitor", str(tmp_path), *told]) == 0

    engine = FsConnector(tmp_path, extra_of_pod("engines-0"), rounds)
    for chunk in CHUNKS[:3]:
        engine.put(chunk)
    assert sorted(file.name for file in tmp_path.glob("*.data")) == sorted(CHUNKS[:3])


@pytest.mark.parametrize("pod", ["qwen3-8b-7d9f-x2x4z", "engines-0"])
def test_i152_a_directory_for_temporary_files_is_a_pods_own_and_one_level_deep(pod: str):
    directory = extra_of_pod(pod)["fs_connector_relative_tmp_dir"]
    assert directory == f"tmp-{pod}"
    assert "/" not in directory  # the connector makes no parents

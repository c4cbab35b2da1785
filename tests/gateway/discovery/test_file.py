"""Files as people and programs write them: renamed, linked, half written, gone, wrong."""

import gc
import json
import os
import tracemalloc
from itertools import pairwise

import pytest

from gateway.config.discovery import FileDiscoveryConfig
from gateway.config.errors import ConfigError
from gateway.replicas.discovery.base import Found
from gateway.replicas.discovery.file import MAX_FILE_BYTES, FileDiscovery, parse_list
from tests.support.discoveries import SOON_S, following, replace
from tests.support.replicas import until

A, B, C = (Found(f"http://{host}:8000") for host in "abc")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "replicas.yaml"


def discovery(path, interval_s=SOON_S):
    return FileDiscovery(FileDiscoveryConfig(kind="file", path=str(path), interval_s=interval_s))


class Looks:
    """A discovery whose next look comes when the test wants it."""

    def __init__(self, path, monkeypatch):
        self.looks = 0
        self.discovery = discovery(path)
        look = self.discovery._file.look

        def counted():
            self.looks += 1
            return look()

        monkeypatch.setattr(self.discovery._file, "look", counted)

    async def more(self, num=2):
        seen = self.looks
        await until(lambda: self.looks >= seen + num, "further looks at the file")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("- http://a:8000\n- http://b:8000\n", {A, B}),
        ('["http://a:8000", "HTTP://B:8000/"]', {A, B}),
        ("- url: http://a:8000\n  name: engine-0\n", {Found("http://a:8000", "engine-0")}),
        ('[{"url": "http://a:8000", "name": "engine-0"}, "http://b:8000"]',
         {Found("http://a:8000", "engine-0"), B}),
        ("- {url: 'http://[2001:DB8::1]:8000'}", {Found("http://[2001:db8::1]:8000")}),
        ("[]", set()),
        ("# none today\n[]\n", set()),
        ("\ufeff- http://a:8000\r\n- http://b:8000\r\n", {A, B}),
    ],
)  # fmt: skip
def test_addresses_and_mappings_in_yaml_or_json(text, found):
    assert parse_list(text.encode(), "f") == found


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "f:1: (file): is empty, write [] where there are no replicas"),
        (b"\n# nothing\n---\n", "f:1: (file): is empty, write [] where there are no replicas"),
        (b"replicas: []", "f:1: (file): must be a list of replicas, each an address or a mapping"),
        (b"null", "f:1: (file): must be a list of replicas"),
        (b"- http://a:8000\n- http://b:800000\n", "f:2: [1]: must be http://HOST:PORT or https"),
        (b"- http://a:8000\n- http://b:80000\n", "f:2: [1]: must have a port from 1 to 65535"),
        (b"- url: http://a\n  nam: x\n", "f:2: [0].nam: unknown key, did you mean name?"),
        (b"- name: x\n", "f:1: [0].url: required but missing, add `url: http://engine-0:8000`"),
        (b"- http://a\n- 7\n", "f:2: [1]: must be a mapping of keys to values, got 7"),
        (b"- http://a\n-\n", "f:2: [1]: must be a mapping of keys to values"),
        (b"- http://a\n- http://A:80/\n", "f:2: [1]: must be unique, [0] has http://a too"),
        (b"- {url: 'http://a', name: x}\n- {url: 'http://b', name: x}\n",
         "f:2: [1]: must be unique, [0] has x too"),
        (b'["http://a",\n"http://b', "f:2: (file): not YAML"),
        (b"- http://a\n\t- http://b\n", "f:2: (file): a tab begins this line"),
        (b"- http://a\n- \xff\n", "f:2: (file): not UTF-8 text"),
        (b"- ${HOST}\n", "f:1: [0]: "),
        (b"- !!python/name:os.system\n", "f:1: (file): tag !!python/name:os.system is not allowed"),
        (b"[" * 2000, "f:1: (file): nested too deeply"),
        (b"-" * (MAX_FILE_BYTES + 1), "f:1: (file): too large for a list of replicas"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_by_line(content, problem):
    with pytest.raises(ConfigError) as caught:
        parse_list(content, "f")
    assert str(caught.value).startswith(problem)


async def test_the_problem_is_one_line_and_counts_the_others(path):
    path.write_text("- http://a/v1\n- b\n- c\n")
    async with following(discovery(path)) as follower:
        await follower.says("(and 2 more)")
        assert follower.problem.startswith(f"{path}:1: [0]: must end after the port")
        assert "\n" not in follower.problem


async def test_a_rename_counts_at_the_next_look(path, monkeypatch):
    path.write_text("- http://a:8000\n")
    looks = Looks(path, monkeypatch)
    async with following(looks.discovery) as follower:
        await follower.sees({A})
        replace(path, "- http://b:8000\n")
        seen = looks.looks
        await follower.sees({B})
        assert looks.looks <= seen + 2  # one may have been on its way


async def test_a_file_that_grows_in_place_is_not_read_half(path):
    """The part is valid YAML, of one replica at a wrong port: it must never be in force."""
    path.write_text("- http://a:8000\n")
    async with following(discovery(path, interval_s=0.2)) as follower:
        await follower.sees({A})
        with path.open("w") as stream:
            stream.write("- http://a:8000\n- http://b:80")
            stream.flush()
            stream.write("00\n- http://c:8000\n")
        await follower.sees({A, B, C})
        assert follower.seen == [{A}, {A, B, C}]


async def test_a_half_written_file_keeps_the_last_good_list(path, monkeypatch):
    path.write_text("- http://a:8000\n")
    looks = Looks(path, monkeypatch)
    async with following(looks.discovery) as follower:
        await follower.sees({A})
        for half in ("", "- http://a:8000\n- {url: 'http://b"):
            path.write_text(half)
            await looks.more(3)
            assert follower.problem is not None
            assert follower.seen == [{A}]
        path.write_text("- http://a:8000\n- {url: 'http://b:8000'}\n")
        await follower.sees({A, B})
        assert follower.problem is None


async def test_a_write_in_place_with_the_same_size_and_time_is_seen(path):
    path.write_text("- http://a:8000\n")
    before = path.stat()
    async with following(discovery(path)) as follower:
        await follower.sees({A})
        path.write_text("- http://b:8000\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        await follower.sees({B})


async def test_a_file_that_is_gone_for_a_moment(path):
    path.write_text("- http://a:8000\n")
    away = path.with_suffix(".away")
    async with following(discovery(path)) as follower:
        await follower.sees({A})
        path.rename(away)
        await follower.says("replicas.yaml: cannot be read: no such file or directory")
        assert follower.latest == {A}
        away.rename(path)  # the same inode, time and content
        await follower.is_well()
        assert follower.seen == [{A}]


async def test_a_file_that_is_a_folder_heals(path):
    path.mkdir()
    async with following(discovery(path)) as follower:
        await follower.says("cannot be read: is a directory")
        path.rmdir()
        path.write_text("- http://a:8000\n")
        await follower.sees({A})
        await follower.is_well()


async def test_a_configmap_swaps_its_folder(tmp_path):
    """As the kubelet does: replicas.yaml -> ..data/replicas.yaml, ..data -> a dated folder."""
    swap(tmp_path, "..2026_01", "- http://a:8000\n")
    path = tmp_path / "replicas.yaml"
    path.symlink_to("..data/replicas.yaml")
    async with following(discovery(path)) as follower:
        await follower.sees({A})
        swap(tmp_path, "..2026_02", "- http://b:8000\n")
        await follower.sees({B})
        swap(tmp_path, "..2026_03", "- http://b:80")
        swap(tmp_path, "..2026_04", "- http://c:8000\n")
        await follower.sees({C})
        assert follower.problem is None


def swap(folder, name, text):
    (folder / name).mkdir()
    (folder / name / "replicas.yaml").write_text(text)
    (folder / "..data_tmp").symlink_to(name)
    (folder / "..data_tmp").rename(folder / "..data")


async def test_10_000_rewrites_leave_nothing_behind(path):
    """Far more rewrites than looks: each look sees one whole state, and memory stays flat."""
    state = [json.dumps([f"http://a:{1000 + i}" for i in range(first, 5)]) for first in range(5)]
    path.write_text(state[0])
    async with following(discovery(path, interval_s=0.001)) as follower:

        async def rewrite(times):
            for i in range(times):
                replace(path, state[i % 5])
                if i % 49 == 0:
                    await follower.sees(parse_list(state[i % 5].encode(), "f"))

        def kept_bytes():
            del follower.seen[:-1]
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        await rewrite(400)
        open_before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only
        tracemalloc.start()
        kept = [kept_bytes()]
        for _ in range(3):
            await rewrite(3_200)
            kept.append(kept_bytes())
        tracemalloc.stop()
        assert len(os.listdir("/proc/self/fd")) <= open_before  # noqa: PTH208 - names only
        # What leaks does so each time; other threads of this process take memory now and then.
        assert min(after - before for before, after in pairwise(kept)) < 60_000
        replace(path, "- http://b:8000\n")
        await follower.sees({B})
        assert follower.problem is None

"""`warmroute l2-janitor` on real directories, and on mounts that hang."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import prometheus_client
import pytest

from gateway.cli import main
from gateway.l2.janitor import Janitor
from gateway.l2.janitor_directory import Refused, open_directory
from gateway.l2.janitor_loop import Teller
from gateway.l2.janitor_plan import Limits, Space
from gateway.l2.janitor_progress import Progress
from gateway.l2.janitor_report import progress_text
from gateway.l2.janitor_watch import Keeper, Patience, pace
from gateway.observability.janitor_metrics import JanitorMetrics

HOUR = 3600
DEADLINE_S = 20.0


def put(pool: Path, number: int, *, hours: float = 0, num_bytes: int = 1000) -> Path:
    file = pool / f"-SEP-opt-SEP-ml-SEP-model@1@0@{number:x}@bfloat16.data"
    # Put there whole: a janitor that runs must not see it as one that was used just now.
    new = pool.parent / "new"
    new.write_bytes(b"\0" * num_bytes)
    used = time.time() - hours * HOUR
    os.utime(new, (used, used))
    return new.rename(file)


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Ten chunks of 1,000 bytes, used 1 to 10 hours ago, and what else may lie there."""
    folder = tmp_path / "pool"
    folder.mkdir()
    for number in range(1, 11):
        put(folder, number, hours=number)
    (folder / "tmp-pod-a").mkdir()
    put(folder / "tmp-pod-a", 99, hours=99)
    (folder / "-SEP-m@1@0@63@half.tmp").write_bytes(b"x")
    (folder / "README").write_text("not ours")
    (folder / "m@1@0@feed@half.data").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("precious")
    return folder


def janitor(capsys, *arguments: object) -> tuple[int, str, str]:
    status = main(["l2-janitor", *map(str, arguments)])
    told = capsys.readouterr()
    return status, told.out, told.err


def numbers(pool: Path) -> set[int]:
    return {int(file.name.split("@")[3], 16) for file in pool.glob("-SEP-opt*.data")}


def test_without_delete_it_only_says_what_it_would_do(pool: Path, capsys):
    before = sorted(pool.rglob("*"))
    status, out, _ = janitor(capsys, pool, "--max-bytes", "5k", "--grace", 0)
    assert status == 0
    assert "10 files of LMCache, 10.0 kB" in out
    assert "WOULD DELETE    about 6 files, 6.0 kB; --delete does it" in out
    assert "over the limit  by 5.0 kB" in out
    assert sorted(pool.rglob("*")) == before


def test_with_delete_the_oldest_go_and_nothing_else(pool: Path, tmp_path: Path, capsys):
    status, out, _ = janitor(capsys, pool, "--max-bytes", "5k", "--grace", 0, "--delete")
    assert status == 0
    assert "deleted         6 files, 6.0 kB" in out
    assert numbers(pool) == {1, 2, 3, 4}
    assert (tmp_path / "elsewhere").read_text() == "precious"
    assert (pool / "m@1@0@feed@half.data").is_symlink()
    assert len(list((pool / "tmp-pod-a").iterdir())) == 1
    assert (pool / "README").exists()
    assert (pool / "-SEP-m@1@0@63@half.tmp").exists()


def test_what_dead_writers_left_goes_with_its_directory(pool: Path, capsys):
    (pool / "tmp-pod-b").mkdir()
    (pool / "tmp-pod-c").symlink_to(pool / "tmp-pod-a")
    (pool / "tmp-pod-a/notes").write_text("not ours")
    arguments = ("--max-bytes", "1G", "--grace", 0, "--leftover", 0, "--folders", 0)
    status, out, _ = janitor(capsys, pool, *arguments)
    assert status == 0
    assert "WOULD DELETE    2 leftovers, 1 empty directories; --delete does it" in out
    assert len(list(pool.glob("tmp-pod-*"))) == 3
    status, out, _ = janitor(capsys, pool, *arguments, "--delete", "--json")
    told = json.loads(out)
    assert status == 0
    assert (told["deleted_leftover_files"], told["deleted_leftover_bytes"]) == (2, 1001)
    assert (told["deleted_folders"], told["deleted_files"]) == (1, 0)
    assert sorted(file.name for file in (pool / "tmp-pod-a").iterdir()) == ["notes"]
    assert sorted(file.name for file in pool.glob("tmp-pod-*")) == ["tmp-pod-a", "tmp-pod-c"]
    assert len(numbers(pool)) == 10


def test_files_that_were_named_just_now_are_left_alone(pool: Path, capsys):
    status, out, _ = janitor(capsys, pool, "--max-age", "1s", "--max-bytes", "5k", "--delete")
    assert status == 1
    assert "10 younger than 10.0 min" in out
    assert "over the limit  by 5.0 kB: the rest is too young" in out
    assert len(numbers(pool)) == 10


def test_a_program_gets_an_object(pool: Path, capsys):
    arguments = ("--max-age", "8.5h", "--grace", 0, "--delete", "--json")
    status, out, _ = janitor(capsys, pool, *arguments)
    told = json.loads(out)
    assert status == 0
    assert told["path"] == str(pool)
    assert (told["files"], told["bytes"]) == (10, 10_000)
    assert (told["deleted_files"], told["deleted_bytes"], told["dry_run"]) == (2, 2000, False)
    assert (told["temporary_files"], told["leftover_files"], told["other_files"]) == (2, 0, 1)
    assert told["size_bytes"] > told["free_bytes"] > 0
    assert 9.5 * HOUR < told["oldest_s"] <= 10 * HOUR


def test_a_directory_whose_name_is_no_utf8_is_kept_and_told(tmp_path: Path):
    pool = tmp_path / os.fsdecode(b"pool\xff")
    pool.mkdir()
    put(pool, 1, hours=5)
    janitor = Janitor(Limits(max_age_s=HOUR, grace_s=0), time.time, lambda: None, delete=True)
    keeper = Keeper(str(pool), janitor, open_directory, Patience(30, 60, tick_s=0.01))
    metrics, out = JanitorMetrics(), io.TextIOWrapper(io.BytesIO(), "utf-8")
    Teller(out, io.StringIO(), metrics, as_json=False, bar=False).watch(keeper)
    assert numbers(pool) == set()
    assert f"{tmp_path}/pool\\xff: 1 files of LMCache" in out.buffer.getvalue().decode()
    page = prometheus_client.generate_latest(metrics.registry).decode()
    assert f'files_total{{path="{tmp_path}/pool\\\\xff"}} 1.0' in page


def test_several_directories_each_have_the_limits(pool: Path, tmp_path: Path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    put(other, 1, hours=50)
    janitor(capsys, pool, other, "--max-bytes", "5k", "--grace", 0, "--delete")
    assert len(numbers(pool)) == 4
    assert numbers(other) == {1}


def test_what_is_not_for_a_janitor_is_refused(pool: Path, tmp_path: Path, capsys):
    link = tmp_path / "link"
    link.symlink_to(pool)
    papers = tmp_path / "papers"
    papers.mkdir()
    (papers / "thesis.tex").write_text("x")
    for path, why in (
        ("/", "the root of the file system"),
        (tmp_path / ".." / ".." / ".." / ".." / ".." / "..", "the root of the file system"),
        (link, "no directory; of a link give what it leads to"),
        (pool / "README", "no directory"),
        (tmp_path / "nowhere", "is not there"),
        (papers, "none with a name of LMCache's"),
    ):
        status, out, err = janitor(capsys, path, "--max-bytes", "5k", "--grace", 0, "--delete")
        assert (status, out) == (2, ""), path
        assert why in err
    assert len(numbers(pool)) == 10


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--delete"], "--delete needs a limit"),
        (["--max-bytes", "5X"], "'5X' is no size"),
        (["--max-age", "7 weeks"], "'7 weeks' is no time"),
        (["--min-free", "200%"], "'200%' is no share"),
        (["--low", "1.5"], "not in (0, 1]"),
        (["--rate", "0"], "not at least 1"),
        (["--interval", "0"], "'0' is no time above 0"),
        (["--give-up", "0s"], "'0s' is no time above 0"),
        (["--metrics-port", "65536"], "'65536' is no port"),
    ],
)
def test_a_wrong_command_is_told(arguments: list[str], why: str, tmp_path: Path, capsys):
    try:
        status = main(["l2-janitor", str(tmp_path), *arguments])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert why in capsys.readouterr().err


def test_a_real_directory_of_50_000_files(tmp_path: Path, capsys):
    # Empty, so that it costs inodes only; by age alone.
    for number in range(50_000):
        (tmp_path / f"m@1@0@{number * 0x9E3779B97F4A7C15 % 2**64:x}@half.data").touch()
    half = time.time() - 10 * HOUR
    for number, file in enumerate(os.scandir(tmp_path)):
        if number % 2:
            os.utime(file.path, (half, half))
    arguments = ("--max-age", "5h", "--grace", 0, "--delete", "--rate", 1e9, "--json")
    status, out, _ = janitor(capsys, tmp_path, *arguments)
    assert status == 0
    assert json.loads(out)["deleted_files"] == 25_000
    assert sum(1 for _ in os.scandir(tmp_path)) == 25_000


def test_it_repeats_serves_metrics_and_ends_with_a_signal(pool: Path):
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", "l2-janitor", pool, "--max-bytes", "5k",
         "--grace", "0", "--delete", "--interval", "0.1", "--metrics-port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert json.loads(process.stdout.readline())["deleted_files"] == 6
        put(pool, 77, hours=20)
        put(pool, 78, hours=20)
        told = {"deleted_files": 0}
        while not told["deleted_files"]:
            told = json.loads(process.stdout.readline())
        assert told["deleted_files"] == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.communicate()
    assert numbers(pool) == {1, 2, 3, 4}


def test_a_port_for_metrics_that_is_taken_is_told(pool: Path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = janitor(capsys, pool, "--max-bytes", "5k", "--metrics-port", port)
    assert (status, out) == (1, "")
    assert "cannot serve metrics: Address already in use" in err


def test_metrics_tell_what_was_found_and_done(pool: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", SERVING, str(pool)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(process.stdout.readline())
        page = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    finally:
        process.kill()
        process.communicate()
    told = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    of_pool = f'path="{pool}"'
    assert told[f'warmroute_l2_janitor_files{{kind="lmcache",{of_pool}}}'] == "10.0"
    assert told[f'warmroute_l2_janitor_bytes{{kind="lmcache",{of_pool}}}'] == "10000.0"
    assert told[f'warmroute_l2_janitor_files{{kind="temporary",{of_pool}}}'] == "2.0"
    assert told[f'warmroute_l2_janitor_files{{kind="leftover",{of_pool}}}'] == "0.0"
    assert told[f"warmroute_l2_janitor_deleted_files_total{{{of_pool}}}"] == "6.0"
    assert told[f"warmroute_l2_janitor_deleted_bytes_total{{{of_pool}}}"] == "6000.0"
    assert told[f"warmroute_l2_janitor_stalled{{{of_pool}}}"] == "0.0"
    assert told[f"warmroute_l2_janitor_over_bytes{{{of_pool}}}"] == "0.0"
    assert told["warmroute_l2_janitor_dry_run"] == "0.0"


# One round by the loop's own parts, with a port that the test can learn.
SERVING = """
import sys, time
from gateway.l2.janitor import Janitor
from gateway.l2.janitor_directory import open_directory
from gateway.l2.janitor_loop import Teller
from gateway.l2.janitor_plan import Limits
from gateway.l2.janitor_watch import Keeper, Patience
from gateway.observability.janitor_metrics import JanitorMetrics, served

janitor = Janitor(Limits(max_bytes=5000, grace_s=0), time.time, lambda: None, delete=True)
keeper = Keeper(sys.argv[1], janitor, open_directory, Patience(30, 60))
metrics = JanitorMetrics()
metrics.dry_run.set(False)
Teller(sys.stderr, sys.stderr, metrics, as_json=False, bar=False).watch(keeper)
with served(metrics, "127.0.0.1", 0) as port:
    print(port, flush=True)
    time.sleep(60)
"""


# Mounts that hang.


class Hanging:
    """A directory whose calls block until they are let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.opened = 0

    @contextmanager
    def opening(self, path: str):
        self.opened += 1
        self.let_go.wait()
        yield self

    def entries(self):
        return iter(())

    def space(self) -> Space:
        return Space(0, 0)


def keeper_of(directory: Hanging, *, stall_s: float, give_up_s: float) -> Keeper:
    janitor = Janitor(Limits(max_bytes=0), time.time, lambda: None, delete=True)
    patience = Patience(stall_s, give_up_s, tick_s=0.01)
    return Keeper("/mnt/pool", janitor, directory.opening, patience)


def test_a_mount_that_hangs_is_told_given_up_and_costs_one_thread():
    mount = Hanging()
    keeper = keeper_of(mount, stall_s=0.3, give_up_s=0.6)
    try:
        silent = list(keeper.watch())
        assert silent[0] == 0.0
        assert silent[-1] >= 0.3
        assert keeper.outcome.hung_s >= 0.6
        # The next rounds wait for the same call, and no longer than it takes to look.
        for _ in range(3):
            list(keeper.watch())
            assert keeper.outcome.hung_s > 0.6
        assert mount.opened == 1
    finally:
        mount.let_go.set()


def test_a_mount_that_comes_back_finishes_its_round():
    mount = Hanging()
    keeper = keeper_of(mount, stall_s=0.01, give_up_s=60)
    for silent_s in keeper.watch():
        if silent_s:
            mount.let_go.set()
    assert keeper.outcome.round is not None
    list(keeper.watch())
    assert mount.opened == 2


def test_a_stop_does_not_wait_for_a_mount_that_hangs(monkeypatch):
    monkeypatch.setattr("gateway.l2.janitor_watch._STOP_S", 0.01)
    mount = Hanging()
    keeper = keeper_of(mount, stall_s=60, give_up_s=60)
    try:
        for _ in keeper.watch():
            keeper.progress.stop.set()
        assert keeper.outcome == type(keeper.outcome)()
    finally:
        mount.let_go.set()


def test_an_error_of_the_mount_is_a_problem_and_no_crash():
    @contextmanager
    def opening(path: str):
        raise OSError(107, "Transport endpoint is not connected")
        yield

    janitor = Janitor(Limits(), time.time, lambda: None, delete=False)
    keeper = Keeper("/mnt/pool", janitor, opening, Patience(30, 60))
    list(keeper.watch())
    assert keeper.outcome.problem == "Transport endpoint is not connected"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_round_that_a_fault_ends_is_no_success():
    def opening(path: str):
        raise ZeroDivisionError

    janitor = Janitor(Limits(), time.time, lambda: None, delete=False)
    keeper = Keeper("/mnt/pool", janitor, opening, Patience(30, 60))
    list(keeper.watch())
    assert "fault" in keeper.outcome.problem


def test_a_directory_that_is_renamed_is_still_the_one_that_was_opened(pool: Path, tmp_path: Path):
    with open_directory(str(pool)) as directory:
        pool.rename(tmp_path / "moved")
        pool.mkdir()
        kept = put(pool, 1)
        assert directory.remove(kept.name)
        assert kept.exists()


def test_a_path_is_not_followed_when_it_is_a_link(pool: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(pool)
    with pytest.raises(Refused), open_directory(str(tmp_path / "link")):
        pass


def test_deletions_are_spread_over_time(monkeypatch):
    stands_still = SimpleNamespace(monotonic=lambda: 100.0)
    monkeypatch.setattr("gateway.l2.janitor_watch.time", stands_still)
    waited: list[float] = []

    class Clockless(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return False

    go = pace(100, Clockless())
    for _ in range(11):
        go()
    # Each call is one hundredth of a second after the one before.
    assert waited == pytest.approx([number / 100 for number in range(1, 11)])


# What a person sees meanwhile.


class Told(io.StringIO):
    """A stream that says when something was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_told = threading.Event()

    def write(self, text: str) -> int:
        self.is_told.set()
        return super().write(text)


def test_a_terminal_gets_a_bar_in_place_and_a_log_gets_none(pool: Path, monkeypatch):
    monkeypatch.setattr("gateway.l2.janitor_loop._BAR_S", 0.0)
    janitor = Janitor(Limits(max_bytes=5000, grace_s=0), time.time, lambda: None, delete=False)
    told = {}
    for bar in (True, False):
        err = Told()

        @contextmanager
        def opening(path: str, err=err, is_told=bar):
            # Until something is told; where nothing is to be, for some ticks.
            assert err.is_told.wait(DEADLINE_S if is_told else 0.1) == is_told
            with open_directory(path) as directory:
                yield directory

        keeper = Keeper(str(pool), janitor, opening, Patience(30, 60, tick_s=0.01))
        Teller(io.StringIO(), err, JanitorMetrics(), as_json=False, bar=bar).watch(keeper)
        told[bar] = err.getvalue()
    assert told[True].startswith(f"\r\x1b[K{pool}: survey, 0 entries")
    assert told[True].endswith("\r\x1b[K")
    assert told[False] == ""


def test_progress_is_a_share_once_the_total_is_known():
    progress = Progress()
    progress.seen = 1200
    assert progress_text("/p", progress) == "/p: survey, 1,200 entries"
    progress.begin("sweep", 2000)
    progress.seen = 500
    assert progress_text("/p", progress) == (
        "/p: sweep [########......................]  25%, 500 entries"
    )

"""The janitor's rounds, on directories that are made up."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.l2.janitor import Janitor
from gateway.l2.janitor_ages import AgeHistogram, Cutoff, bucket_of, place_of, youngest_of
from gateway.l2.janitor_directory import Refused
from gateway.l2.janitor_plan import FileStatus, Limits, Space
from gateway.l2.janitor_progress import Progress, Stopped
from gateway.l2.janitor_report import summary
from gateway.l2.quantities import Share

NOW = 1_000_000_000.0
HOUR = 3600.0


def name(chunk: int, rank: int = 0, world: int = 1) -> str:
    return f"m@{world}@{rank}@{chunk:x}@half.data"


def at(age_s: float, num_bytes: int = 100, **other: object) -> FileStatus:
    """A file that was written so long ago and never read."""
    told = {"written_s": NOW - age_s, "named_s": NOW - age_s, "read_s": NOW - age_s} | other
    return FileStatus(num_bytes=num_bytes, **told)


class Pool(dict):
    """A directory of names and what is known of them.

    `meanwhile` happens to a name right before it is looked at for the last time.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.at_hand = Space(total_bytes=0, free_bytes=0)
        self.meanwhile: dict[str, FileStatus | None] = {}
        self.broken: set[str] = set()
        self.removed: list[str] = []
        self.folders: dict[str, Pool] = {}

    def entries(self):
        for file_name in list(self):
            if file_name in self:
                yield file_name, self[file_name]

    def status(self, file_name: str) -> FileStatus | None:
        if file_name in self.meanwhile:
            changed = self.meanwhile.pop(file_name)
            if changed is None:
                self.pop(file_name, None)
            else:
                self[file_name] = changed
        return self.get(file_name)

    def remove(self, file_name: str) -> bool:
        if file_name in self.broken:
            raise PermissionError(13, "Permission denied")
        self.removed.append(file_name)
        return self.pop(file_name, None) is not None

    def folder(self, file_name: str, age_s: float, files: dict[str, FileStatus]) -> "Pool":
        """Put a directory into this one."""
        self[file_name] = at(age_s, regular=False, folder=True)
        self.folders[file_name] = Pool(files)
        return self.folders[file_name]

    @contextmanager
    def inside(self, file_name: str):
        if file_name in self.broken:
            raise PermissionError(13, "Permission denied")
        yield self.folders[file_name]

    def remove_folder(self, file_name: str) -> bool:
        if self.folders[file_name]:
            raise OSError(39, "Directory not empty")
        return self.remove(file_name)

    def space(self) -> Space:
        return self.at_hand


def run(pool: Pool, *, delete: bool = True, force: bool = False, **limits: object):
    janitor = Janitor(Limits(**limits), lambda: NOW, lambda: None, delete, force)
    return janitor.run(pool, Progress())


def hourly(count: int) -> Pool:
    """Chunks 1, 2, ... of 100 bytes, used 1, 2, ... hours ago."""
    return Pool({name(n): at(n * HOUR) for n in range(1, count + 1)})


def test_a_pool_within_its_limits_is_left_alone():
    pool = hourly(10)
    done = run(pool, max_bytes=1000, max_age_s=11 * HOUR)
    assert pool.removed == []
    assert (done.plan.files, done.over_bytes, done.failed) == (0, 0, False)


def test_over_the_limit_the_least_recently_used_go_to_a_tenth_below_it():
    pool = hourly(20)
    done = run(pool, max_bytes=1000)
    assert sorted(pool) == sorted(name(n) for n in range(1, 10))
    assert (done.swept.files, done.swept.num_bytes, done.over_bytes) == (11, 1100, 0)


def test_a_file_that_was_read_is_not_old():
    pool = hourly(20)
    pool[name(20)] = at(20 * HOUR, read_s=NOW - 60)
    run(pool, max_bytes=1900)
    assert name(20) in pool
    assert name(19) not in pool


@pytest.mark.parametrize(
    ("limits", "space"),
    [({"by_access": False}, Space(0, 0)), ({}, Space(0, 0, keeps_atime=False))],
    ids=["told to", "mounted with noatime"],
)
def test_reading_does_not_count_where_it_is_not_recorded(limits: dict, space: Space):
    pool = hourly(20)
    pool.at_hand = space
    pool[name(20)] = at(20 * HOUR, read_s=NOW - 60)
    done = run(pool, max_bytes=1900, **limits)
    assert name(20) not in pool
    assert not done.by_access


def test_whatever_is_older_than_the_limit_goes():
    pool = hourly(20)
    run(pool, max_age_s=15.5 * HOUR)
    assert sorted(pool) == sorted(name(n) for n in range(1, 16))


def test_free_space_is_kept_whoever_takes_it():
    pool = hourly(20)
    pool.at_hand = Space(total_bytes=10_000, free_bytes=600)
    done = run(pool, min_free=Share(ratio=0.09))
    # 9 % are 900; freed until 1,000 are free.
    assert len(pool.removed) == 4
    assert done.over_bytes == 0


@pytest.mark.parametrize("min_free", [Share(ratio=0.5), Share(num_bytes=10**9)])
def test_a_file_system_that_tells_no_size_is_not_a_full_one(min_free: Share):
    pool = hourly(20)
    pool.at_hand = Space(total_bytes=0, free_bytes=0)
    done = run(pool, min_free=min_free)
    assert pool.removed == []
    assert "  file system     tells no size: --min-free has no effect" in summary("/p", done)


def test_only_files_with_a_name_of_lmcaches_are_ever_deleted():
    others = {
        "weights.safetensors": at(99 * HOUR),
        "notes.data": at(99 * HOUR),
        "m@1@0@beef@half.tmp": at(23 * HOUR),
        name(1): at(99 * HOUR, regular=False),  # a link or a directory
    }
    pool = Pool(others | {name(2): at(99 * HOUR)})
    done = run(pool, max_age_s=HOUR, max_bytes=0)
    assert pool.removed == [name(2)]
    found = done.survey
    assert (found.files, found.other_files, found.temporary_files, found.directories) == (
        1,
        2,
        1,
        1,
    )


@pytest.mark.parametrize(
    "status",
    [
        at(60),
        at(99 * HOUR, named_s=NOW - 60),  # renamed into place a minute ago
        at(-HOUR),  # of a machine whose clock is ahead
    ],
)
def test_what_was_just_written_is_left_alone(status: FileStatus):
    pool = Pool({name(1): status})
    done = run(pool, max_bytes=0, max_age_s=1)
    assert pool.removed == []
    assert done.survey.fresh_files == 1
    assert done.failed  # nothing could be done about the limit
    assert done.over_bytes == 100


def test_a_clock_that_is_behind_is_told():
    """Nothing goes before it has caught up, which may take an hour."""

    def told(written_ahead_s: float) -> list[str]:
        pool = Pool({name(1): at(-written_ahead_s), name(2): at(HOUR)})
        return [line for line in summary("/p", run(pool, max_bytes=0)) if "clocks" in line]

    assert told(3600) == ["  clocks differ   a file was written 1.0 h in the future"]
    assert told(30) == []


def test_a_dry_run_deletes_nothing_and_says_about_how_much_would_go():
    pool = hourly(20)
    done = run(pool, delete=False, max_bytes=1000)
    assert pool.removed == []
    assert (done.swept, done.plan.files, done.plan.num_bytes) == (None, 11, 1100)
    assert (done.over_bytes, done.failed) == (1000, False)


def test_a_file_that_is_used_or_written_between_the_passes_is_spared():
    pool = hourly(3)
    pool.meanwhile = {
        name(1): at(HOUR, read_s=NOW),
        name(2): at(0),
        name(3): None,  # another janitor was faster
    }
    done = run(pool, max_bytes=0)
    assert pool.removed == []
    assert (done.swept.spared, done.swept.gone, done.swept.failed) == (2, 1, 0)


def test_all_ranks_of_a_chunk_go_together():
    pool = Pool({name(7, rank, 4): at((90 + rank) * HOUR) for rank in range(4)})
    run(pool, max_bytes=200)
    assert len(pool) == 0


def test_a_chunk_is_as_young_as_its_youngest_part():
    pool = Pool({name(7, rank, 4): at(90 * HOUR) for rank in range(4)})
    pool[name(7, 3, 4)] = at(90 * HOUR, read_s=NOW - 60)
    done = run(pool, max_age_s=HOUR)
    assert pool.removed == []
    assert done.swept.spared == 3


def test_what_cannot_be_deleted_is_told_and_the_rest_goes():
    pool = hourly(5)
    pool.broken = {name(3)}
    done = run(pool, max_age_s=1)
    assert list(pool) == [name(3)]
    assert (done.swept.failed, done.swept.first_error) == (1, "Permission denied")
    assert done.failed


def test_a_sweep_in_which_everything_fails_ends_early():
    pool = hourly(500)
    pool.broken = set(pool)
    done = run(pool, max_age_s=1)
    assert done.swept.failed == 100


def test_a_directory_without_any_file_of_lmcaches_is_refused():
    with pytest.raises(Refused, match="1 files, and none"):
        run(Pool({"thesis.tex": at(HOUR)}), max_bytes=0)
    run(Pool({"thesis.tex": at(HOUR)}), max_bytes=0, force=True)
    run(Pool(), max_bytes=0)
    run(Pool({"m@1@0@beef@half.tmp": at(HOUR)}), max_bytes=0)


def test_a_stop_ends_the_round():
    progress = Progress()
    progress.stop.set()
    janitor = Janitor(Limits(max_bytes=0), lambda: NOW, lambda: None, delete=True)
    pool = hourly(3)
    with pytest.raises(Stopped):
        janitor.run(pool, progress)
    assert pool.removed == []


# What writers that died left.

DAY = 24 * HOUR


def test_what_dead_writers_left_goes_and_what_is_being_written_stays():
    pool = hourly(2)
    dead = pool.folder("tmp-a", DAY, {name(7): at(25 * HOUR), name(8): at(23 * HOUR)})
    # Renamed over, or its owner changed: its inode was touched a minute ago.
    live = pool.folder("tmp-b", 0, {name(7): at(99 * DAY, named_s=NOW - 60), name(9): at(0)})
    pool["m@1@0@beef@half.tmp"], pool["m@1@0@feed@half.tmp"] = at(25 * HOUR), at(23 * HOUR)
    done = run(pool, max_bytes=1000)
    assert sorted(dead) == [name(8)]
    assert sorted(live) == [name(7), name(9)]
    assert pool.removed == ["m@1@0@beef@half.tmp"]
    found, left = done.survey, done.leftovers
    assert (found.temporary_files, found.leftover_files, found.leftover_bytes) == (6, 2, 200)
    assert (left.files, left.num_bytes, left.failed, done.failed) == (2, 200, 0, False)
    assert (found.files, found.num_bytes) == (2, 200)


def test_a_writer_that_goes_on_meanwhile_keeps_its_file():
    pool = Pool()
    folder = pool.folder("tmp-a", DAY, {name(7): at(DAY), name(8): at(DAY), name(9): at(DAY)})
    folder.meanwhile = {name(7): at(0), name(8): None}
    done = run(pool, max_bytes=1000)
    assert sorted(folder) == [name(7)]
    assert (done.leftovers.spared, done.leftovers.gone, done.leftovers.files) == (1, 1, 1)


@pytest.mark.parametrize(("leftover_s", "grace_s", "goes"), [(60, 0, 1), (60, 7200, 0)])
def test_a_leftover_is_older_than_both_ages(leftover_s: float, grace_s: float, goes: int):
    pool = Pool()
    folder = pool.folder("tmp-a", DAY, {name(7): at(HOUR)})
    run(pool, max_bytes=1000, leftover_s=leftover_s, grace_s=grace_s)
    assert len(folder) == 1 - goes


def test_only_files_with_a_name_of_lmcaches_are_left_by_a_writer():
    pool = hourly(1)
    others = {
        "core.1234": at(99 * DAY),
        "m@1@0@beef@half.tmp": at(99 * DAY),  # there they have their final names
        name(3): at(99 * DAY, regular=False),
    }
    folder = pool.folder("tmp-a", 99 * DAY, others)
    elsewhere = pool.folder("temporary", 99 * DAY, {name(7): at(99 * DAY)})
    pool["notes.tmp"] = at(99 * DAY)
    pool["tmp-link"] = at(99 * DAY, regular=False)
    done = run(pool, max_bytes=0, folder_s=1)
    assert done.leftovers is None
    assert len(folder) == 3
    assert len(elsewhere) == 1
    assert {"notes.tmp", "tmp-a", "tmp-link", "temporary"} <= set(pool)
    assert (done.survey.other_files, done.survey.directories) == (3, 4)


def test_an_empty_directory_stays_unless_told_otherwise():
    """An engine makes its own at its start, and every store fails without it."""

    def left(**limits: float) -> set[str]:
        pool = Pool()
        pool.folder("tmp-a", 40 * DAY, {})
        pool.folder("tmp-b", 20 * DAY, {})
        pool.folder("tmp-c", 40 * DAY, {name(7): at(0)})
        pool.folder("tmp-d", 40 * DAY, {name(7): at(40 * DAY)})
        run(pool, max_bytes=0, **limits)
        return set(pool)

    assert left() == {"tmp-a", "tmp-b", "tmp-c", "tmp-d"}
    # What held a leftover until now was written to just now.
    assert left(folder_s=30 * DAY) == {"tmp-b", "tmp-c", "tmp-d"}


def test_a_directory_that_is_written_to_right_then_stays():
    pool = hourly(1)
    folder = pool.folder("tmp-a", 40 * DAY, {})
    pool.folder("tmp-b", 40 * DAY, {})
    pool.broken = {"tmp-b"}

    def remove_folder(file_name: str) -> bool:
        folder[name(7)] = at(0)
        return Pool.remove_folder(pool, file_name)

    pool.remove_folder = remove_folder
    done = run(pool, max_bytes=1000, folder_s=30 * DAY)
    assert "tmp-a" in pool
    left = done.leftovers
    assert (left.folders, left.spared, left.failed, done.survey.unreadable) == (0, 1, 0, 1)


def test_directories_that_cannot_be_opened_do_not_end_the_pass():
    pool = Pool()
    for number in range(150):
        pool.folder(f"tmp-{number}", 40 * DAY, {})
        pool.broken.add(f"tmp-{number}")
    folder = pool.folder("tmp-z", DAY, {name(7): at(DAY)})
    done = run(pool, max_bytes=1000)
    assert len(folder) == 0
    assert (done.leftovers.failed, done.survey.unreadable, done.failed) == (0, 150, True)


def test_a_dry_run_says_what_writers_left_and_deletes_none_of_it():
    pool = hourly(1)
    folder = pool.folder("tmp-a", DAY, {name(7): at(DAY)})
    pool.folder("tmp-b", 40 * DAY, {})
    done = run(pool, delete=False, folder_s=30 * DAY)
    assert (done.leftovers, len(folder), len(pool)) == (None, 1, 3)
    told = list(summary("/p", done))
    assert "  temporary       1, 100 B; of those 1 left by dead writers (1.0 d), 100 B" in told
    assert "  WOULD DELETE    1 leftovers, 1 empty directories; --delete does it" in told


def test_room_that_leftovers_made_is_not_made_again_by_chunks():
    pool = hourly(20)
    folder = pool.folder("tmp-a", DAY, {name(7): at(DAY, 500)})
    pool.at_hand = Space(total_bytes=10_000, free_bytes=600)

    def removed(file_name: str) -> bool:
        pool.at_hand = Space(total_bytes=10_000, free_bytes=1100)
        return Pool.remove(folder, file_name)

    folder.remove = removed
    done = run(pool, min_free=Share(ratio=0.09))
    assert pool.removed == []
    assert (done.leftovers.files, done.swept.files, done.over_bytes) == (1, 0, 0)


def test_leftovers_that_cannot_be_deleted_do_not_keep_chunks_from_going():
    pool = hourly(20)
    folder = pool.folder("tmp-a", DAY, {name(7): at(DAY, 500)})
    folder.broken = {name(7)}
    pool.at_hand = Space(total_bytes=10_000, free_bytes=600)
    done = run(pool, min_free=Share(ratio=0.09))
    assert done.swept.files == 4
    assert (done.leftovers.failed, done.leftovers.first_error) == (1, "Permission denied")
    assert done.failed


def test_a_directory_that_cannot_be_opened_is_told_and_the_rest_goes():
    pool = hourly(20)
    pool.folder("tmp-a", DAY, {name(7): at(DAY)})
    pool.broken = {"tmp-a"}
    done = run(pool, max_bytes=1000)
    assert (done.swept.files, done.survey.unreadable) == (11, 1)
    assert "  FAILED          1 could not be looked at" in summary("/p", done)
    assert done.failed


def test_files_of_which_nothing_can_be_told_are_no_success():
    """A directory that may be listed and not entered, or files whose storage is lost."""
    done = run(Pool({name(1): None, name(2): at(HOUR)}), delete=False, max_bytes=1000)
    assert (done.survey.unreadable, done.survey.files, done.survey.other_files) == (1, 1, 0)
    assert done.failed


# Two janitors that look at the same pool.


def test_two_janitors_choose_the_same_files_whatever_the_order():
    def spread(order: list[int]) -> Pool:
        # All used in the same minute a day ago: one bucket, of which a share has to go.
        chunks = {n: n * 0x9E3779B97F4A7C15 % 2**64 for n in order}
        return Pool({name(chunk): at(24 * HOUR + n % 10) for n, chunk in chunks.items()})

    one, other = spread(list(range(1000))), spread(list(range(999, -1, -1)))
    run(one, max_bytes=50_000)
    run(other, max_bytes=50_000)
    assert set(one) == set(other)
    assert 400 < len(one) < 500


def test_what_another_one_deleted_counts_as_freed():
    pool = hourly(20)
    pool.meanwhile = {name(n): None for n in range(15, 21)}
    done = run(pool, max_bytes=1000)
    assert (done.swept.files, done.swept.gone, done.over_bytes) == (5, 6, 0)


# Ages.


@given(st.floats(0, 2**33))
def test_a_bucket_holds_ages_that_differ_by_a_64th_at_most(age_s: float):
    bucket = bucket_of(age_s)
    low, high = youngest_of(bucket), youngest_of(bucket + 1)
    assert low <= age_s < high
    assert high - low <= max(1, low / 64)


@given(st.integers(0, 2**34), st.integers(0, 2**34))
def test_older_ages_have_higher_buckets(one: int, other: int):
    assert (bucket_of(one) <= bucket_of(other)) or one > other


@given(st.text("0123456789abcdef", min_size=1, max_size=64), st.sampled_from(["", "-"]))
def test_a_chunk_has_its_place_between_0_and_1(digits: str, sign: str):
    assert 0 <= place_of(sign + digits) < 1


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)), min_size=1),
    st.floats(0.01, 1),
)
def test_a_cutoff_takes_enough_and_no_older_file_stays_for_a_younger_one(files, part):
    ages = AgeHistogram()
    for age_s, num_bytes in files:
        ages.add(age_s, num_bytes)
    total = sum(num_bytes for _, num_bytes in files)
    wanted = max(int(total * part), 1)
    cutoff = ages.cutoff(wanted)
    taken = [(age, size) for age, size in files if cutoff.takes(age, "0")]
    assert sum(size for _, size in taken) >= wanted
    kept = [age for age, _ in files if not cutoff.takes(age, "0")]
    assert all(bucket_of(age) <= cutoff.bucket for age in kept)
    # Without the youngest bucket it would not be enough.
    assert sum(size for age, size in files if bucket_of(age) > cutoff.bucket) < wanted
    assert ages.above(Cutoff(cutoff.bucket, 1.0))[0] >= len(taken)


# Of the program itself: getrusage tells what the process took before it became this program, too.
MEMORY = """
import re, sys
from pathlib import Path
from gateway.l2.janitor import Janitor
from gateway.l2.janitor_progress import Progress
from gateway.l2.janitor_plan import FileStatus, Limits, Space

class Pool:
    deleted = 0
    def __init__(self, count): self.count = count
    def space(self): return Space(0, 0)
    def entries(self):
        for n in range(self.count):
            yield f"m@1@0@{n * 0x9E3779B97F4A7C15 % 2**64:x}@half.data", self.file(n)
    def file(self, n): return FileStatus(100, 1e9 - 3600 - n * 1e6 / self.count, 0.0, 0.0)
    def status(self, name): return self.file(self.count - 1)
    def remove(self, name): self.deleted += 1; return True

pool = Pool(int(sys.argv[1]))
janitor = Janitor(Limits(max_bytes=pool.count * 80), lambda: 1e9, lambda: None, True)
done = janitor.run(pool, Progress())
assert done.over_bytes == 0 and pool.deleted == done.swept.files
assert 0.2 < pool.deleted / pool.count < 0.4, pool.deleted
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.timeout(300)
def test_a_million_files_cost_no_more_memory_than_a_hundred():
    def peak_kib(count: int) -> int:
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, str(count)],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(done.stdout)

    assert peak_kib(1_000_000) - peak_kib(100) < 2048

"""Files that change under the gateway: what counts as new and whole."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.config.watch import WatchedFile

MAX_BYTES = 100


def replace(path, content):
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


def test_the_first_look_takes_what_is_there_and_the_next_ones_nothing(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"one")
    file = WatchedFile(path, MAX_BYTES)
    assert [file.look(), file.look(), file.look()] == [b"one", None, None]


def test_a_file_that_was_renamed_into_place_counts_at_once(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"one")
    file = WatchedFile(path, MAX_BYTES)
    file.look()
    replace(path, b"two")
    assert [file.look(), file.look()] == [b"two", None]


def test_a_configmap_s_link_that_is_swapped_counts_at_once(tmp_path):
    for name, content in (("..1", b"one"), ("..2", b"two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_bytes(content)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "f").symlink_to("..data/f")
    file = WatchedFile(tmp_path / "f", MAX_BYTES)
    assert file.look() == b"one"
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    assert file.look() == b"two"


def test_a_file_that_is_written_in_place_counts_once_it_rests(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"one")
    file = WatchedFile(path, MAX_BYTES)
    file.look()
    path.write_bytes(b"")  # open("w") has emptied it, and nothing is written yet
    assert file.look() is None
    path.write_bytes(b"tw")
    assert file.look() == b"tw"  # looked at twice while it changed: the parser is the judge now
    path.write_bytes(b"two")
    assert [file.look(), file.look(), file.look()] == [None, b"two", None]


def test_a_file_that_is_missing_is_a_problem_and_news_when_it_is_back(tmp_path):
    path = tmp_path / "f"
    file = WatchedFile(path, MAX_BYTES)
    assert file.look() is None
    assert file.problem == f"{path}: cannot be read: no such file or directory"
    path.write_bytes(b"one")
    assert (file.look(), file.problem) == (b"one", None)
    path.unlink()
    file.look()
    path.write_bytes(b"one")
    assert file.look() == b"one"


def test_that_a_file_is_lost_is_told_once(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"one")
    file = WatchedFile(path, MAX_BYTES)

    def lost():
        file.look()
        return file.just_lost

    before = lost()
    path.unlink()
    gone = [lost(), lost()]
    path.write_bytes(b"one")
    back = lost()
    path.unlink()
    assert (before, gone, back, lost()) == (False, [True, False], False, True)


def test_no_more_is_read_than_shows_that_it_is_too_much(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * 1000)
    assert len(WatchedFile(path, MAX_BYTES).look()) == MAX_BYTES + 1


@given(contents=st.lists(st.binary(max_size=5), min_size=1, max_size=8), renamed=st.booleans())
def test_what_rests_for_two_looks_is_always_taken(tmp_path_factory, contents, renamed):
    path = tmp_path_factory.mktemp("watch") / "f"
    path.write_bytes(b"at first")
    file = WatchedFile(path, MAX_BYTES)
    in_force = file.look()
    for content in contents:
        if renamed:
            replace(path, content)
        else:
            path.write_bytes(content)
        for _ in range(2):
            news = file.look()
            in_force = in_force if news is None else news
        assert in_force == content

"""The frame of every measurement: what it writes, says and returns, however it ends."""

import json
import os
import signal
from pathlib import Path

import pytest

from loadtests.measurement import BUILD, Measurement, MeasurementError, Report, Unavailable


@pytest.fixture
def run(tmp_path: Path):
    """Run a measurement whose figures go to a folder that is not there yet."""

    def run(measure, *argv: str) -> int:
        program = Measurement("loadtests.sample", "A sample.")
        program.options.add_argument("--rounds", type=int, default=3)
        return program.run(["--json", str(tmp_path / "new" / "sample.json"), *argv], measure)

    return run


@pytest.fixture
def written(tmp_path: Path):
    return lambda: json.loads((tmp_path / "new" / "sample.json").read_text("utf-8"))


def raises(error: BaseException):
    def measure(options, folder):
        raise error

    return measure


def test_a_measurement_gets_its_options_and_a_folder_beside_the_figures(run, tmp_path):
    seen = []

    def measure(options, folder):
        seen.append((options.rounds, folder))
        return Report({})

    run(measure, "--rounds", "5")
    assert seen == [(5, tmp_path / "new" / "sample")]


def test_figures_are_written_and_met_goals_end_it_with_0(run, written, capsys, tmp_path):
    assert run(lambda options, folder: Report({"requests": 7})) == 0
    assert written() == {"requests": 7, "missed": []}
    output = capsys.readouterr()
    assert output.out == f"written to {tmp_path}/new/sample.json\n"
    assert output.err == ""


def test_each_missed_goal_is_told_on_standard_error_and_in_the_file(run, written, capsys):
    assert run(lambda options, folder: Report({}, ["no errors: 2", "p99: 3 s"])) == 1
    assert written()["missed"] == ["no errors: 2", "p99: 3 s"]
    assert capsys.readouterr().err == "sample: goal: no errors: 2\nsample: goal: p99: 3 s\n"


def test_what_could_not_be_measured_is_one_line_and_no_file(run, capsys, tmp_path):
    assert run(raises(MeasurementError("replica-0 ended"))) == 1
    assert capsys.readouterr().err == "sample: replica-0 ended\n"
    assert not (tmp_path / "new").exists()


def test_a_machine_that_lacks_something_skips_and_says_so_in_the_file(run, written, capsys):
    assert run(raises(Unavailable("no GPU"))) == 0
    assert written() == {"skipped": "no GPU"}
    assert capsys.readouterr().out == "sample: skipped: no GPU\n"


def test_ctrl_c_ends_it_with_130(run):
    assert run(raises(KeyboardInterrupt())) == 130


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["term", "hup"]
)
def test_a_stop_signal_leaves_every_block_and_is_anothers_again_afterwards(run, number, code):
    before, left = signal.getsignal(number), []

    def measure(options, folder):
        try:
            os.kill(os.getpid(), number)
        finally:
            left.append("the block")

    with pytest.raises(SystemExit) as raised:
        run(measure)
    assert (raised.value.code, left) == (code, ["the block"])
    assert signal.getsignal(number) is before


def test_a_wrong_option_ends_it_before_anything_starts(run, capsys):
    with pytest.raises(SystemExit) as raised:
        run(raises(AssertionError("it started")), "--rounds", "x")
    assert raised.value.code == 2
    assert "python -m loadtests.sample" in capsys.readouterr().err


def test_figures_go_to_a_file_of_the_programs_name_by_default():
    program = Measurement("loadtests.sample", "A sample.")
    assert program.options.parse_args([]).json == BUILD / "sample.json"

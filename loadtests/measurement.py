"""The frame of every measurement: its command line, its file of figures, its exit code.

A measurement prints its figures with the goals beside them and returns a `Report`; what all of them
share is here. SIGTERM and SIGHUP end it as Ctrl-C does, so that every `with` ends its children. The
figures go to `build/<name>.json`, logs into a folder beside it. Missed goals are told on standard
error.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[1]
BUILD: Final = ROOT / "build"


class MeasurementError(Exception):
    """Nothing could be measured: one line that says why."""


class Unavailable(Exception):
    """This machine lacks what the measurement needs: one line with the reason."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a measurement found.

    Attributes:
        figures: What is written, as JSON has it.
        missed: A line for every goal that was missed.
    """

    figures: Mapping[str, Any]
    missed: Sequence[str] = ()


class Measurement:
    """One program that measures.

    Args:
        module: The program is run as `python -m <module>`; its last part is the name.
        description: For `--help`.

    Attributes:
        name: Begins every line on standard error.
        options: The command line, to which the program adds its own options.
    """

    def __init__(self, module: str, description: str) -> None:
        self.name = module.rpartition(".")[2]
        self.options = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
        file = BUILD / f"{self.name}.json"
        self.options.add_argument("--json", type=Path, default=file, help="for the figures")

    def run(
        self, argv: Sequence[str] | None, measure: Callable[[argparse.Namespace, Path], Report]
    ) -> int:
        """Run the program from its command line to its end.

        Args:
            argv: The command line; the process's own by default. A wrong one ends the program.
            measure: Gets the options, and the folder for logs and configurations.

        Returns:
            The exit code: 0, also where the machine lacks something; 1 where a goal was missed or
            something did not start; 130 on Ctrl-C.
        """
        options = self.options.parse_args(argv)
        return guarded(self.name, lambda: self._measured(options, measure))

    def judge(self, missed: Sequence[str]) -> int:
        """Tell the missed goals, and return the exit code."""
        for line in missed:
            print(f"{self.name}: goal: {line}", file=sys.stderr)
        return 1 if missed else 0

    def _measured(
        self,
        options: argparse.Namespace,
        measure: Callable[[argparse.Namespace, Path], Report],
    ) -> int:
        path: Path = options.json
        try:
            report = measure(options, path.parent / self.name)
        except Unavailable as reason:
            _write(path, {"skipped": str(reason)})
            raise
        _write(path, {**report.figures, "missed": list(report.missed)})
        print(f"written to {path}")
        return self.judge(report.missed)


def guarded(name: str, work: Callable[[], int]) -> int:
    """Run a program that starts children, and return its exit code.

    Args:
        name: Of the program.
        work: Returns the exit code, unless it is interrupted or cannot go on.
    """
    before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return work()
    except Unavailable as reason:
        print(f"{name}: skipped: {reason}")
        return 0
    except MeasurementError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)

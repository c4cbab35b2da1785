"""What `make soak` shows and demands."""

from collections.abc import Iterator
from typing import Final

from rich.table import Table

from loadtests.soak.liveness import Liveness
from loadtests.soak.passes import Load, Pass

MAX_LIVENESS_P99_S: Final = 1.0
# Two probes of replicas a second cost 0.01 cores; a loop that spins costs a whole one.
MAX_IDLE_CORES: Final = 0.1

# What may happen to no stream, by the names that native/streams.c counts under.
_NEVER: Final = ("cut", "out_of_order", "other_status", "unfinished")

Line = tuple[str, str, str]
"""What, figure, goal."""


def table(found: Pass) -> Table:
    """Return the table of one pass, the goals beside the figures."""
    title = f"{found.streams['streams']} streams, {found.open_files} open files"
    result = Table("", "", "goal", title=title, title_justify="left")
    for line in (*_stream_lines(found), *_gateway_lines(found)):
        result.add_row(*line)
    return result


def missed_goals(found: Pass, load: Load) -> list[str]:
    """Return a line for every goal that a pass misses."""
    streams = found.streams
    missed = [
        f"no streams that are {name.replace('_', ' ')}; there were {streams[name]}"
        for name in _NEVER
        if streams[name]
    ]
    if found.held is None and streams["complete"] != load.streams:
        missed.append(f"all {load.streams} streams complete; there were {streams['complete']}")
    if found.held is not None and not (streams["complete"] and streams["refused_503"]):
        missed.append("some streams complete, the surplus refused with 503")
    if not (_is_fine(found.public) or _is_fine(found.admin)):
        missed.append(f"/livez always answered, p99 at most {MAX_LIVENESS_P99_S:g} s")
    if found.idle_cores > MAX_IDLE_CORES:
        missed.append(f"CPU after the streams at most {MAX_IDLE_CORES} cores")
    if found.held is not None and found.held.cpu_cores > MAX_IDLE_CORES:
        missed.append(f"CPU under idle connections at most {MAX_IDLE_CORES} cores")
    if not found.survived:
        missed.append("the gateway lives and answers afterwards")
    return [f"{found.open_files} open files: {line}" for line in missed]


def _is_fine(found: Liveness) -> bool:
    return not found.failed and found.p99_s is not None and found.p99_s <= MAX_LIVENESS_P99_S


def _stream_lines(found: Pass) -> Iterator[Line]:
    streams, scarce = found.streams, found.held is not None
    yield "complete, in order", str(streams["complete"]), "> 0" if scarce else "all"
    yield "refused with 503", str(streams["refused_503"]), "> 0" if scarce else "0"
    yield "closed before an answer", str(streams["closed"]), "-"
    for name in _NEVER:
        yield name.replace("_", " "), str(streams[name]), "0"
    yield "events/s", f"{streams['events'] / streams['seconds']:,.0f}", "-"
    for name, label in (("lateness_s", "event lateness"), ("first_event_s", "first event")):
        times = streams[name]
        shown = "-" if times is None else f"{1e3 * times['p50']:.0f} / {1e3 * times['p99']:.0f}"
        yield f"{label} p50 / p99, ms", shown, "-"


def _gateway_lines(found: Pass) -> Iterator[Line]:
    for name, liveness in (("public", found.public), ("admin", found.admin)):
        p99 = "-" if liveness.p99_s is None else f"{liveness.p99_s:.3f}"
        shown = f"{p99} ({liveness.answered} answered, {liveness.failed} not)"
        yield f"/livez p99, {name} listener, s", shown, f"<= {MAX_LIVENESS_P99_S:g} on one"
    per_event = found.cpu_us_per_event
    yield "gateway CPU, cores", f"{found.cpu_cores:.2f}", "-"
    yield "gateway CPU per event, us", "-" if per_event is None else f"{per_event:.1f}", "-"
    yield "gateway CPU afterwards, cores", f"{found.idle_cores:.2f}", f"<= {MAX_IDLE_CORES}"
    if found.held is not None:
        held = found.held
        shown = f"{held.open} open, {held.refused_503} got 503, {held.closed} closed"
        yield f"of {held.opened} idle connections", shown, "-"
        yield "gateway CPU under them, cores", f"{held.cpu_cores:.2f}", f"<= {MAX_IDLE_CORES}"
    yield "lives and answers", "yes" if found.survived else "no", "yes"

"""What was measured as tables and charts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.table import Table

from loadtests.tiers.fit import Line
from loadtests.tiers.goals import Figure, Measured
from loadtests.tiers.plot import Chart, Series
from loadtests.tiers.published import (
    FITTED,
    LOADED_S,
    LOADED_TOKENS,
    OFF_THE_LINE,
    TURNS,
    TURNS_RATIO,
)
from loadtests.tiers.sweep import CONCURRENCIES, LENGTHS, Cell, Way, break_even

# The length that the published sweep praises most.
SHOWN_TOKENS: Final = 2500
_FROM_L2: Final = (Way.IN_TURN, Way.AT_ONCE)


def tables(found: Measured) -> Iterator[Table]:
    """Yield the tables in the order in which they are read."""
    yield fit_table(found.line, found.figures, "A load from L2, fitted to the published sweep")
    other = f"With {1e6 * LOADED_S / LOADED_TOKENS:.1f} us a token, as published of other machines"
    yield fit_table(found.other_line, found.other_figures, other)
    yield serial_table(found)
    yield clients_table(found.cells)
    yield even_table(found.cells)
    yield chat_table(found)
    yield process_table(found)


def fit_table(line: Line, figures: Sequence[Figure], title: str) -> Table:
    """Return published figures beside the model's."""
    what = f"{1e3 * line.latency_s:.1f} ms + {1e6 * line.token_s:.1f} us a token"
    table = _table(f"{title}: {what} ({line.bytes_s / 1e9:.2f} GB/s)")
    for column in ("", "published", "model", "off by", "goal"):
        table.add_column(column, justify="left" if not column else "right")
    for figure in figures:
        numbers = (f"{figure.published:.4g}", f"{figure.made:.4g}", f"{figure.error:+.1%}")
        table.add_row(figure.name, *numbers, figure.goal)
    return table


def serial_table(found: Measured) -> Table:
    """Return the sweep with one client: in virtual time and with processes."""
    table = _table("One request at a time, TTFT in ms")
    for column in ("tokens", "computed", "from L2", "times faster", "processes", "published"):
        table.add_column(column, justify="right")
    published = {point.num_tokens: point.ratio for point in (*FITTED, OFF_THE_LINE)}
    made = {one.num_tokens: one for one in found.processes if one.clients == 1}
    for one in _with(found.cells, clients=1):
        process = made.get(one.num_tokens)
        table.add_row(
            f"{one.num_tokens:,}",
            f"{1e3 * one.ttft_s[Way.COLD]:.0f}",
            f"{1e3 * one.ttft_s[Way.IN_TURN]:.0f}",
            f"{one.ratio(Way.IN_TURN):.2f}",
            f"{process.ratio(Way.IN_TURN):.2f}" if process else "-",
            f"{published[one.num_tokens]:g}" if one.num_tokens in published else "-",
        )
    return table


def clients_table(cells: Sequence[Cell]) -> Table:
    """Return how many times faster L2 is, by clients and tokens."""
    table = _table("Times faster to the first token: one load at a time / loads at once")
    table.add_column("clients", justify="right")
    for length in LENGTHS:
        table.add_column(f"{length:,}", justify="right")
    for clients in CONCURRENCIES:
        row = _with(cells, clients=clients)
        shown = (" / ".join(f"{one.ratio(way):.1f}" for way in _FROM_L2) for one in row)
        table.add_row(str(clients), *shown)
    return table


def even_table(cells: Sequence[Cell]) -> Table:
    """Return the tokens from which on L2 is faster."""
    table = _table(f"Break-even in tokens (the shortest tried: {LENGTHS[0]})")
    for column in ("clients", "first token: at a time", "at once", "last token: at a time"):
        table.add_column(column, justify="right")
    table.add_column("at once", justify="right")
    for clients in CONCURRENCIES:
        row = _with(cells, clients=clients)
        ways = [(way, whole) for whole in (False, True) for way in _FROM_L2]
        table.add_row(
            str(clients), *(_even(break_even(row, way, whole=whole)) for way, whole in ways)
        )
    return table


def chat_table(found: Measured) -> Table:
    """Return what a chat of four turns takes on replicas that know more or less of it."""
    table = _table(
        "Chats of four turns, TTFT in ms; published on other GPUs, replay against first pass: "
        f"{TURNS[0].ratio:g} to {TURNS[-1].ratio:g} times by turn, {TURNS_RATIO:.2f} in all"
    )
    for column in ("clients", "tokens", "first pass", "replay, L2", "moved", "moved, L2"):
        table.add_column(column, justify="right")
    table.add_column("times faster: replay / moved", justify="right")
    for clients, turns in found.chats.items():
        for turn in turns:
            times = (turn.kept_s, turn.replayed_s, turn.moved_cold_s, turn.moved_l2_s)
            table.add_row(
                str(clients),
                f"{turn.num_tokens:,}",
                *(f"{1e3 * seconds:,.0f}" for seconds in times),
                f"{turn.kept_s / turn.replayed_s:.2f} / {turn.moved_cold_s / turn.moved_l2_s:.2f}",
            )
    return table


def process_table(found: Measured) -> Table:
    """Return what processes took against virtual time."""
    table = _table("Processes against virtual time, mean TTFT in ms")
    table.add_column("clients", justify="right")
    table.add_column("tokens", justify="right")
    for way in Way:
        table.add_column(way, justify="right")
    for one, virtual in found.pairs():
        both = (f"{1e3 * one.ttft_s[w]:,.0f} / {1e3 * virtual.ttft_s[w]:,.0f}" for w in Way)
        table.add_row(str(one.clients), f"{one.num_tokens:,}", *both)
    return table


def charts(found: Measured) -> list[Chart]:
    """Return the charts: by length, by clients, and the break-even."""
    alone = _with(found.cells, clients=1)
    shown = [one for one in found.cells if one.num_tokens == SHOWN_TOKENS]
    return [
        Chart(
            "One request at a time",
            "prompt tokens",
            "TTFT in ms",
            [
                *(
                    Series(name, [(c.num_tokens, 1e3 * c.ttft_s[way]) for c in alone], color)
                    for name, way, color in (("computed", Way.COLD, 1), ("L2", Way.IN_TURN, 0))
                ),
                _published("published, computed", _given(FITTED[-1].cold_s), 1),
                _published("published, L2", _given(FITTED[-1].l2_s), 0),
                _off("published, computed: not on the line", OFF_THE_LINE.cold_s, 1),
                _off("published, L2: not on the line", OFF_THE_LINE.l2_s, 0),
            ],
        ),
        Chart(
            f"{SHOWN_TOKENS:,} tokens, several clients",
            "clients at once",
            "times faster than computed, TTFT",
            [
                Series(way, [(c.clients, c.ratio(way)) for c in shown], color)
                for way, color in ((Way.IN_TURN, 0), (Way.AT_ONCE, 2))
            ],
            log_x=True,
            level=1.0,
        ),
        Chart(
            f"Break-even ({LENGTHS[0]}: that or less)",
            "clients at once",
            "prompt tokens from which L2 is faster",
            [_even_series(found.cells, way, whole) for way in _FROM_L2 for whole in (False, True)],
            log_x=True,
        ),
    ]


def _even_series(cells: Sequence[Cell], way: Way, whole: bool) -> Series:
    to = "last" if whole else "first"
    evens = {c: break_even(_with(cells, clients=c), way, whole=whole) for c in CONCURRENCIES}
    points = [(float(clients), even) for clients, even in evens.items() if even is not None]
    color = {(Way.IN_TURN, False): 0, (Way.IN_TURN, True): 1}.get((way, whole), 2 + whole)
    return Series(f"{way}, to the {to} token", points, color)


def _given(seconds: float | None) -> list[tuple[float, float]]:
    return [] if seconds is None else [(FITTED[-1].num_tokens, 1e3 * seconds)]


def _published(name: str, points: list[tuple[float, float]], color: int) -> Series:
    return Series(name, points, color, is_line=False)


def _off(name: str, seconds: float | None, color: int) -> Series:
    points = [] if seconds is None else [(float(OFF_THE_LINE.num_tokens), 1e3 * seconds)]
    return Series(name, points, color, is_line=False, hollow=True)


def _with(cells: Sequence[Cell], clients: int) -> list[Cell]:
    return [one for one in cells if one.clients == clients]


def _even(tokens: float | None) -> str:
    if tokens is None:
        return "never"
    return f"< {LENGTHS[0]}" if tokens == LENGTHS[0] else f"{tokens:,.0f}"


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left")


def as_json(cells: Sequence[Cell]) -> list[Mapping[str, object]]:
    """Return cells for the report."""
    return [
        {
            "tokens": one.num_tokens,
            "clients": one.clients,
            "ttft_s": {way.name.lower(): round(s, 4) for way, s in one.ttft_s.items()},
            "e2e_s": {way.name.lower(): round(s, 4) for way, s in one.e2e_s.items()},
        }
        for one in cells
    ]

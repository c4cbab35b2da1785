"""Line charts as SVG, written by hand: no plotting library is worth three charts. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

_WIDTH: Final = 420
_HEIGHT: Final = 330
# Room around the axes for their words, pixels.
_LEFT: Final = 56
_RIGHT: Final = 16
_TOP: Final = 34
_BOTTOM: Final = 46
_LEGEND_ROW: Final = 15
_TICKS: Final = 6
# Okabe and Ito's colours, which colour-blind people tell apart too.
_COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_INK: Final = "#333333"
_FONT: Final = "font-family='sans-serif' font-size='11'"

XY = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong together.

    Attributes:
        name: For the legend.
        points: By growing x.
        color: Number of the colour; series of one kind share it.
        is_line: Joined by a line; otherwise each a mark by itself.
        hollow: Marks with a border only, for what does not fit.
    """

    name: str
    points: Sequence[XY]
    color: int = 0
    is_line: bool = True
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart.

    Attributes:
        title: Above it.
        x_label: Below the x axis.
        y_label: Beside the y axis.
        series: In the order of the legend.
        log_x: Whether equal ratios of x are equally far apart, ticks at the points themselves.
        level: Where a dashed line across is drawn, such as 1.0 of a ratio.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    level: float | None = None


def svg(charts: Sequence[Chart]) -> str:
    """Return the charts side by side as one SVG document."""
    legend = max(len(chart.series) for chart in charts) * _LEGEND_ROW
    width, height = _WIDTH * len(charts), _HEIGHT + legend + 8
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' {_FONT}>",
        f"<rect width='{width}' height='{height}' fill='white'/>",
    ]
    for at, chart in enumerate(charts):
        parts.append(f"<g transform='translate({at * _WIDTH} 0)'>")
        parts += _Drawn(chart).lines()
        parts.append("</g>")
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


class _Drawn:
    """One chart with its scales."""

    def __init__(self, chart: Chart) -> None:
        self._chart = chart
        self._xs = sorted({x for one in chart.series for x, _ in one.points})
        ys = [y for one in chart.series for _, y in one.points]
        self._step = round_step(max([*ys, chart.level or 0.0]) / _TICKS)
        self._top = self._step * math.ceil(max([*ys, chart.level or 0.0]) / self._step)

    def lines(self) -> Iterator[str]:
        chart = self._chart
        yield _text(_WIDTH / 2, 18, chart.title, "middle", "font-weight='bold'")
        yield from self._axes()
        if chart.level is not None:
            y = self._y(chart.level)
            right = _WIDTH - _RIGHT
            yield (
                f"<line x1='{_LEFT}' x2='{right}' y1='{y:.1f}' y2='{y:.1f}' stroke='{_INK}' "
                "stroke-dasharray='4 3'/>"
            )
        for row, series in enumerate(chart.series):
            yield from self._series(series)
            at = _HEIGHT + row * _LEGEND_ROW
            yield _mark(_LEFT + 6, at, series)
            yield _text(_LEFT + 18, at + 4, series.name, "start")

    def _axes(self) -> Iterator[str]:
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        for number in range(round(self._top / self._step) + 1):
            value = number * self._step
            y = self._y(value)
            yield (f"<line x1='{_LEFT}' x2='{right}' y1='{y:.1f}' y2='{y:.1f}' stroke='#dddddd'/>")
            yield _text(_LEFT - 6, y + 4, f"{value:,g}", "end")
        for x in self._x_ticks():
            yield _text(self._x(x), bottom + 16, f"{x:,g}", "middle")
        yield _text((_LEFT + right) / 2, bottom + 34, self._chart.x_label, "middle")
        middle = (_TOP + bottom) / 2
        yield _text(
            14, middle, self._chart.y_label, "middle", f"transform='rotate(-90 14 {middle})'"
        )

    def _x_ticks(self) -> Sequence[float]:
        if self._chart.log_x:
            return self._xs
        step = round_step(self._xs[-1] / _TICKS)
        return [number * step for number in range(int(self._xs[-1] / step) + 1)]

    def _series(self, series: Series) -> Iterator[str]:
        places = [(self._x(x), self._y(y)) for x, y in series.points]
        if series.is_line:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            color = _COLORS[series.color]
            yield f"<polyline points='{path}' fill='none' stroke='{color}' stroke-width='2'/>"
        for x, y in places:
            yield _mark(x, y, series)

    def _x(self, value: float) -> float:
        last = self._xs[-1]
        share = value / last
        if self._chart.log_x:
            share = math.log(value / self._xs[0]) / math.log(last / self._xs[0])
        return _LEFT + 8 + share * (_WIDTH - _RIGHT - _LEFT - 16)

    def _y(self, value: float) -> float:
        bottom = _HEIGHT - _BOTTOM
        return bottom - value / self._top * (bottom - _TOP)


def round_step(about: float) -> float:
    """Return the next number of the form 1, 2 or 5 times a power of ten, from `about` on."""
    power: float = 10.0 ** math.floor(math.log10(about))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= about)


def _mark(x: float, y: float, series: Series) -> str:
    color = _COLORS[series.color]
    fill = "white" if series.hollow else color
    if series.is_line:
        return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.5' fill='{fill}' stroke='{color}'/>"
    corners = f"{x:.1f},{y - 6:.1f} {x + 6:.1f},{y:.1f} {x:.1f},{y + 6:.1f} {x - 6:.1f},{y:.1f}"
    return f"<polygon points='{corners}' fill='{fill}' stroke='{color}' stroke-width='1.5'/>"


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    place = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='{_INK}'"
    return f"<text {place} {more}>{escape(words)}</text>"

"""Numbers to SVG: line charts with bands, and the before/after picture. No library; colours are CSS variables.

Every chart is drawn for a viewBox of 520 x 230 and scales with its column. Values of the points travel along as JSON,
so that the page's script can say them under the pointer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 520, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 30
COLOURS = 8
"""Colours that the style sheet has for series: `--c0` to `--c7`."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line. Example: `Series("calc", 0, [(1, .3), (2, .4)])`."""

    name: str
    """For the legend."""
    colour: int
    """Index of its colour."""
    points: Sequence[tuple[float, float]]
    """(x, y), x rising; values that are not finite leave a gap."""
    low: Sequence[float] = ()
    """Lower ends of intervals, one per point, drawn as whiskers; empty for none."""
    high: Sequence[float] = ()
    """Upper ends."""
    errors: Sequence[float] = ()
    """Standard errors of the points; with `smooth`, the band is the 95 % interval of the running mean."""
    smooth: bool = False
    """Draw the points faintly and a running mean over them."""
    dots: bool = False
    """Mark the points."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture with a title. Example: `Chart("Reward", [Series(…)], y_low=0, y_high=1)`."""

    title: str
    """What it shows."""
    series: Sequence[Series]
    """Lines."""
    note: str = ""
    """One sentence under the title."""
    y_low: float | None = None
    """Bottom of the axis; None: from the data."""
    y_high: float | None = None
    """Top of the axis; None: from the data."""
    percent: bool = False
    """Values are shares."""
    marks: Sequence[tuple[float, str]] = field(default_factory=tuple)
    """Vertical lines with labels, such as the beginning of a phase."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(math.isfinite(y) for series in self.series for _, y in series.points)


def draw(chart: Chart) -> str:
    """A `<figure>` with title, legend and SVG."""
    frame = _Frame(chart)
    parts = [_grid(frame), *(_mark(frame, x, label) for x, label in chart.marks)]
    parts += [_band(frame, each) for each in chart.series if each.smooth and each.errors]
    parts += [_whiskers(frame, each) for each in chart.series if each.low]
    parts += [_line(frame, each) for each in chart.series]
    legend = "".join(_key(each) for each in chart.series) if len(chart.series) > 1 else ""
    note = f"<p>{escape(chart.note)}</p>" if chart.note else ""
    return (
        f'<figure class="chart"><figcaption><h3>{escape(chart.title)}</h3>{note}'
        f'<div class="legend">{legend}</div></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}" '
        f"data-points='{_payload(frame)}'>{''.join(parts)}"
        f'<line class="cursor" y1="{TOP}" y2="{HEIGHT - BOTTOM}" visibility="hidden"/></svg></figure>'
    )


class _Frame:
    """Scales of one chart."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        xs = [x for series in chart.series for x, _ in series.points]
        ys = [y for series in chart.series for _, y in series.points if math.isfinite(y)]
        ys += [y for series in chart.series for y in (*series.low, *series.high)]
        self.x_low, self.x_high = (min(xs), max(xs)) if xs else (0.0, 1.0)
        high = chart.y_high if chart.y_high is not None else max(ys, default=1.0)
        low = chart.y_low if chart.y_low is not None else _floor(min(ys, default=0.0), high)
        self.ticks = nice_ticks(low, high)
        self.y_low, self.y_high = min(low, self.ticks[0]), max(high, self.ticks[-1])

    def x(self, value: float) -> float:
        """Horizontal position of a value."""
        span = (self.x_high - self.x_low) or 1.0
        return LEFT + (value - self.x_low) / span * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Vertical position of a value; outside values stick to the edge."""
        share = (value - self.y_low) / ((self.y_high - self.y_low) or 1.0)
        return HEIGHT - BOTTOM - min(max(share, 0.0), 1.0) * (HEIGHT - TOP - BOTTOM)

    def label(self, value: float) -> str:
        """A value as text."""
        return f"{100 * value:.0f}%" if self.chart.percent else number(value)


def _floor(lowest: float, highest: float) -> float:
    """Bottom of an axis: zero for values that come near it, for then lengths may be compared."""
    near = -0.02 * highest <= lowest < 0.5 * highest
    return 0.0 if near or lowest == highest > 0 else lowest


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` + 1 round numbers that cover [low, high]."""
    span = (high - low) or abs(high) or 1.0
    raw = span / count
    scale = 10 ** math.floor(math.log10(raw))
    step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, max(last, first + 1) + 1)]


def number(value: float) -> str:
    """`12345` as `12k`, small numbers with as many digits as they need."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.3g}k"
    if abs(value) >= 1e3:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value else "0"


def running_mean(values: Sequence[float], weight: float = 0.25) -> list[float]:
    """Exponentially weighted mean, corrected for its start; gaps are skipped."""
    total = mass = 0.0
    smoothed: list[float] = []
    for value in values:
        if math.isfinite(value):
            total = total * (1 - weight) + value * weight
            mass = mass * (1 - weight) + weight
        smoothed.append(total / mass if mass else math.nan)
    return smoothed


def running_error(errors: Sequence[float], weight: float = 0.25) -> list[float]:
    """Standard error of `running_mean` of independent points with these standard errors."""
    variance = mass = 0.0
    spread: list[float] = []
    for error in errors:
        if math.isfinite(error):
            variance = variance * (1 - weight) ** 2 + (weight * error) ** 2
            mass = mass * (1 - weight) + weight
        spread.append(math.sqrt(variance) / mass if mass else math.nan)
    return spread


def _grid(frame: _Frame) -> str:
    lines: list[str] = []
    for tick in frame.ticks:
        y = frame.y(tick)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{frame.label(tick)}</text>'
        )
    lines += [
        f'<text class="tick" x="{frame.x(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{number(tick)}</text>'
        for tick in nice_ticks(frame.x_low, frame.x_high, 5)
        if frame.x_low <= tick <= frame.x_high
    ]
    lines.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 1}" text-anchor="end">step</text>')
    return "".join(lines)


def _mark(frame: _Frame, x: float, label: str) -> str:
    at = frame.x(x)
    return (
        f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="tick" x="{at + 4:.1f}" y="{TOP + 9}">{escape(label)}</text>'
    )


def _band(frame: _Frame, series: Series) -> str:
    means = running_mean([y for _, y in series.points])
    spreads = [1.96 * error for error in running_error(series.errors)]
    rows = [
        (frame.x(x), mean, spread)
        for (x, _), mean, spread in zip(series.points, means, spreads, strict=True)
        if math.isfinite(mean) and math.isfinite(spread)
    ]
    upper = [f"{x:.1f},{frame.y(mean + spread):.1f}" for x, mean, spread in rows]
    lower = [f"{x:.1f},{frame.y(mean - spread):.1f}" for x, mean, spread in rows]
    style = f"fill:var(--c{series.colour % COLOURS})"
    return f'<polygon class="band" style="{style}" points="{" ".join([*upper, *reversed(lower)])}"/>'


def _whiskers(frame: _Frame, series: Series) -> str:
    """Intervals as vertical lines, set apart a little by colour so that they do not hide each other."""
    style = f"stroke:var(--c{series.colour % COLOURS})"
    aside = 3.0 * (series.colour % COLOURS) - 4.5
    return "".join(
        f'<line class="whisker" style="{style}" x1="{frame.x(x) + aside:.1f}" x2="{frame.x(x) + aside:.1f}" '
        f'y1="{frame.y(low):.1f}" y2="{frame.y(high):.1f}"/>'
        for (x, _), low, high in zip(series.points, series.low, series.high, strict=True)
    )


def _line(frame: _Frame, series: Series) -> str:
    style = f"stroke:var(--c{series.colour % COLOURS})"
    drawn = ""
    points = list(series.points)
    if series.smooth and len(points) > 3:
        drawn = f'<path class="line faint" style="{style}" d="{_path(frame, points)}"/>'
        means = running_mean([y for _, y in points])
        points = [(x, mean) for (x, _), mean in zip(points, means, strict=True)]
    drawn += f'<path class="line" style="{style}" d="{_path(frame, points)}"/>'
    if series.dots or len(points) == 1:
        fill = f"fill:var(--c{series.colour % COLOURS})"
        drawn += "".join(
            f'<circle r="3" style="{fill}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}"/>'
            for x, y in points
            if math.isfinite(y)
        )
    return drawn


def _path(frame: _Frame, points: Sequence[tuple[float, float]]) -> str:
    commands: list[str] = []
    pen_up = True
    for x, y in points:
        if not math.isfinite(y):
            pen_up = True
            continue
        commands.append(f"{'M' if pen_up else 'L'}{frame.x(x):.1f} {frame.y(y):.1f}")
        pen_up = False
    return "".join(commands)


def _key(series: Series) -> str:
    colour = f"background:var(--c{series.colour % COLOURS})"
    return f'<span><i style="{colour}"></i>{escape(series.name)}</span>'


def _payload(frame: _Frame) -> str:
    """Points for the script: x in pixels and as number, values as they are said."""
    columns: dict[float, dict[str, str]] = {}
    for series in frame.chart.series:
        for index, (x, y) in enumerate(series.points):
            if math.isfinite(y):
                said = frame.label(y)
                if series.low:
                    said += f" [{frame.label(series.low[index])}, {frame.label(series.high[index])}]"
                columns.setdefault(x, {})[series.name] = said
    rows = [[round(frame.x(x), 1), number(x), columns[x]] for x in sorted(columns)]
    return escape(json.dumps(rows, separators=(",", ":"), ensure_ascii=False), quote=True)


@dataclass(frozen=True, slots=True)
class Score:
    """A share with its interval. Example: `Score(.37, .31, .43)`."""

    value: float
    """Point."""
    low: float
    """Low end."""
    high: float
    """High end."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One domain before and after. Example: `Pair("calc", 0, Score(.37, .31, .43), Score(.95, .92, .97))`."""

    name: str
    """Domain."""
    colour: int
    """Index of its colour."""
    before: Score | None
    """Hollow dot."""
    after: Score | None
    """Full dot."""


_NAMES = 140  # width of the column of names


def dumbbells(rows: Sequence[Pair]) -> str:
    """Before and after as two dots with intervals, one line per domain."""
    height = 26 * len(rows) + 30
    parts = [
        f'<line class="grid" x1="{_share_x(tick):.1f}" x2="{_share_x(tick):.1f}" y1="6" y2="{height - 24}"/>'
        f'<text class="tick" x="{_share_x(tick):.1f}" y="{height - 8}" text-anchor="middle">{100 * tick:.0f}%</text>'
        for tick in (0, 0.25, 0.5, 0.75, 1)
    ]
    parts += [_dumbbell(row, 20 + 26 * index) for index, row in enumerate(rows)]
    return f'<svg class="dumbbells" viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _share_x(value: float) -> float:
    return _NAMES + value * (WIDTH - _NAMES - 20)


def _dumbbell(row: Pair, y: float) -> str:
    paint = f"var(--c{row.colour % COLOURS})"
    parts = [f'<text class="name" x="{_NAMES - 14}" y="{y + 4}" text-anchor="end">{escape(row.name)}</text>']
    if row.before and row.after:
        ends = f'x1="{_share_x(row.before.value):.1f}" x2="{_share_x(row.after.value):.1f}"'
        parts.append(f'<line style="stroke:{paint};stroke-width:2;opacity:.4" {ends} y1="{y}" y2="{y}"/>')
    for score, fill in ((row.before, "var(--page)"), (row.after, paint)):
        if score:
            ends = f'x1="{_share_x(score.low):.1f}" x2="{_share_x(score.high):.1f}"'
            dot = f'r="5" cx="{_share_x(score.value):.1f}" cy="{y}"'
            parts.append(
                f'<line style="stroke:{paint};stroke-width:6;opacity:.25" {ends} y1="{y}" y2="{y}"/>'
            )
            parts.append(f'<circle {dot} style="fill:{fill};stroke:{paint};stroke-width:2"/>')
    return "".join(parts)

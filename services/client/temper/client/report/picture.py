"""The curves as one PNG, by matplotlib where it is installed."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from temper.client.report.charts import Chart, running_error, running_mean
from temper.client.report.curves import curves
from temper.client.report.gather import Material
from temper.runtime.errors import Unavailable

# The page's light colours, so that a domain looks the same in both.
_COLOURS = ("#2563c9", "#c7541a", "#1f8a5f", "#9a3fb5", "#b8870b", "#0e8ba0", "#c42f6d", "#6b7280")
_COLUMNS = 3


def available() -> bool:
    """Whether a picture can be made."""
    return find_spec("matplotlib") is not None


def write_png(material: Material, path: Path) -> None:
    """Draw all curves into `path`. Unavailable if matplotlib is not installed."""
    if not available():
        raise Unavailable("matplotlib is not installed", field="png", hint="pip install 'temper-rl[report]'")
    from matplotlib.figure import Figure

    charts = curves(material)
    rows = max(math.ceil(len(charts) / _COLUMNS), 1)
    figure = Figure(figsize=(5 * _COLUMNS, 3.1 * rows), dpi=110, layout="constrained")
    axes: Any = figure.subplots(rows, _COLUMNS, squeeze=False)
    for axis, chart in zip(axes.flat, charts, strict=False):
        _draw(axis, chart)
    for axis in axes.flat[len(charts) :]:
        axis.set_axis_off()
    figure.suptitle(f"{material.job.name} · {material.job.id} · {material.job.state}")
    figure.savefig(path)


def _draw(axis: Any, chart: Chart) -> None:
    for series in chart.series:
        colour = _COLOURS[series.colour % len(_COLOURS)]
        xs = [x for x, _ in series.points]
        ys = [y for _, y in series.points]
        if series.low:
            axis.vlines(xs, series.low, series.high, color=colour, alpha=0.5)
        if series.smooth:
            axis.plot(xs, ys, color=colour, alpha=0.28, linewidth=0.8)
            ys = running_mean(ys)
        if series.smooth and series.errors:
            spreads = [1.96 * error for error in running_error(series.errors)]
            low = [y - spread for y, spread in zip(ys, spreads, strict=True)]
            high = [y + spread for y, spread in zip(ys, spreads, strict=True)]
            axis.fill_between(xs, low, high, color=colour, alpha=0.13, linewidth=0)
        axis.plot(xs, ys, color=colour, linewidth=1.8, marker="o" if series.dots else None, label=series.name)
    for x, label in chart.marks:
        axis.axvline(x, color="#5c6470", linewidth=0.8, linestyle=":")
        axis.annotate(label, (x, 1), xycoords=("data", "axes fraction"), fontsize=7, va="top")
    axis.set_title(chart.title, fontsize=10, loc="left")
    axis.set_ylim(chart.y_low, chart.y_high)
    axis.grid(visible=True, color="#e4e7ec")
    axis.spines[["top", "right"]].set_visible(False)
    if len(chart.series) > 1:
        axis.legend(fontsize=7, frameon=False)

"""Charts as inline SVG, so that they print and need no script; the page's script adds the values on hover."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import chain

from lebm.show.charts import Chart, Series
from lebm.show.templates import render

WIDTH, HEIGHT = 460, 270
LEFT, RIGHT, TOP, BOTTOM = 56, 448, 12, 228  # of the area that data fill


class Axis:
    """Data -> place on the page, along one axis."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, log: bool = False, tight: bool = False
    ) -> None:
        from matplotlib.ticker import LogLocator, MaxNLocator

        finite = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or ([1.0] if log else [0.0])
        low, high = min(finite), max(finite)
        if log:
            self.ticks = [t for t in LogLocator(numticks=6).tick_values(low, high) if low / 3 <= t <= high * 3]
            low, high = math.log10(low), math.log10(max(high, low * 1.01))
        else:
            room = 0.0 if tight else 0.04 * (high - low)
            low, high = (low - room, high + room) if high > low else (low - 0.5, high + 0.5)
            ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
            self.ticks = [t for t in ticks if low <= t <= high]
        self.low, self.high, self.log, self.start, self.end = low, high, log, start, end

    def __call__(self, value: float) -> float:
        v = math.log10(value) if self.log and value > 0 else self.low if self.log else value
        share = (min(max(v, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def lines(chart: Chart) -> str:
    """A line chart on a card."""
    ys = chain.from_iterable(part for s in chart.series for part in (s.y, s.low or (), s.high or ()))
    x = Axis([float(v) for s in chart.series for v in s.x], LEFT, RIGHT, tight=True)
    y = Axis([float(v) for v in ys] + [0.0] * chart.zero, BOTTOM, TOP, chart.log)
    drawn = [s for s in chart.series if len(s.y)]
    hover = {
        "box": [LEFT, TOP, RIGHT, BOTTOM],
        "range": [x.low, x.high],
        "x": chart.x_label,
        "series": [{"name": s.name, "colour": s.colour, "x": _brief(s.x), "y": _brief(s.y)} for s in drawn],
    }
    mark = chart.mark if chart.mark and x.low < chart.mark[0] < x.high else None
    marks = {"areas": [(s.colour, _area(s, x, y)) for s in chart.series if s.low is not None],
             "curves": [(s.colour, _curve(s, x, y, chart.log)) for s in drawn]}  # fmt: skip
    return _card(chart, x, y, mark=mark, hover=json.dumps(hover), zero=chart.zero, **marks)


def scatter(title: str, groups: Sequence[Series], x_label: str, y_label: str, *, diagonal: bool = False) -> str:
    """Dots; with a diagonal where both axes mean the same."""
    xs, ys = [float(v) for s in groups for v in s.x], [float(v) for s in groups for v in s.y]
    if diagonal:
        xs = ys = xs + ys
    x, y = Axis(xs, LEFT, RIGHT), Axis(ys, BOTTOM, TOP)
    dots = [(s.colour, "".join(f"M{x(a):.1f} {y(b):.1f}h.1" for a, b in zip(s.x, s.y, strict=True))) for s in groups]
    return _card(Chart(title, groups, x_label, y_label), x, y, dots=dots, diagonal=diagonal)


def tick(value: float) -> str:
    """1500 -> 1,500; 20000 -> 20k; 1e-05 as it is."""
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    words = f"{value:,.6g}" if abs(value) >= 1000 else f"{value:.4g}"
    return words.replace("-", "−") if "e" not in words else words


def _card(chart: Chart, x: Axis, y: Axis, **marks: object) -> str:
    washes = iter((0.25, 0.45, 0.65))  # areas without a line are keyed by how dark they are
    keys = [(s.name, s.colour, 1 if len(s.y) else next(washes)) for s in chart.series if s.name]
    box = {"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM, "width": WIDTH, "height": HEIGHT}
    keys = keys if len(chart.series) > 1 else []
    return render("report/chart.html", chart=chart, keys=keys, x=x, y=y, tick=tick, **box, **marks)


def _area(s: Series, x: Axis, y: Axis) -> str:
    assert s.low is not None and s.high is not None
    there = [(x(a), y(b)) for a, b in zip(s.x, s.low, strict=True)]
    back = [(x(a), y(b)) for a, b in zip(s.x, s.high, strict=True)][::-1]
    return _path(there + back) + "Z"


def _curve(s: Series, x: Axis, y: Axis, log: bool) -> str:
    points = [(x(a), y(b)) for a, b in zip(s.x, s.y, strict=True) if math.isfinite(b) and (b > 0 or not log)]
    return _path(points) if len(points) > 1 else "".join(f"M{a:.1f} {b:.1f}h.1" for a, b in points)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points) if points else ""


def _brief(values: Sequence[float]) -> list[float | None]:
    """Five figures are enough to read; what is not finite has no place in JSON."""
    return [float(f"{v:.5g}") if math.isfinite(v) else None for v in map(float, values)]

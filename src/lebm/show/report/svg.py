"""Charts as inline SVG, so that they print and need no script; the page's script adds the values on hover."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lebm.show.charts import Chart
from lebm.show.templates import render

# The size of a chart, and the area that data fill.
BOX = {"width": 460, "height": 270, "left": 56, "right": 448, "top": 12, "bottom": 228}


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


def draw(chart: Chart) -> str:
    """A chart on a card."""
    xs = [float(v) for s in chart.series for v in s.x]
    ys = [float(v) for s in chart.series for part in (s.y, s.low, s.high) for v in part]
    if chart.diagonal:
        xs = ys = xs + ys
    x = Axis(xs, BOX["left"], BOX["right"], tight=not chart.dots)
    y = Axis(ys + [0.0] * chart.zero, BOX["bottom"], BOX["top"], chart.log)

    def points(xs: Sequence[float], ys: Sequence[float]) -> list[str]:
        pairs = zip(xs, ys, strict=True)
        return [f"{x(a):.1f} {y(b):.1f}" for a, b in pairs if math.isfinite(b) and (b > 0 or not chart.log)]

    marks = {
        "areas": [(s, points(s.x, s.low) + points(s.x, s.high)[::-1]) for s in chart.series if len(s.low)],
        "drawn": [(s, points(s.x, s.y)) for s in chart.series if len(s.y)],
        "mark": chart.mark if chart.mark and x.low < chart.mark[0] < x.high else None,
    }
    return render("report/chart.html", chart=chart, x=x, y=y, tick=tick, brief=brief, **marks, **BOX)


def tick(value: float) -> str:
    """1500 -> 1,500; 20000 -> 20k; 1e-05 as it is."""
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    words = f"{value:,.6g}" if abs(value) >= 1000 else f"{value:.4g}"
    return words.replace("-", "−") if "e" not in words else words


def brief(values: Sequence[float]) -> list[float | None]:
    """Five figures are enough to read; what is not finite has no place in JSON."""
    return [float(f"{v:.5g}") if math.isfinite(v) else None for v in map(float, values)]

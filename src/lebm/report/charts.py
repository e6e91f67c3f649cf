"""Charts as inline SVG: drawn here, so that they print and need no script; the page's script adds the hover.

Colours are classes (c0, c1, ...) that the page's style gives a light and a dark value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator

WIDTH, HEIGHT = 460, 270
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 42


@dataclass(frozen=True)
class Series:
    """A line, and around it an area from low to high where they are given."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


class Axis:
    """Data -> place on the page, along one axis."""

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool = False, tight: bool = False) -> None:
        finite = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or ([1.0] if log else [0.0])
        low, high = min(finite), max(finite)
        if log:
            self.ticks = [t for t in LogLocator(numticks=6).tick_values(low, high) if low / 3 <= t <= high * 3]
        else:
            room = 0.0 if tight else 0.04 * (high - low)
            low, high = (low - room, high + room) if high > low else (low - 0.5, high + 0.5)
            self.ticks = [t for t in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high) if low <= t <= high]
        self.low, self.high, self.log = (math.log10(low), math.log10(max(high, low * 1.01)), True) if log else (low, high, False)
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        v = math.log10(value) if self.log and value > 0 else self.low if self.log else value
        return self.start + (min(max(v, self.low), self.high) - self.low) / (self.high - self.low) * (self.end - self.start)


def lines(
    title: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    log: bool = False,
    zero: bool = False,
    mark: tuple[float, str] | None = None,
    name: str = "",
) -> str:
    """A line chart on a card. `mark` is a labelled vertical line; `name` lets the script find the chart."""
    xs = [float(v) for s in series for v in s.x]
    ys = [float(v) for s in series for part in (s.y, s.low or (), s.high or ()) for v in part] + ([0.0] if zero else [])
    x, y = Axis(xs, LEFT, WIDTH - RIGHT, tight=True), Axis(ys, HEIGHT - BOTTOM, TOP, log)
    parts = [_frame(x, y, x_label, y_label)]
    if zero:
        parts.append(f'<path class="zero" d="M{LEFT} {y(0):.1f}H{WIDTH - RIGHT}"/>')
    for s in series:
        if s.low is not None and s.high is not None:
            there = [(x(a), y(b)) for a, b in zip(s.x, s.low, strict=True)]
            back = [(x(a), y(b)) for a, b in zip(s.x, s.high, strict=True)][::-1]
            parts.append(f'<path class="band c{s.colour}" d="{_path(there + back)}Z"/>')
    for s in series:
        if not len(s.y):
            continue
        points = [(x(a), y(b)) for a, b in zip(s.x, s.y, strict=True) if math.isfinite(b) and (b > 0 or not log)]
        line = _path(points) if len(points) > 1 else "".join(f"M{a:.1f} {b:.1f}h.1" for a, b in points)
        parts.append(f'<path class="line c{s.colour}" d="{line}"/>')
    if mark is not None and x.low < mark[0] < x.high:
        at = x(mark[0])
        side, anchor = (5, "start") if at < WIDTH - 130 else (-5, "end")
        parts.append(
            f'<path class="mark" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/><text x="{at + side:.1f}" y="{TOP + 11}" text-anchor="{anchor}">{escape(mark[1])}</text>'
        )
    hover = {
        "box": [LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM],
        "range": [x.low, x.high],
        "x": x_label,
        "series": [{"name": s.name, "colour": s.colour, "x": _numbers(s.x), "y": _numbers(s.y)} for s in series if len(s.y)],
    }
    washes = iter((0.25, 0.45, 0.65))  # areas without a line are keyed by how dark they are
    legend = [(s.name, s.colour, 1 if len(s.y) else next(washes)) for s in series if s.name and len(series) > 1]
    return _card(title, legend, "".join(parts), f'data-chart="{escape(json.dumps(hover))}" data-name="{escape(name)}"')


def scatter(title: str, groups: Sequence[Series], x_label: str, y_label: str, *, diagonal: bool = False) -> str:
    """Dots; a diagonal where both axes mean the same."""
    xs, ys = ([float(v) for s in groups for v in part(s)] for part in (lambda s: s.x, lambda s: s.y))
    if diagonal:
        xs = ys = xs + ys
    x, y = Axis(xs, LEFT, WIDTH - RIGHT), Axis(ys, HEIGHT - BOTTOM, TOP)
    parts = [_frame(x, y, x_label, y_label)]
    if diagonal:
        parts.append(f'<path class="zero" d="M{LEFT} {HEIGHT - BOTTOM}L{WIDTH - RIGHT} {TOP}"/>')
    for s in groups:
        dots = "".join(f"M{x(a):.1f} {y(b):.1f}h.1" for a, b in zip(s.x, s.y, strict=True))
        parts.append(f'<path class="dots c{s.colour}" d="{dots}"/>')
    return _card(title, [(s.name, s.colour, 1.0) for s in groups if len(groups) > 1], "".join(parts), "")


def _card(title: str, legend: Sequence[tuple[str, int, float]], body: str, data: str) -> str:
    keys = "".join(f'<span class="key c{c}" style="--o:{o}">{escape(n)}</span>' for n, c, o in legend)
    words = escape(title + (": " + ", ".join(n for n, *_ in legend) if legend else ""))
    focus = 'tabindex="0" ' if data else ""
    return (
        f'<figure class="card chart"><figcaption><strong>{escape(title)}</strong><span class="keys">{keys}</span></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{words}" {focus}{data}>{body}</svg></figure>'
    )


def _frame(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    floor = HEIGHT - BOTTOM
    out = [f'<path class="grid" d="{"".join(f"M{LEFT} {y(t):.1f}H{WIDTH - RIGHT}" for t in y.ticks)}"/>']
    out += [f'<text x="{LEFT - 7}" y="{y(t) + 4:.1f}" text-anchor="end">{tick(t)}</text>' for t in y.ticks]
    out += [f'<text x="{x(t):.1f}" y="{floor + 17}" text-anchor="middle">{tick(t)}</text>' for t in x.ticks]
    out.append(f'<path class="floor" d="M{LEFT} {floor}H{WIDTH - RIGHT}"/>')
    out.append(f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    out.append(f'<text class="label" transform="translate(12 {(TOP + floor) / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>')
    return "".join(out)


def tick(value: float) -> str:
    """1500 -> 1,500; 20000 -> 20k; 1e-05 as it is."""
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    text = f"{value:,.6g}" if abs(value) >= 1000 else f"{value:.4g}"
    return text.replace("-", "−") if "e" not in text else text


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points) if points else ""


def _numbers(values: Sequence[float]) -> list[float | None]:
    """Four figures are enough to read; what is not finite has no place in JSON."""
    return [float(f"{v:.5g}") if math.isfinite(v) else None for v in np.asarray(values, dtype=float).tolist()]

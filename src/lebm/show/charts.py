"""What each chart shows, as data: `figures` draws it with matplotlib, `report.svg` inside a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

COLOURS = 6
POINTS = 200  # a curve with more points is shown as medians and ranges of so many groups

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Series:
    """A line, and around it an area from low to high where these are given. `colour` is a number below COLOURS."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Chart:
    """A chart of lines."""

    title: str
    series: Sequence[Series]
    x_label: str
    y_label: str
    log: bool = False
    zero: bool = False  # whether the level 0 is marked
    mark: tuple[float, str] | None = None  # a vertical line and its label
    name: str = ""  # by which a page's script finds the chart


@dataclass(frozen=True)
class Panel:
    """One chart of the training log: which keys of its rows it shows, and what they are called."""

    title: str
    unit: str
    lines: Mapping[str, str]
    log: bool = False
    zero: bool = False


PANELS = (
    Panel("gap  f_pos − f_neg", "nats", {"gap": "gap"}, zero=True),
    Panel("f on both chains", "nats", {"f_pos": "f_pos", "f_neg": "f_neg"}),
    Panel("reconstruction error", "squared error a pixel", {"mse": "mse"}),
    Panel("nats a word", "nats a word", {"nll_word": "−log p(x|z)"}),
    Panel("what z explains", "nats a sentence", {"z_gain": "nats lost with another z"}, zero=True),
    Panel(
        "gradient norm",
        "norm",
        {f"grad_{name}": name for name in ("prior", "generator", "encoder", "flow", "base")},
        log=True,
    ),
    Panel(
        "spread of proposals",
        "standard deviation",
        {
            "q_spread_pos": "encoder's means",
            "q_std_pos": "encoder's draws for one x",
            "q_spread_neg": "flow's draws",
        },
    ),
    Panel("chain displacement", "a coordinate of z", {"disp_pos": "posterior", "disp_neg": "prior"}),
    Panel("mean z²", "mean square", {"z_sq_pos": "posterior", "z_sq_neg": "prior"}),
)


def training(runs: Mapping[str, Rows]) -> list[Chart]:
    """The training logs of one or several runs by name, a chart for each panel that has numbers."""
    logs = {name: _in_order(rows) for name, rows in runs.items()}
    charts = []
    for panel in PANELS:
        series = [s for run, rows in logs.items() for s in _lines(panel, run, rows, len(logs) > 1)]
        if series:
            coloured = [replace(s, colour=i % COLOURS) for i, s in enumerate(series)]
            charts.append(Chart(panel.title, coloured, "update", panel.unit, log=panel.log, zero=panel.zero))
    return charts


def _in_order(rows: Rows) -> list[Mapping[str, Any]]:
    """Rows with a step, in its order. A run that was resumed may have logged a step twice; the later row counts."""
    latest = {int(row["step"]): row for row in rows if _finite(row.get("step"))}
    return [latest[step] for step in sorted(latest)]


def _lines(panel: Panel, run: str, rows: Sequence[Mapping[str, Any]], several: bool) -> list[Series]:
    series = []
    for key, label in panel.lines.items():
        points = [(r["step"], r[key]) for r in rows if _finite(r.get(key)) and (r[key] > 0 or not panel.log)]
        if not points:
            continue
        x, low, y, high = (column.tolist() for column in thin(*np.array(points, dtype=np.float64).T))
        if several:
            series.append(Series(f"{run}, {label}" if len(panel.lines) > 1 else run, x, y))
        else:
            area = (low, high) if len(x) < len(points) else (None, None)
            series.append(Series(label, x, y, 0, *area))
    return series


def thin(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(x, low, middle, high) in at most POINTS groups, so that a long log stays small and keeps its spikes."""
    if len(x) <= POINTS:
        return x, y, y, y
    groups = list(zip(np.array_split(x, POINTS), np.array_split(y, POINTS), strict=True))
    a = np.array([(gx.mean(), gy.min(), np.median(gy), gy.max()) for gx, gy in groups])
    return a[:, 0], a[:, 1], a[:, 2], a[:, 3]


def energy(profile: Mapping[str, Any], trained: int | None = None, title: str = "Energy along the chains",
           name: str = "") -> Chart:  # fmt: skip
    """The energy −f(z) along prior chains, from `measure.chains.profile`.

    `trained` is the K0 of learning, marked where the chains run on beyond it.
    """
    step, last = profile["step"], profile["step"][-1]
    series = (
        Series("10–90 %", step, (), 0, profile["low"], profile["high"]),
        Series("25–75 %", step, (), 0, profile["lower"], profile["upper"]),
        Series("median", step, profile["middle"], 0),
    )
    mark = (float(trained), f"K₀ = {trained}") if trained and 0 < trained < last else None
    return Chart(title, series, "Langevin step", "energy −f(z)", mark=mark, name=name)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

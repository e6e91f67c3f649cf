"""What each chart shows, as data: `figures` draws it with matplotlib, `report.svg` inside a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lebm.show.templates import is_number

COLOURS = 6
NETWORKS = ("prior", "generator", "encoder", "flow", "base")  # whose gradient norms the log holds
POINTS = 200  # a curve with more points is shown as medians and ranges of so many groups

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Series:
    """A line, and around it an area from low to high where these are given. `colour` is a number below COLOURS."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Chart:
    """A chart of lines, or of dots."""

    title: str
    series: Sequence[Series]
    x_label: str
    y_label: str
    log: bool = False
    zero: bool = False  # whether the level 0 is marked
    mark: tuple[float, str] | None = None  # a vertical line and its label
    name: str = ""  # by which a page's script finds the chart
    dots: bool = False
    diagonal: bool = False  # whether both axes are one scale, and their diagonal is drawn


# The training log: every chart without its lines, the keys of the rows that are its lines, and what these are called.
PANELS: Sequence[tuple[Chart, Mapping[str, str]]] = (
    (Chart("gap  f_pos − f_neg", (), "update", "nats", zero=True), {"gap": "gap"}),
    (Chart("f on both chains", (), "update", "nats"), {"f_pos": "f_pos", "f_neg": "f_neg"}),
    (Chart("reconstruction error", (), "update", "squared error a {unit}"), {"mse": "mse"}),
    (Chart("nats a word", (), "update", "nats a word"), {"nll_word": "−log p(x|z)"}),
    (Chart("what z explains", (), "update", "nats a sentence", zero=True), {"z_gain": "nats lost with another z"}),
    (Chart("gradient norm", (), "update", "norm", log=True), {f"grad_{name}": name for name in NETWORKS}),
    (
        Chart("spread of proposals", (), "update", "standard deviation"),
        {"q_spread_pos": "encoder's means", "q_std_pos": "encoder's draws for one x", "q_spread_neg": "flow's draws"},
    ),
    (Chart("chain displacement", (), "update", "a coordinate of z"), {"disp_pos": "posterior", "disp_neg": "prior"}),
    (Chart("mean z²", (), "update", "mean square"), {"z_sq_pos": "posterior", "z_sq_neg": "prior"}),
)


def training(runs: Mapping[str, Rows], unit: str = "pixel") -> list[Chart]:
    """The training logs of one or several runs by name, a chart for each panel that has numbers.

    unit: what the rows of data consist of, such as pixels or columns.
    """
    logs = {name: _in_order(rows) for name, rows in runs.items()}
    charts = []
    for chart, keys in PANELS:
        series = [s for run, rows in logs.items() for s in _lines(chart, keys, run, rows, len(logs) > 1)]
        if series:
            coloured = [replace(s, colour=i % COLOURS) for i, s in enumerate(series)]
            charts.append(replace(chart, series=coloured, y_label=chart.y_label.format(unit=unit)))
    return charts


def _in_order(rows: Rows) -> list[Mapping[str, Any]]:
    """Rows with a step, in its order. A run that was resumed may have logged a step twice; the later row counts."""
    latest = {int(row["step"]): row for row in rows if is_number(row.get("step"))}
    return [latest[step] for step in sorted(latest)]


def _lines(
    chart: Chart, keys: Mapping[str, str], run: str, rows: Sequence[Mapping[str, Any]], several: bool
) -> Iterator[Series]:
    for key, label in keys.items():
        points = [(r["step"], r[key]) for r in rows if is_number(r.get(key)) and (r[key] > 0 or not chart.log)]
        if points:
            x, low, y, high = (column.tolist() for column in thin(*np.array(points, dtype=np.float64).T))
            area = (low, high) if len(x) < len(points) and not several else ((), ())
            name = label if not several else f"{run}, {label}" if len(keys) > 1 else run
            yield Series(name, x, y, 0, *area)


def thin(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(x, low, middle, high) in at most POINTS groups, so that a long log stays small and keeps its spikes."""
    if len(x) <= POINTS:
        return x, y, y, y
    groups = list(zip(np.array_split(x, POINTS), np.array_split(y, POINTS), strict=True))
    a = np.array([(gx.mean(), gy.min(), np.median(gy), gy.max()) for gx, gy in groups])
    return a[:, 0], a[:, 1], a[:, 2], a[:, 3]


def energy(
    profile: Mapping[str, Any], trained: int | None = None, title: str = "Energy along the chains", name: str = ""
) -> Chart:
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

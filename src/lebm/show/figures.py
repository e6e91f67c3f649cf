"""Charts by matplotlib: numbers in, a Figure out. Nothing here reads a model, a run or a global setting.

A chart saved as SVG draws its text in the reader's colour, so it sits well on light and dark pages.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from lebm.core.errors import DataError, UserError
from lebm.core.files import write_atomic
from lebm.measure.chains import profile as quantiles
from lebm.modalities.grids import GUTTER, grid
from lebm.show import charts
from lebm.show.charts import Chart, Rows, Series

INK = "#1f2933"  # text and axes; becomes the reader's text colour in an SVG
INK_ON_DARK = "#e4e8ee"
BLUE, VERMILION = "#0072b2", "#d55e00"
# By the number of a series' colour; after Okabe and Ito: apart for every kind of colour vision.
COLOURS = (BLUE, VERMILION, "#009e73", "#8a94a0", "#a66fb5", "#b8860b")
SKY = "#56b4e9"  # the blue, on a dark page
PANEL = (3.5, 2.4)  # inches
SHOWN, BINS = 32, 60  # images of a sheet and bars of a histogram in the picture of a detector


def training_curves(rows: Rows, columns: int = 3, unit: str = "pixel") -> Figure:
    """All charts of a training log in one figure; keys that the rows lack are left out."""
    panels = charts.training({"": rows}, unit)
    height = max(1, math.ceil(len(panels) / columns))
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * height), layout="constrained")
    for i, panel in enumerate(panels):
        draw(figure.add_subplot(height, columns, i + 1), panel)
    if not panels:
        figure.text(0.5, 0.5, "the log holds no numbers yet", ha="center", va="center", color=INK)
    return figure


def energy_profile(energy: Any, trained: int | None = None) -> Figure:
    """The energy −f(z) along prior chains, (steps + 1, chains)."""
    figure = Figure(figsize=(4.7, 3.2), layout="constrained")
    draw(figure.subplots(), charts.energy(_profile(energy), trained, title=""))
    return figure


def _profile(energy: Any) -> Mapping[str, Any]:
    array = np.asarray(energy, dtype=np.float64)
    if array.ndim != 2 or 0 in array.shape:
        raise DataError(f"an energy profile has the shape (steps + 1, chains); got {array.shape}")
    return quantiles(np.where(np.isfinite(array), array, np.nan))


def transition(pixels: Any, steps: Sequence[int], energy: Any, trained: int | None = None) -> Figure:
    """As in the paper: a chain a row, time to the right, the energy of all chains beneath.

    pixels: uint8 (frames, rows, c, h, w); energy: as `energy_profile` takes it.
    """
    images = np.asarray(pixels)
    frames, rows = images.shape[:2]
    sheet = grid(images.swapaxes(0, 1).reshape(-1, *images.shape[2:]), columns=frames)
    height = 9 * sheet.height / sheet.width
    figure = Figure(figsize=(9.6, height + 2.9), layout="constrained")
    top, below = figure.subplots(2, 1, height_ratios=[height, 2.3])
    _show(top, sheet, f"{rows} chains, by Langevin step")
    pitch = (sheet.width + GUTTER) / frames
    labelled = range(0, frames, max(1, math.ceil(frames / 14)))
    top.set_xticks([(i + 0.5) * pitch for i in labelled], [f"{steps[i]:,}" for i in labelled], color=INK, fontsize=9)
    draw(below, charts.energy(_profile(energy), trained, title=""))
    return figure


def scatter(rows: Any, samples: Mapping[str, Any]) -> Figure:
    """Samples over rows of data in the plane of their first two columns, a panel for each name of `samples`.

    rows: (n, 2); each of samples: (m, 2).
    """
    figure = Figure(figsize=(4.2 * len(samples), 4.2), layout="constrained")
    axes = figure.subplots(1, len(samples), squeeze=False, sharex=True, sharey=True)[0]
    for ax, (name, points) in zip(axes, samples.items(), strict=True):
        _bare(ax, name)
        for label, (x, y), colour in (("test rows", np.asarray(rows).T, "#8a94a0"), ("samples", points.T, BLUE)):
            ax.scatter(x, y, s=11, color=colour, alpha=0.6, linewidths=0, label=label)
        ax.grid(color=INK, alpha=0.13, linewidth=0.8)
        ax.set_xlabel("first column", color=INK, fontsize=9)
        ax.set_ylabel("second column", color=INK, fontsize=9)
        _legend(ax)
    return figure


def detection(scores: np.ndarray, anomalous: np.ndarray, pixels: Any = None, title: str = "") -> Figure:
    """A detector at work: how scores lie, precision against recall, the strangest and the plainest images.

    pixels: the images of the scores, uint8 (n, c, h, w); without them, as for a table, the two charts stand alone.
    """
    rows = 1 if pixels is None else 2
    figure = Figure(figsize=(9.6, 3.2 + 2.9 * (rows - 1)), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False)
    _histogram(axes[0, 0], scores, anomalous)
    _precision_recall(axes[0, 1], scores, anomalous)
    order = np.argsort(-scores, kind="stable")
    for i, (name, shown) in enumerate({"most": order[:SHOWN], "least": order[::-1][:SHOWN]}.items()):
        if pixels is not None:
            words = f"{name} anomalous: {int(anomalous[shown].sum())} of {len(shown)} are anomalies"
            _show(axes[1, i], grid(np.asarray(pixels)[shown], columns=8), words)
    if title:
        figure.suptitle(title, color=INK, fontsize=11, x=0.01, ha="left")
    return figure


def _histogram(ax: Axes, scores: np.ndarray, anomalous: np.ndarray) -> None:
    low, high = np.quantile(scores, (0.001, 0.999))  # a few extreme scores would leave one bar
    edges = np.linspace(low, high if high > low else low + 1, BINS).tolist()
    for what, colour, name in ((~anomalous, BLUE, "normal"), (anomalous, VERMILION, "anomalies")):
        ax.hist(scores[what].clip(edges[0], edges[-1]), edges, density=True, color=colour, alpha=0.55, label=name)
    _bare(ax, "scores")
    ax.set_yticks([])
    _legend(ax)


def _precision_recall(ax: Axes, scores: np.ndarray, anomalous: np.ndarray) -> None:
    from sklearn.metrics import average_precision_score, precision_recall_curve

    precision, recall, _ = precision_recall_curve(anomalous, scores)
    area, chance = average_precision_score(anomalous, scores), float(anomalous.mean())
    series = [
        Series(f"AUPRC {area:.3f}", recall[:-1], precision[:-1], 1),
        Series(f"chance {chance:.3f}", (0, 1), (chance, chance), 3),
    ]
    draw(ax, Chart("precision against recall", series, "", ""))
    ax.set(xlim=(0, 1), ylim=(0, 1.02))
    ax.xaxis.set_major_locator(MaxNLocator(5))


def _show(ax: Axes, sheet: Any, title: str) -> None:
    """A picture as it is, without axes."""
    ax.imshow(sheet, interpolation="nearest", aspect="equal")
    _bare(ax, title)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def draw(ax: Axes, chart: Chart) -> None:
    """One chart of lines; those of dots are for a page alone."""
    for i, s in enumerate(s for s in chart.series if len(s.low)):
        name = None if len(s.y) else s.name  # an area with a line is named by its line
        ax.fill_between(s.x, s.low, s.high, color=COLOURS[s.colour], alpha=0.16 + 0.12 * i, linewidth=0, label=name)
    for s in chart.series:
        if len(s.y):
            dot = "o" if len(s.x) == 1 else None
            ax.plot(s.x, s.y, color=COLOURS[s.colour], linewidth=1.7, label=s.name, marker=dot, markersize=4)
    if chart.zero:
        ax.axhline(0, color=INK, linewidth=1, alpha=0.5)
    if chart.mark:
        at, words = chart.mark
        ax.axvline(at, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        ax.text(at, 0.99, f"  {words}", transform=ax.get_xaxis_transform(), va="top", color=INK, fontsize=9)
    named = [chart.title, *(f"oooo{s.name}" for s in chart.series)]  # what stands above the chart, keys included
    figure, cells = ax.get_figure(root=True), ax.get_gridspec()
    assert figure and cells  # every chart stands in a layout
    crowded = len(chart.series) > 1 and len("".join(named)) > 13 * (figure.get_figwidth() / cells.ncols - 0.5)
    _bare(ax, chart.title, pad=19 if crowded else 6)
    ax.grid(axis="y", color=INK, alpha=0.13, linewidth=0.8)
    if chart.log:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(numticks=5))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlim(0, 1.01 * max(1, *(s.x[-1] for s in chart.series)))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10], integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v / 1000:g}k" if abs(v) >= 10_000 else f"{v:g}"))
    ax.set_xlabel(chart.x_label, color=INK, fontsize=9)
    ax.set_ylabel(chart.y_label, color=INK, fontsize=9)
    if len(chart.series) > 1:
        _legend(ax)


def _bare(ax: Axes, title: str, pad: float = 6) -> None:
    """Few lines and no box: the data should be the darkest thing in the chart."""
    ax.set_facecolor("none")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.spines["bottom"].set(color=INK, alpha=0.4)
    ax.tick_params(which="both", length=0, colors=INK, labelsize=9, pad=5)
    ax.set_title(title, loc="left", color=INK, fontsize=9.5, fontweight="bold", pad=pad)


def _legend(ax: Axes) -> None:
    """Above the chart at the right, where it hides no data."""
    count = len(ax.get_legend_handles_labels()[0])
    ax.legend(
        loc="lower right", bbox_to_anchor=(1.02, 0.985), ncols=count, frameon=False, fontsize=9,
        labelcolor=INK, handlelength=1, handletextpad=0.4, columnspacing=0.9, borderpad=0.2,
    )  # fmt: skip


# --- files ----------------------------------------------------------------------------------------------------------


def save(figure: Figure, path: str | Path) -> Path:
    """Write a chart as .png or .svg, whole or not at all. The same chart gives the same bytes."""
    path = Path(path)
    write = {".png": png, ".svg": svg}.get(path.suffix.lower())
    if write is None:
        raise UserError(f"cannot save {path.name!r}: a chart is written as .png or .svg")
    write_atomic(path, write(figure))
    return path


def png(figure: Figure) -> bytes:
    """The content of a .png file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """A chart without background, its text real text in the reader's font and colour, light or dark."""
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lebm"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue().decode().replace(INK, "currentColor")
    fonts = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
    text = re.sub(r"'DejaVu Sans'[^;\"]*", fonts, text)
    dark = f":root{{color:{INK_ON_DARK}}}" + "".join(
        f"[style*='{what}: {BLUE}']{{{what}:{SKY}!important}}" for what in ("stroke", "fill")
    )
    style = f":root{{color-scheme:light dark;color:{INK}}}@media(prefers-color-scheme:dark){{{dark}}}"
    return text.replace("<defs>", f"<style>{style}</style>\n <defs>", 1).encode()

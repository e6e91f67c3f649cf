"""One picture of a detector at work: how the scores lie, precision against recall, the strangest and the plainest rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lebm.figures import BLUE, INK, VERMILION, grid
from lebm.metrics.anomaly import auprc, chance, precision_recall

SHOWN = 32  # images a sheet
BINS = 60


def draw(scores: np.ndarray, anomalous: np.ndarray, pixels: Any = None, title: str = "") -> Figure:
    """`pixels` are the images of the scores, uint8 (n, c, h, w); without them, as for a table, the two charts stand alone."""
    rows = 1 if pixels is None else 2
    figure = Figure(figsize=(9.6, 3.2 + 2.9 * (rows - 1)), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False)
    _histogram(axes[0, 0], scores, anomalous)
    _curve(axes[0, 1], scores, anomalous)
    if pixels is not None:
        order = np.argsort(-scores, kind="stable")
        for ax, name, rows_shown in ((axes[1, 0], "most anomalous", order[:SHOWN]), (axes[1, 1], "least anomalous", order[::-1][:SHOWN])):
            _sheet(ax, np.asarray(pixels)[rows_shown], f"{name}: {int(anomalous[rows_shown].sum())} of {len(rows_shown)} are anomalies")
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
    ax.legend(frameon=False, labelcolor=INK, fontsize=9)


def _curve(ax: Axes, scores: np.ndarray, anomalous: np.ndarray) -> None:
    precision, recall = precision_recall(scores, anomalous)
    ax.plot(recall, precision, color=VERMILION, linewidth=1.8, label=f"AUPRC {auprc(scores, anomalous):.3f}")
    ax.axhline(chance(anomalous), color=INK, linewidth=1, linestyle=(0, (4, 3)), label=f"chance {chance(anomalous):.3f}")
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1.02)
    _bare(ax, "precision against recall")
    ax.legend(frameon=False, labelcolor=INK, fontsize=9, loc="lower left")


def _sheet(ax: Axes, pixels: np.ndarray, title: str) -> None:
    ax.imshow(grid(pixels, columns=8), interpolation="nearest")
    _bare(ax, title)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)


def _bare(ax: Axes, title: str) -> None:
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(length=0, colors=INK, labelsize=9)
    ax.set_title(title, loc="left", color=INK, fontsize=9.5, fontweight="bold")

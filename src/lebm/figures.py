"""Pictures: arrays in, a PIL image or a matplotlib Figure out. Nothing here reads a model, a run or a global setting.

Image grids have transparent gutters and SVG charts draw their text in the reader's colour, so both sit well on light and dark pages.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lebm import checkpoint
from lebm.errors import DataError, UserError

WIDEST = 800  # pixels: small images are enlarged up to this width of the whole grid
GUTTER = 2
BETWEEN_PAIRS = 14
NOTE = "lebm"  # the text chunk of a PNG that holds the note

INK = "#1f2933"  # text and axes; becomes the reader's text colour in an SVG
INK_ON_DARK = "#e4e8ee"
BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#a66fb5"  # after Okabe and Ito: apart for every kind of colour vision
PANEL = (3.5, 2.4)  # inches
SKY = "#56b4e9"  # the blue, on a dark page
POINTS = 200  # a curve with more rows is drawn as medians and ranges of so many groups

# --- image grids ----------------------------------------------------------------------------------------------------


def grid(pixels: Any, columns: int | None = None, scale: int | None = None, gutter: int = GUTTER) -> Image.Image:
    """Images (n, c, h, w) in uint8 as a tight grid, row by row, each pixel enlarged to a square of `scale` a side."""
    tiles = _tiles(pixels)
    columns = _columns(columns, len(tiles), default=math.ceil(math.sqrt(len(tiles))))
    scale = _scale(scale, tiles, columns)
    rows = _rows(tiles, columns)
    pitch = tiles.shape[1] * scale + gutter
    return _paste(rows, [i * pitch for i in range(len(rows))], columns, scale, gutter)


def pairs(originals: Any, reconstructions: Any, columns: int | None = None, scale: int | None = None) -> Image.Image:
    """Rows of originals, each with its reconstruction directly beneath; a wider gap parts one row of pairs from the next."""
    above, below = _tiles(originals), _tiles(reconstructions)
    if above.shape != below.shape:
        raise DataError(f"pairs takes as many reconstructions as originals, of one shape; got {np.shape(originals)} and {np.shape(reconstructions)}")
    columns = _columns(columns, len(above), default=10)
    scale = _scale(scale, above, columns)
    rows = [row for pair in zip(_rows(above, columns), _rows(below, columns), strict=True) for row in pair]
    side = above.shape[1] * scale
    pitch = 2 * side + GUTTER + BETWEEN_PAIRS
    return _paste(rows, [(i // 2) * pitch + (i % 2) * (side + GUTTER) for i in range(len(rows))], columns, scale)


def animation(frames: Any, steps: Sequence[int], milliseconds: int = 180) -> bytes:
    """Frames (t, n, c, h, w) in uint8 as an animated WebP: a grid a frame, a bar that fills beneath, the last one held."""
    pictures = []
    for i, frame in enumerate(frames):
        tiles = grid(frame, columns=math.ceil(math.sqrt(2 * len(frame)))).convert("RGB")
        canvas = Image.new("RGB", (tiles.width, tiles.height + 10), "white")
        canvas.paste(tiles, (0, 0))
        done = steps[i] / max(1, steps[-1])
        canvas.paste(BLUE, (0, tiles.height + 4, max(1, round(done * tiles.width)), tiles.height + 10))
        pictures.append(canvas)
    buffer = io.BytesIO()
    held = [milliseconds] * (len(pictures) - 1) + [1500]
    pictures[0].save(buffer, "WEBP", save_all=True, append_images=pictures[1:], duration=held, loop=0, lossless=True)
    return buffer.getvalue()


def _tiles(pixels: Any) -> np.ndarray:
    """(n, h, w, c + 1): channels last, an opaque alpha channel added."""
    array = np.asarray(pixels.detach().cpu() if hasattr(pixels, "detach") else pixels)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in array.shape:
        raise DataError(f"a grid takes uint8 images of shape (n, 1 or 3, height, width), at least one; got {array.dtype} {array.shape}")
    opaque = np.full_like(array[:, :1], 255)
    return np.concatenate([array, opaque], axis=1).transpose(0, 2, 3, 1)


def _columns(columns: int | None, n: int, default: int) -> int:
    if columns is not None and columns < 1:
        raise UserError(f"columns is {columns}; a grid has at least 1")
    return min(columns or default, n)


def _scale(scale: int | None, tiles: np.ndarray, columns: int) -> int:
    if scale is not None and scale < 1:
        raise UserError(f"scale is {scale}; it must be a whole number, at least 1")
    return scale or max(1, (WIDEST - (columns - 1) * GUTTER) // (columns * tiles.shape[2]))


def _rows(tiles: np.ndarray, columns: int) -> list[np.ndarray]:
    return [tiles[i : i + columns] for i in range(0, len(tiles), columns)]


def _paste(rows: Sequence[np.ndarray], tops: Sequence[int], columns: int, scale: int, gutter: int = GUTTER) -> Image.Image:
    """Rows of tiles on a transparent canvas, row i with its upper edge at tops[i]."""
    _, h, w, c = rows[0].shape
    h, w = h * scale, w * scale
    canvas = np.zeros((tops[-1] + h, columns * (w + gutter) - gutter, c), np.uint8)
    canvas[..., :-1] = 255  # white where a viewer ignores transparency
    for top, row in zip(tops, rows, strict=True):
        for i, tile in enumerate(row):
            left = i * (w + gutter)
            canvas[top : top + h, left : left + w] = tile.repeat(scale, 0).repeat(scale, 1)
    return Image.fromarray(canvas)


# --- charts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    """One small chart of the training log: its title and its lines as (key of the row, label, colour)."""

    title: str
    lines: tuple[tuple[str, str, str], ...]
    log: bool = False
    zero: bool = False  # mark the level 0
    unit: str = ""


PANELS: tuple[Panel, ...] = (
    Panel("gap  f_pos − f_neg", (("gap", "gap", PURPLE),), zero=True, unit="nats"),
    Panel("f on both chains", (("f_pos", "f_pos", BLUE), ("f_neg", "f_neg", VERMILION)), unit="nats"),
    Panel("reconstruction error", (("mse", "mse", GREEN),), unit="squared error a pixel"),
    Panel("nats a word", (("nll_word", "-log p(x|z)", GREEN),), unit="nats a word"),
    Panel("what z explains", (("z_gain", "nats lost by another z", PURPLE),), zero=True, unit="nats a sentence"),
    Panel(
        "gradient norm",
        (
            ("grad_prior", "prior", VERMILION),
            ("grad_generator", "generator", GREEN),
            ("grad_encoder", "encoder", BLUE),
            ("grad_flow", "flow", PURPLE),
        ),
        log=True,
        unit="norm",
    ),
    Panel(
        "spread of proposals",
        (("q_spread_pos", "encoder's means", BLUE), ("q_std_pos", "encoder's draws of one x", GREEN), ("q_spread_neg", "flow's draws", VERMILION)),
        unit="standard deviation",
    ),
    Panel("chain displacement", (("disp_pos", "posterior", BLUE), ("disp_neg", "prior", VERMILION)), unit="a coordinate of z"),
    Panel("mean z²", (("z_sq_pos", "posterior", BLUE), ("z_sq_neg", "prior", VERMILION)), unit="mean square"),
)


def training_curves(rows: Iterable[Mapping[str, Any]], columns: int = 3) -> Figure:
    """All panels of the training log in one figure; keys that the rows lack are left out."""
    found = log_curves(rows)
    height = max(1, math.ceil(len(found) / columns))
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * height), layout="constrained")
    for i, (panel, curves) in enumerate(found):
        _draw_panel(figure.add_subplot(height, columns, i + 1), panel, curves)
    if not found:
        figure.text(0.5, 0.5, "the log holds no numbers yet", ha="center", va="center", color=INK)
    return figure


def energy_profile(profile: Any, trained: int | None = None) -> Figure:
    """The energy −f(z) along prior chains from N(0, I), (steps + 1, chains): median, 25-75 % and 10-90 % of the chains.

    `trained` is the K0 that learning used; it is marked where the chains run on beyond it.
    """
    array = np.asarray(profile.detach().cpu() if hasattr(profile, "detach") else profile, dtype=np.float64)
    if array.ndim != 2 or 0 in array.shape:
        raise DataError(f"an energy profile has the shape (steps + 1, chains); got {array.shape}")
    figure = Figure(figsize=(4.7, 3.2), layout="constrained")
    _draw_profile(figure.subplots(), array, trained)
    return figure


def _draw_profile(ax: Axes, array: np.ndarray, trained: int | None) -> None:
    low, lower, middle, upper, high = np.array([_quantiles(row, (0.1, 0.25, 0.5, 0.75, 0.9)) for row in array]).T
    k = np.arange(len(array))
    _plain(ax)
    ax.plot(k, middle, color=BLUE, linewidth=2, label="median")
    ax.fill_between(k, lower, upper, color=BLUE, alpha=0.28, linewidth=0, label="25–75 %")
    ax.fill_between(k, low, high, color=BLUE, alpha=0.16, linewidth=0, label="10–90 %")
    if trained is not None and 0 < trained < len(array) - 1:
        ax.axvline(trained, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        top, words = ax.get_xaxis_transform(), f"  K₀ = {trained} in training"
        ax.text(trained, 0.99, words, transform=top, va="top", color=INK, fontsize=9)
    ax.set_xlim(0, max(1, len(array) - 1))
    ax.set_xlabel("Langevin step k", color=INK)
    ax.set_ylabel("energy  −f(z)", color=INK)
    _legend(ax, fontsize=9)


def transition(pixels: Any, steps: Sequence[int], energy: Any, trained: int | None = None) -> Figure:
    """As in the paper: a chain a row, time to the right, the energy of all chains beneath. pixels: uint8 (frames, rows, c, h, w)."""
    images = np.asarray(pixels)
    frames, rows = images.shape[:2]
    sheet = grid(images.swapaxes(0, 1).reshape(-1, *images.shape[2:]), columns=frames)
    height = 9 * sheet.height / sheet.width
    figure = Figure(figsize=(9.6, height + 2.9), layout="constrained")
    top, below = figure.subplots(2, 1, height_ratios=[height, 2.3])
    top.imshow(sheet, interpolation="nearest", aspect="equal")
    top.set_yticks([])
    pitch = (sheet.width + GUTTER) / frames
    shown = range(0, frames, max(1, math.ceil(frames / 14)))
    top.set_xticks([(i + 0.5) * pitch for i in shown], [f"{steps[i]:,}" for i in shown], color=INK, fontsize=9)
    top.tick_params(length=0)
    top.spines[:].set_visible(False)
    top.set_title(f"{rows} chains from noise, by Langevin step", loc="left", color=INK, fontsize=10)
    _draw_profile(below, np.asarray(energy, dtype=np.float64), trained)
    return figure


def log_curves(rows: Iterable[Mapping[str, Any]]) -> list[tuple[Panel, dict[str, np.ndarray]]]:
    """Each panel with its lines' (step, value) columns; panels without any finite number are left out."""
    latest = {int(row["step"]): row for row in rows if _number(row.get("step"))}  # a resumed run may log a step again
    ordered = [latest[step] for step in sorted(latest)]
    found = []
    for panel in PANELS:
        curves = {}
        for key, _, _ in panel.lines:
            points = [(row["step"], row[key]) for row in ordered if _number(row.get(key)) and (row[key] > 0 or not panel.log)]
            if points:
                curves[key] = np.array(points, dtype=np.float64).T
        if curves:
            found.append((panel, curves))
    return found


def _draw_panel(ax: Axes, panel: Panel, curves: Mapping[str, np.ndarray]) -> None:
    _plain(ax)
    for key, label, colour in panel.lines:
        if key not in curves:
            continue
        x, low, y, high = thin(*curves[key])
        if len(x) < len(curves[key][0]):
            ax.fill_between(x, low, high, color=colour, alpha=0.22, linewidth=0)
        ax.plot(x, y, color=colour, linewidth=1.6, label=label, marker="o" if len(x) == 1 else None, markersize=4)
    if panel.zero:
        ax.axhline(0, color=INK, linewidth=1, alpha=0.5)
    if panel.log:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(numticks=5))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlim(0, 1.01 * max(1, *(x[-1] for x, _ in curves.values())))
    ax.set_xlabel("step", color=INK, fontsize=9)
    ax.set_title(panel.title, loc="left", color=INK, fontsize=9.5, fontweight="bold")
    if len(panel.lines) > 1:
        _legend(ax, fontsize=9)


def _plain(ax: Axes) -> None:
    """Few lines, no box: the data should be the darkest thing in the chart."""
    ax.set_facecolor("none")
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.spines["bottom"].set(color=INK, alpha=0.4)
    ax.grid(axis="y", color=INK, alpha=0.13, linewidth=0.8)
    ax.tick_params(which="both", length=0, colors=INK, labelsize=9, pad=5)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10], integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v / 1000:g}k" if abs(v) >= 10_000 else f"{v:g}"))


def _legend(ax: Axes, fontsize: float) -> None:
    """Above the chart at the right, where it hides no data."""
    count = len(ax.get_legend_handles_labels()[0])
    ax.legend(
        loc="lower right", bbox_to_anchor=(1.02, 0.985), ncols=count, frameon=False, fontsize=fontsize,
        labelcolor=INK, handlelength=1, handletextpad=0.4, columnspacing=0.9, borderpad=0.2,
    )  # fmt: skip


def thin(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(x, low, middle, high) in at most POINTS groups, so that a long log stays small and keeps its spikes."""
    if len(x) <= POINTS:
        return x, y, y, y
    groups = list(zip(np.array_split(x, POINTS), np.array_split(y, POINTS), strict=True))
    a = np.array([(gx.mean(), gy.min(), np.median(gy), gy.max()) for gx, gy in groups])
    return a[:, 0], a[:, 1], a[:, 2], a[:, 3]


def _quantiles(values: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    finite = values[np.isfinite(values)]
    return np.quantile(finite, levels) if len(finite) else np.full(len(levels), np.nan)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# --- files ----------------------------------------------------------------------------------------------------------


def save(picture: Image.Image | Figure, path: str | Path, note: Mapping[str, Any] | None = None) -> Path:
    """Write an image as .png, a chart as .png or .svg: whole or not at all. The same picture gives the same bytes.

    A grid carries the `note`, so that nobody has to remember how it was made.
    """
    path = Path(path)
    endings = (".png",) if isinstance(picture, Image.Image) else (".png", ".svg")
    if path.suffix.lower() not in endings:
        raise UserError(f"cannot save {path.name!r}: a {'grid' if len(endings) == 1 else 'chart'} is written as {' or '.join(endings)}")
    checkpoint.write_atomic(path, svg(picture) if path.suffix.lower() == ".svg" and isinstance(picture, Figure) else png(picture, note))
    return path


def noted(path: str | Path) -> dict[str, Any]:
    """The note that a grid was saved with; empty where there is none."""
    try:
        with Image.open(path, formats=("PNG",)) as image:
            found = json.loads(image.info[NOTE])
    except (OSError, ValueError, KeyError, TypeError, SyntaxError, RecursionError, Image.DecompressionBombError):
        return {}
    return found if isinstance(found, dict) else {}


def png(picture: Image.Image | Figure, note: Mapping[str, Any] | None = None) -> bytes:
    buffer = io.BytesIO()
    if isinstance(picture, Image.Image):
        info = PngInfo()
        if note:
            info.add_text(NOTE, json.dumps(note))
        picture.save(buffer, "PNG", optimize=True, pnginfo=info)
    else:
        picture.savefig(buffer, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """A chart without background, its text real text in the reader's font and colour, light or dark."""
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lebm"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue().decode().replace(INK, "currentColor")
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif", text)
    dark = f":root{{color:{INK_ON_DARK}}}[style*='stroke: {BLUE}']{{stroke:{SKY}!important}}[style*='fill: {BLUE}']{{fill:{SKY}!important}}"
    style = f":root{{color-scheme:light dark;color:{INK}}}@media(prefers-color-scheme:dark){{{dark}}}"
    return text.replace("<defs>", f"<style>{style}</style>\n <defs>", 1).encode()

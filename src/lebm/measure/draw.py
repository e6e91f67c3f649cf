"""The pictures and sentences that measuring a run leaves in its folder. How to draw is known by lebm.show and the
modalities.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from lebm.core.errors import NotDefined
from lebm.core.files import write_atomic
from lebm.core.pixels import to_pixels
from lebm.generators import Generator
from lebm.measure.chains import Trace, energy_profile
from lebm.measure.metric import Evaluation
from lebm.modalities import Modality, of
from lebm.run import Run
from lebm.show import pictures

IMAGES, PAIRS, SENTENCES = 64, 32, 20  # samples and reconstructions that are shown
SENTENCES_FILE = "sentences.json"


def evaluation(run: Run, ev: Evaluation) -> None:
    """Samples from the learned prior and from p_0, reconstructions, the energy along chains, training curves."""
    from lebm.show import figures

    modality = of(ev.method.generator.modality)
    if modality.pictures or modality.terminal:
        _rows(run, ev, modality)
    if k0 := ev.method.choose("prior").steps:
        with contextlib.suppress(NotDefined):  # a method whose prior has no energy
            profile = energy_profile(ev.method, ev.seed, 2 * k0)
            figures.save(figures.energy_profile(profile, trained=k0), run.figures / "energy.svg")
    if rows := run.rows():
        figures.save(figures.training_curves(rows), run.figures / "curves.svg")


def _rows(run: Run, ev: Evaluation, modality: Modality) -> None:
    """Of the learned prior, of p_0, and test rows beside their reconstructions: grids of images, or sentences."""
    method, generator, folder, images = ev.method, ev.method.generator, run.figures, modality.pictures
    lines: dict[str, Any] = {}
    for name, spec in (("samples", ev.spec("prior")), (f"samples{'-' if images else '_'}gaussian", ev.base())):
        n = IMAGES if images else SENTENCES
        x = method.sample(n, ev.seed, spec)
        if images:
            pictures.save(pictures.grid(to_pixels(x), columns=8), folder / f"{name}.png")
        else:
            lines[name] = modality.lines(x, generator)
        pictures.note(folder, name, spec, n)
    x, spec = generator.from_storage(ev.test[: PAIRS if images else SENTENCES]), ev.spec("posterior")
    x_hat = method.reconstruct(x, ev.seed, spec)
    if images:
        pictures.save(pictures.pairs(to_pixels(x), to_pixels(x_hat), columns=8), folder / "reconstructions.png")
    else:
        lines["reconstructions"] = _side_by_side(modality, generator, x, x_hat)
        write_atomic(run.path / SENTENCES_FILE, json.dumps(lines, indent=1) + "\n")
    pictures.note(folder, "reconstructions", spec)


def _side_by_side(modality: Modality, generator: Generator, a: Tensor, b: Tensor) -> list[list[str]]:
    return [list(pair) for pair in zip(modality.lines(a, generator), modality.lines(b, generator), strict=True)]


# --- parts of an analysis ---------------------------------------------------------------------------------------------


def frames(x: Tensor, trace: Trace) -> Tensor:
    """uint8 (frames, rows, c, h, w) of the rows that were decoded from a trace's z."""
    return to_pixels(x).view(*trace.z.shape[:2], *x.shape[1:])


def chains(
    folder: Path, modality: Modality, generator: Generator, trace: Trace, x: Tensor, trained: int
) -> dict[str, Any]:
    """Figure and animation of a trace, and what the page needs to show them: the size of an image, or the sentences."""
    from lebm.show import figures

    path, (n, rows) = folder / "chains.png", trace.z.shape[:2]
    if not modality.pictures:
        figures.save(figures.energy_profile(trace.energy, trained=trained), path)
        if not modality.terminal:
            return {}
        text = modality.lines(x, generator)
        return {"sentences": [text[i * rows : (i + 1) * rows] for i in range(n)]}
    pixels = frames(x, trace)
    figures.save(figures.transition(pixels, trace.steps, trace.energy, trained), path)
    sheet = pictures.grid(pixels.flatten(0, 1), columns=rows, scale=1, gutter=0)
    pictures.save(sheet, folder / "chains-frames.png")
    write_atomic(folder / "chains.webp", pictures.animation(pixels, trace.steps))
    return {"tile": list(pixels.shape[-2:])}


def paths(folder: Path, modality: Modality, generator: Generator, a: Tensor, b: Tensor, x: Tensor) -> dict[str, Any]:
    """Paths x (n, points, ...) from a to b: a picture, or sentences for the page."""
    if modality.pictures:
        pictures.save(pictures.rows_of_images(a, x, b), folder / "interpolation.png")
        return {}
    if not modality.terminal:
        return {}
    ends = _side_by_side(modality, generator, a, b)
    return {"ends": ends, "paths": [modality.lines(path, generator) for path in x]}

"""The pictures and sentences that measuring a run leaves in its folder. How to draw is known by lebm.show and the
modalities.
"""

from __future__ import annotations

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

IMAGES, PAIRS, SENTENCES = 64, 32, 20  # samples and reconstructions that are shown
SENTENCES_FILE = "sentences.json"


def evaluation(run: Run, ev: Evaluation) -> None:
    """Samples from the learned prior and from p_0, reconstructions, the energy along chains, training curves."""
    from lebm.show import figures

    modality = of(ev.method.generator.modality)
    if modality.pictures:
        _images(run, ev)
    elif modality.terminal:
        _sentences(run, ev, modality)
    k0 = ev.method.choose("prior").steps
    if k0:
        try:
            profile = energy_profile(ev.method, ev.seed, 2 * k0)
            figures.save(figures.energy_profile(profile, trained=k0), run.figures / "energy.svg")
        except NotDefined:  # a method whose prior has no energy
            pass
    if rows := run.rows():
        figures.save(figures.training_curves(rows), run.figures / "curves.svg")


def _images(run: Run, ev: Evaluation) -> None:
    from lebm.show import pictures

    method, folder = ev.method, run.figures
    prior, base, posterior = ev.spec("prior"), method.choose("prior", "noise", 0), ev.spec("posterior")
    for name, spec in (("samples", prior), ("samples-gaussian", base)):
        x = method.sample(IMAGES, ev.seed, spec)
        pictures.save(pictures.grid(to_pixels(x), columns=8), folder / f"{name}.png")
        pictures.note(folder, name, spec, IMAGES)
    x = method.generator.from_storage(ev.test[:PAIRS])
    x_hat = method.reconstruct(x, ev.seed, posterior)
    pictures.save(pictures.pairs(to_pixels(x), to_pixels(x_hat), columns=8), folder / "reconstructions.png")
    pictures.note(folder, "reconstructions", posterior)


def _sentences(run: Run, ev: Evaluation, modality: Modality) -> None:
    """Sentences of the learned prior, of p_0, and test sentences beside their reconstructions."""
    from lebm.show import pictures

    method, generator = ev.method, ev.method.generator
    prior, base, posterior = ev.spec("prior"), method.choose("prior", "noise", 0), ev.spec("posterior")
    lines: dict[str, Any] = {}
    for name, spec in (("samples", prior), ("samples_gaussian", base)):
        lines[name] = modality.lines(method.sample(SENTENCES, ev.seed, spec), generator)
        pictures.note(run.figures, name, spec, SENTENCES)
    rows = ev.test[:SENTENCES]
    x_hat = method.reconstruct(rows, ev.seed, posterior)
    pairs = zip(modality.lines(rows, generator), modality.lines(x_hat, generator), strict=True)
    lines["reconstructions"] = [list(pair) for pair in pairs]
    pictures.note(run.figures, "reconstructions", posterior)
    write_atomic(run.path / SENTENCES_FILE, json.dumps(lines, indent=1) + "\n")


# --- parts of an analysis ---------------------------------------------------------------------------------------------


def frames(x: Tensor, trace: Trace) -> Tensor:
    """uint8 (frames, rows, c, h, w) of the rows that were decoded from a trace's z."""
    return to_pixels(x).view(*trace.z.shape[:2], *x.shape[1:])


def chains(
    folder: Path, modality: Modality, generator: Generator, trace: Trace, x: Tensor, trained: int
) -> dict[str, Any]:
    """Figure and animation of a trace, and what the page needs to show them: the size of an image, or the sentences."""
    from lebm.show import figures, pictures

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


def neighbours(folder: Path, samples: Tensor, nearest: Tensor) -> None:
    """Samples (n, c, h, w), each in a row with its nearest training images (n k, c, h, w)."""
    from lebm.show import pictures

    sheet = pictures.rows_of_images(samples, nearest.view(len(samples), -1, *nearest.shape[1:]))
    pictures.save(sheet, folder / "neighbours.png")


def paths(folder: Path, modality: Modality, generator: Generator, a: Tensor, b: Tensor, x: Tensor) -> dict[str, Any]:
    """Paths x (n, points, ...) from a to b: a picture, or sentences for the page."""
    from lebm.show import pictures

    if modality.pictures:
        pictures.save(pictures.rows_of_images(a, x, b), folder / "interpolation.png")
        return {}
    if not modality.terminal:
        return {}
    ends = zip(modality.lines(a, generator), modality.lines(b, generator), strict=True)
    return {"ends": [list(end) for end in ends], "paths": [modality.lines(path, generator) for path in x]}

"""The pictures and sentences that measuring a run leaves in its folder. How to draw is known by lebm.show and the
modalities.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
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
from lebm.sampler import SamplerSpec
from lebm.show import pictures

IMAGES, PAIRS, SENTENCES, ROWS = 64, 32, 20, 500  # samples and reconstructions that are shown
SENTENCES_FILE = "sentences.json"


def evaluation(run: Run, ev: Evaluation) -> None:
    """Samples from the prior and, where that is learned, from p_0 too; reconstructions, the energy along chains and
    training curves. What the method does not have is not drawn.
    """
    from lebm.show import figures

    modality = of(ev.method.generator.modality)
    lines: dict[str, Any] = {}
    for draw in (_samples, _reconstructions, _energy):
        with contextlib.suppress(NotDefined):
            lines.update(draw(run, ev, modality))
    if lines:
        write_atomic(run.path / SENTENCES_FILE, json.dumps(lines, indent=1) + "\n")
    if rows := run.rows():
        figures.save(figures.training_curves(rows, unit=modality.unit), run.figures / "curves.svg")


def _samples(run: Run, ev: Evaluation, modality: Modality) -> dict[str, Any]:
    """A grid of images for each prior, a scatter of rows, or sentences, which are returned."""
    priors = {"samples": ev.spec("prior")}
    if base := ev.other_base():
        priors["samples-gaussian"] = base
    else:
        (run.figures / "samples-gaussian.png").unlink(missing_ok=True)  # of an older version
    if not (modality.pictures or modality.terminal):
        return _scatter(run, ev, modality, priors)
    lines, n = {}, IMAGES if modality.pictures else SENTENCES
    for name, spec in priors.items():
        x = ev.method.sample(n, ev.seed, spec)
        if modality.pictures:
            pictures.save(pictures.grid(to_pixels(x), columns=8), run.figures / f"{name}.png")
        else:
            name = name.replace("-", "_")
            lines[name] = modality.lines(x, ev.method.generator)
        pictures.note(run.figures, name, spec, n)
    return lines


def _scatter(run: Run, ev: Evaluation, modality: Modality, priors: Mapping[str, SamplerSpec]) -> dict[str, Any]:
    """The first two columns of samples beside test rows, a panel for each prior; nothing where there are no columns."""
    from lebm.show import figures

    rows = modality.plane(ev.method.generator.from_storage(ev.test[:ROWS]))
    if rows is None:
        return {}
    titles = {"samples": "learned prior" if len(priors) > 1 else "samples", "samples-gaussian": "no learned prior"}
    drawn = {titles[name]: ev.method.sample(ROWS, ev.seed, spec)[:, :2] for name, spec in priors.items()}
    figures.save(figures.scatter(rows, drawn), run.figures / "samples.svg")
    pictures.note(run.figures, "samples", priors["samples"], ROWS)
    return {}


def _reconstructions(run: Run, ev: Evaluation, modality: Modality) -> dict[str, Any]:
    """Test rows beside their reconstructions: pairs of images, or of sentences, which are returned."""
    if not (modality.pictures or modality.terminal):
        return {}
    generator, spec = ev.method.generator, ev.spec("posterior")
    x = generator.from_storage(ev.test[: PAIRS if modality.pictures else SENTENCES])
    x_hat = ev.method.reconstruct(x, ev.seed, spec)
    pictures.note(run.figures, "reconstructions", spec)
    if not modality.pictures:
        return {"reconstructions": _side_by_side(modality, generator, x, x_hat)}
    pictures.save(pictures.pairs(to_pixels(x), to_pixels(x_hat), columns=8), run.figures / "reconstructions.png")
    return {}


def _energy(run: Run, ev: Evaluation, modality: Modality) -> dict[str, Any]:
    """The energy along chains that run twice as long as in learning."""
    from lebm.show import figures

    if k0 := ev.method.choose("prior").steps:
        profile = energy_profile(ev.method, ev.seed, 2 * k0)
        figures.save(figures.energy_profile(profile, trained=k0), run.figures / "energy.svg")
    return {}


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

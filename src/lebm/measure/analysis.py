"""Looking inside a learned model: chains, their diagnostics, paths between rows, nearest training images.

What is measured of a run stands in RUN/analysis.json, a part for each question, with the number of updates behind the
weights and the sampler of z; pictures are in RUN/figures. `complete` answers what has not been answered for the present
weights.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lebm import modalities
from lebm.core.device import fitting_threads, pick_device
from lebm.core.errors import CheckpointError, DataError, NotDefined
from lebm.core.files import save_npz
from lebm.core.progress import SILENT, Reporter
from lebm.data import Splits, data_root
from lebm.data import load as load_data
from lebm.measure import diagnostics, draw, inception, neighbours, paths, result
from lebm.measure.chains import ROWS, STEPS, profile, trace
from lebm.measure.metric import Evaluation
from lebm.measure.statistics import cache_folder
from lebm.method import Method
from lebm.modalities import Modality
from lebm.run import Run, load
from lebm.show import pictures

NAME = "analysis.json"
# Samples that are shown beside their neighbours; samples and test images behind the numbers.
NEIGHBOURS, COMPARED = 8, 500
PATHS, POINTS = 6, 11


class Subject:
    """A run under study: its method, and its data once something asks for it."""

    def __init__(
        self, run: str | Path, device: str = "auto", data_dir: str | Path | None = None, reporter: Reporter = SILENT
    ) -> None:
        self.run = Run(run)
        if self.run.path.is_file():
            raise CheckpointError(f"{run} is a file; give the run folder, into which the measurements are written")
        self.method: Method = load(self.run.path, pick_device(device))
        self.reporter, self.data_dir = reporter, data_dir
        self.file = self.run.path / NAME

    @property
    def modality(self) -> Modality:
        return modalities.of(self.method.generator.modality)

    def images_only(self, what: str) -> None:
        if not self.modality.pictures:
            raise DataError(f"{self.run.path} is a model of kind {self.modality.name}; {what} are for images")

    @cached_property
    def splits(self) -> Splits:
        """All rows of the run's data set."""
        config = self.method.config.with_values(**{"data.limit": None})
        with self.reporter.progress("reading data") as update:
            return load_data(config, data_root(self.data_dir), update)

    def evaluation(self, inception_too: bool, **options: Any) -> Evaluation:
        """What metrics look at, with the features of Inception where they are needed and not among the options."""
        root = data_root(self.data_dir)
        if inception_too and options.get("features") is None:  # before the data: what is missing is said at once
            options["features"] = inception.load(root, self.method.device)
        return Evaluation(self.method, self.splits, reporter=self.reporter, cache_folder=cache_folder(root), **options)

    def weights(self) -> dict[str, Any]:
        """What every protocol says of the weights: which checkpoint they are, and whose networks the run began with."""
        return {"checkpoint": "last"} | ({"start": start} if (start := self.run.start) else {})

    def default_metrics(self) -> list[str]:
        root = data_root(self.data_dir)
        there = root is not None and (root / inception.FILE).is_file()
        return self.modality.default_metrics(self.method.generator, self.method.config.data.name, there)

    def threads(self) -> AbstractContextManager[None]:
        """As many CPU threads as the method gains from."""
        return fitting_threads(self.method.generator.flops(self.method.config.training.batch), self.method.device)

    def write(self, part: str, values: dict[str, Any]) -> None:
        """Put a part into analysis.json, beside the others."""
        result.write(self.file, {**result.read(self.file), part: {"updates": self.method.updates, **values}})

    def knows(self, part: str) -> bool:
        """Whether analysis.json has this part for the present weights."""
        values = result.read(self.file).get(part)
        return isinstance(values, dict) and "updates" in values and values["updates"] == self.method.updates


def chains(
    subject: Subject, steps: int = STEPS, every: int | None = None, rows: int = ROWS, seed: int = 0
) -> dict[str, Any]:
    """Chains from where the run's own start: figure, animation and data in the folder, numbers for analysis.json."""
    method, own = subject.method, subject.method.choose("prior")
    with subject.reporter.progress("running chains") as update:
        t = trace(method, steps, every or max(1, steps // 10), rows, seed, progress=update)
    x = method.decode(t.z.flatten(0, 1)).cpu()
    shown = draw.chains(subject.run.figures, subject.modality, method.generator, t, x, own.steps)
    pixels = {"pixels": draw.frames(x, t).numpy()} if subject.modality.pictures else {}
    arrays = {"steps": t.steps, "z": t.z.cpu().numpy(), "energy": t.energy.astype(np.float32), **pixels}
    save_npz(subject.run.path / "chains.npz", **arrays)
    return {
        "seed": seed,
        "sampler": replace(own, steps=steps).to_dict(),
        "steps": t.steps,
        "rows": rows,
        "trained": own.steps,
        "profile": profile(t.energy),
        "shown": [[round(float(e), 4) for e in t.energy[k, :rows]] for k in t.steps],
        **shown,
    }


def diagnose(subject: Subject, seed: int = 0) -> dict[str, Any]:
    """The verdict on the prior chains, with its numbers."""
    x = subject.method.generator.from_storage(subject.splits.train[: diagnostics.INFERRED])
    return diagnostics.diagnose(subject.method, x, seed, subject.reporter)


def find_neighbours(subject: Subject, count: int = NEIGHBOURS, seed: int = 0) -> dict[str, Any]:
    """Samples beside their nearest training images, drawn; are they nearer than images the model never saw?"""
    subject.images_only("nearest neighbours by pixels")
    method, convert = subject.method, subject.method.generator.from_storage
    train, test = subject.splits.train[: method.config.data.limit], convert(subject.splits.test[:COMPARED])
    with subject.reporter.progress("sampling") as update:
        samples = method.sample(max(count, COMPARED), seed, progress=update)
    with subject.reporter.progress("searching training images") as update:
        d, places = neighbours.nearest(samples, train, convert=convert, device=method.device, progress=update)
    with subject.reporter.progress("the same for test images") as update:
        d_test, _ = neighbours.nearest(test, train, 1, convert=convert, device=method.device, progress=update)
    beside = convert(train[places[:count].flatten()]).view(count, -1, *train.shape[1:])
    pictures.save(pictures.rows_of_images(samples[:count], beside), subject.run.figures / "neighbours.png")
    return {
        "seed": seed,
        "sampler": method.choose("prior").to_dict(),
        **neighbours.copying(d[:, 0], d_test[:, 0]),
        "shown": [[round(float(v), 4) for v in row] for row in d[:count]],
    }


def draw_paths(subject: Subject, rows: int = PATHS, n: int = POINTS, seed: int = 0) -> dict[str, Any]:
    """Paths between the first test rows, drawn or written with the rows themselves at both ends."""
    method = subject.method
    test = method.generator.from_storage(subject.splits.test[: 2 * rows])
    a, b = test[0::2][: len(test) // 2], test[1::2]
    if not len(a):
        raise DataError("there are fewer than two test rows to join by a path")
    with subject.reporter.progress("inferring") as update:
        update(0, 1)
        _, x = paths.interpolate(method, a, b, n, seed)
    shown = draw.paths(subject.run.figures, subject.modality, method.generator, a, b, x)
    return {"seed": seed, "sampler": method.choose("posterior").to_dict(), "rows": len(a), "points": n, **shown}


# A further part is a function Subject -> what analysis.json says of it, a line here, and one in NEEDS where not every
# method or every kind of rows has it.
PARTS: dict[str, Callable[[Subject], dict[str, Any]]] = {
    "chains": chains,
    "diagnostics": diagnose,
    "neighbours": find_neighbours,
    "interpolation": draw_paths,
}


# What a part needs, where not every method and every kind of rows has it.
NEEDS: dict[str, Callable[[Subject], bool]] = {
    "chains": lambda subject: has_energy(subject.method),
    "diagnostics": lambda subject: has_energy(subject.method),
    "neighbours": lambda subject: subject.modality.pictures,
    "interpolation": lambda subject: subject.modality.pictures or subject.modality.terminal,
}


def has_energy(method: Method) -> bool:
    """Whether an energy was learned for the prior, along which chains can run."""
    return "prior" in method.networks()


def applies(part: str, subject: Subject) -> bool:
    """Whether a part says something about such a method and such rows."""
    return part not in NEEDS or NEEDS[part](subject)


def complete(subject: Subject) -> list[str]:
    """Answer what has not been answered for these weights and applies to them. What cannot be answered because data is
    missing is returned as sentences; what the method does not have, nobody asked for.
    """
    notes = []
    with subject.threads():
        for part, answer in PARTS.items():
            if subject.knows(part) or not applies(part, subject):
                continue
            with suppress(NotDefined):
                try:
                    subject.write(part, answer(subject))
                except DataError as e:
                    notes.append(f"{part}: {e}")
    return notes

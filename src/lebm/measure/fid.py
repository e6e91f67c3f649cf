"""FID: the Fréchet distance of Inception features, of samples or of reconstructions, against real images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lebm.core.pixels import to_pixels
from lebm.measure.metric import Evaluation, Metric, Numbers, computed_by
from lebm.measure.statistics import cached_statistics, statistics
from lebm.method import CHUNK
from lebm.sampler import SamplerSpec

SAMPLES, FOR_CHOOSING = 50_000, 10_000  # where the caller names no number; the second where settings are chosen


def fid(ev: Evaluation) -> Numbers:
    return {"fid": fid_of(ev, ev.spec("prior"))}


def fid_gaussian(ev: Evaluation) -> Numbers:
    return {"fid_gaussian": fid_of(ev, ev.method.choose("prior", "noise", 0))}


def fid_of(ev: Evaluation, spec: SamplerSpec) -> float:
    """The FID of samples whose z are drawn so. They stay on the method's device, from z to features."""
    n = _samples(ev)
    ev.protocol.update(samples=n, sampler=spec.to_dict(), **computed_by(ev.method))
    return _distance(ev, (to_pixels(x) for x in ev.sample(n, spec)))


def fid_reconstruction(ev: Evaluation) -> Numbers:
    """What the generator would give if the prior were the law of inferred z. It is no bound on `fid`."""
    images, part = _reference(ev)
    n = min(_samples(ev), len(images))
    # Evenly spaced: a file's first images need not be like the others.
    images = images[torch.arange(n) * len(images) // n]
    spec = ev.spec("posterior")
    ev.protocol.update(reconstructed=f"{n} {part} images, evenly spaced", sampler=spec.to_dict())
    return {"fid_reconstruction": _distance(ev, _reconstructed(ev, images, spec))}


def _reconstructed(ev: Evaluation, images: Tensor, spec: SamplerSpec) -> Iterator[Tensor]:
    with ev.reporter.progress("reconstructing") as update:
        for i, rows in enumerate(images.split(CHUNK)):
            z = ev.method.encode(ev.method.generator.from_storage(rows), ev.seed + i, spec, shared_noise=False)
            yield to_pixels(ev.method.decode(z))
            update(min((i + 1) * CHUNK, len(images)), len(images))


def _samples(ev: Evaluation) -> int:
    return ev.samples or (FOR_CHOOSING if ev.split == "validation" else SAMPLES)


def _reference(ev: Evaluation) -> tuple[Tensor, str]:
    return (ev.test, "test") if ev.split == "test" else (ev.splits.train, "training")


def _distance(ev: Evaluation, pixels: Iterator[Tensor]) -> float:
    """Between these images and all real images of the split."""
    assert ev.features is not None
    images, part = _reference(ev)
    if ("statistics", part) not in ev.shared:
        with ev.reporter.progress(f"features of {len(images)} {part} images") as update:
            content = ev.train_sha256 if part == "training" else None
            cached, _ = cached_statistics(images, ev.features, ev.cache_folder, update, content)
            ev.shared["statistics", part] = cached
    ev.protocol.update(
        reference=f"all {len(images)} {part} images",
        images="rounded to uint8",
        features=ev.features.name,
        features_precision=ev.features.precision,
    )
    return statistics(pixels, ev.features).distance(ev.shared["statistics", part])


FOR_IMAGES: dict[str, Any] = {"modalities": ("image",), "inception": True}
FID = Metric(
    "fid", "FID", True, "Fréchet distance of Inception features between samples and real images.", "prior",
    measure=fid, **FOR_IMAGES,
)  # fmt: skip
FID_GAUSSIAN = Metric(
    "fid_gaussian", "FID from p₀", True, "The FID with z from the base p₀ itself, through the same generator.",
    measure=fid_gaussian, **FOR_IMAGES,
)  # fmt: skip
FID_RECONSTRUCTION = Metric(
    "fid_reconstruction", "FID of reconstructions", True,
    "The FID of real images after inference and generator, instead of samples.", "posterior",
    measure=fid_reconstruction, **FOR_IMAGES,
)  # fmt: skip

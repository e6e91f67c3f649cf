"""Fréchet distances between Gaussians fitted to images: the FID, of Inception features, and that of raw pixels, which
suits the small data sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from lebm.core.errors import NotDefined
from lebm.core.pixels import to_pixels
from lebm.measure.metric import Evaluation, Metric, Number, Numbers, computed_by
from lebm.measure.statistics import Moments, cached_statistics, frechet_distance, statistics
from lebm.method import CHUNK
from lebm.sampler import SamplerSpec

# Where the caller names no number; the second where settings are chosen, and for the distance of raw pixels.
SAMPLES, FEWER = 50_000, 10_000


def fid_of(ev: Evaluation, spec: SamplerSpec) -> float:
    """The FID of samples whose z are drawn so. They stay on the method's device, from z to features."""
    return _distance(ev, map(to_pixels, _drawn(ev, spec, _samples(ev))))


def frechet_of(ev: Evaluation, spec: SamplerSpec) -> float:
    """The pixel-space distance of samples whose z are drawn so to the training images."""
    method, train = ev.method, ev.train
    if "pixels" not in ev.shared:
        parts = (method.generator.from_storage(part).to(method.device) for part in train.split(2000))
        ev.shared["pixels"] = Moments(parts).mean_cov()
    ev.protocol["reference"] = f"{len(train)} training images"
    return frechet_distance(*Moments(_drawn(ev, spec, ev.samples or FEWER)).mean_cov(), *ev.shared["pixels"])


def _drawn(ev: Evaluation, spec: SamplerSpec, n: int) -> Iterator[Tensor]:
    ev.protocol.update(samples=n, sampler=spec.to_dict(), **computed_by(ev.method))
    return ev.sample(n, spec)


def _frechet(ev: Evaluation) -> Numbers:
    base = ev.other_base()
    of_base: Numbers = {"frechet_gaussian": frechet_of(ev, base)} if base else {}
    return {"frechet": frechet_of(ev, ev.spec("prior")), **of_base}


def _fid_gaussian(ev: Evaluation) -> Numbers:
    base = ev.other_base()
    if base is None:
        raise NotDefined(ev.method, "prior besides its base p_0")
    return {"fid_gaussian": fid_of(ev, base)}


def _fid_reconstruction(ev: Evaluation) -> Numbers:
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
    return ev.samples or (FEWER if ev.split == "validation" else SAMPLES)


def _reference(ev: Evaluation) -> tuple[Tensor, str]:
    return (ev.test, "test") if ev.split == "test" else (ev.splits.train, "training")


def _distance(ev: Evaluation, pixels: Iterable[Tensor]) -> float:
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
    measure=lambda ev: {"fid": fid_of(ev, ev.spec("prior"))}, **FOR_IMAGES,
)  # fmt: skip
FID_GAUSSIAN = Metric(
    "fid_gaussian", "FID from p₀", True, "The FID with z from the base p₀ itself, through the same generator.",
    measure=_fid_gaussian, **FOR_IMAGES,
)  # fmt: skip
FID_RECONSTRUCTION = Metric(
    "fid_reconstruction", "FID of reconstructions", True,
    "The FID of real images after inference and generator, instead of samples.", "posterior",
    measure=_fid_reconstruction, **FOR_IMAGES,
)  # fmt: skip
ABOUT = "Fréchet distance of raw pixels between samples and training images"
FRECHET = Metric(
    "frechet", "Fréchet distance", True, f"{ABOUT}, of the learned prior and of its base.", "prior",
    measure=_frechet, modalities=("image",), gives=(
        Number("frechet", "Fréchet distance", True, f"{ABOUT}.", "prior"),
        Number("frechet_gaussian", "Fréchet distance from p₀", True, "The same with z from the base p₀ itself."),
    ),
)  # fmt: skip

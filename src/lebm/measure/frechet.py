"""The Fréchet distance between Gaussians fitted to features, streamed in float64, and the metric of raw pixels.

With Inception features it is the FID (fid.py); on raw pixels it suits the small data sets.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lebm.measure.metric import Evaluation, Metric, Number, Numbers, computed_by
from lebm.sampler import SamplerSpec

SAMPLES = 10_000  # where the caller names no number


class Moments:
    """Mean and covariance of rows that come in pieces: exact sums in float64, whatever the pieces' sizes."""

    def __init__(self) -> None:
        self.n = 0
        self._sums: tuple[Tensor, Tensor, Tensor] | None = None  # an offset, the sum of rows, the sum of their products

    def add(self, rows: Tensor) -> Moments:
        rows = rows.detach().flatten(1).to(torch.float64)  # where they are: a GPU multiplies float64 matrices too
        if len(rows) == 0:
            return self
        if self._sums is None:
            d = rows.shape[1]
            # An offset near the mean keeps the products from cancelling.
            self._sums = rows[0].clone(), rows.new_zeros(d), rows.new_zeros(d, d)
        offset, total, products = self._sums
        rows = rows - offset
        self.n += len(rows)
        total += rows.sum(0)
        products.addmm_(rows.t(), rows)
        return self

    def mean_cov(self) -> tuple[np.ndarray, np.ndarray]:
        """Sample mean and unbiased covariance."""
        if self.n < 2 or self._sums is None:
            raise ValueError(f"moments of {self.n} rows; at least 2 are needed")
        offset, total, products = self._sums
        mean = total / self.n
        cov = (products - self.n * torch.outer(mean, mean)) / (self.n - 1)
        return (mean + offset).cpu().numpy(), cov.cpu().numpy()


def frechet_distance(mean_a: np.ndarray, cov_a: np.ndarray, mean_b: np.ndarray, cov_b: np.ndarray) -> float:
    """|mu_a - mu_b|^2 + tr(A + B - 2 (A B)^(1/2)).

    tr (A B)^(1/2) is the sum of the singular values of A^(1/2) B^(1/2): symmetric eigenvalues only, so singular
    covariances need no offset and no imaginary part has to be thrown away.
    """
    half_a, half_b = _root(np.asarray(cov_a, np.float64)), _root(np.asarray(cov_b, np.float64))
    cross = np.linalg.svd(half_a @ half_b, compute_uv=False).sum()
    d = np.asarray(mean_a, np.float64) - np.asarray(mean_b, np.float64)
    return float(d @ d + np.trace(cov_a) + np.trace(cov_b) - 2 * cross)


def _root(cov: np.ndarray) -> np.ndarray:
    """The symmetric square root of a positive semi-definite matrix; rounding below zero counts as zero."""
    values, vectors = np.linalg.eigh((cov + cov.T) / 2)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def measure(ev: Evaluation) -> Numbers:
    """Of the learned prior, and of p_0 through the same generator."""
    base = frechet_of(ev, ev.method.choose("prior", "noise", 0))
    return {"frechet": frechet_of(ev, ev.spec("prior")), "frechet_gaussian": base}


def frechet_of(ev: Evaluation, spec: SamplerSpec) -> float:
    """The pixel-space distance of samples whose z are drawn so to the training images."""
    n = ev.samples or SAMPLES
    if "pixels" not in ev.shared:
        reference = Moments()
        for part in ev.train.split(2000):
            reference.add(ev.method.generator.from_storage(part).to(ev.method.device))
        ev.shared["pixels"] = reference.mean_cov()
    reference_text = f"{len(ev.train)} training images"
    ev.protocol.update(samples=n, reference=reference_text, sampler=spec.to_dict(), **computed_by(ev.method))
    moments = Moments()
    for x in ev.sample(n, spec):
        moments.add(x)
    return frechet_distance(*moments.mean_cov(), *ev.shared["pixels"])


ABOUT = "Fréchet distance of raw pixels between samples and training images"
FRECHET = Metric(
    "frechet", "Fréchet distance", True, f"{ABOUT}, of the learned prior and of its base.", "prior",
    measure=measure, modalities=("image",), gives=(
        Number("frechet", "Fréchet distance", True, f"{ABOUT}.", "prior"),
        Number("frechet_gaussian", "Fréchet distance from p₀", True, "The same with z from the base p₀ itself."),
    ),
)  # fmt: skip

"""Mean and covariance of image features, which is all that a FID looks at; those of real images are cached on disk.

A cached file is named after what it was made of: the images' bytes, the network and the resize convention. So it never
goes stale and can be carried to another machine as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from lebm.core.errors import CheckpointError, DataError
from lebm.core.progress import Progress, ignore
from lebm.core.tensors import load_tensors, save_tensors
from lebm.measure.inception import Features

FOLDER = ".lebm-cache"
T = TypeVar("T")
PIECE = 2000  # rows handed to the features at once


class Moments:
    """Mean and covariance of rows that come in pieces: exact sums in float64, whatever the pieces' sizes."""

    def __init__(self, pieces: Iterable[Tensor] = ()) -> None:
        self.n = 0
        self._sums: tuple[Tensor, Tensor, Tensor] | None = None  # an offset, the sum of rows, the sum of their products
        for piece in pieces:
            self.add(piece)

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


@dataclass(frozen=True)
class Statistics:
    """n rows of features: their mean (d,) and unbiased covariance (d, d) in float64."""

    mean: np.ndarray
    cov: np.ndarray
    n: int
    features: str  # Features.name

    def distance(self, other: Statistics) -> float:
        """The Fréchet distance; statistics of different features have none."""
        if self.features != other.features:
            raise DataError(
                f"these statistics are of different features ({self.features!r} and {other.features!r}) "
                "and cannot be compared"
            )
        return frechet_distance(self.mean, self.cov, other.mean, other.cov)


def statistics(pieces: Iterable[Tensor], features: Features) -> Statistics:
    """Of uint8 images (n, c, h, w) that come in pieces; the sizes of the pieces do not matter."""
    moments = Moments(map(features, pieces))
    if moments.n < 2:
        raise DataError(
            f"statistics of {moments.n} images; a FID needs at least 2, and says little with less than thousands"
        )
    return Statistics(*moments.mean_cov(), moments.n, features.name)


def in_pieces(images: Tensor, update: Progress) -> Iterable[Tensor]:
    for i, piece in enumerate(images.split(PIECE)):
        yield piece
        update(min((i + 1) * PIECE, len(images)), len(images))


# --- the cache ------------------------------------------------------------------------------------------------------


def cache_folder(root: Path | None) -> Path | None:
    """Where statistics are cached: the environment variable LEBM_CACHE, or a hidden folder in the data folder, or
    nowhere.
    """
    if given := os.environ.get("LEBM_CACHE"):
        return Path(given).expanduser()
    return root / FOLDER if root is not None and root.is_dir() else None


def content_hash(rows: Tensor) -> str:
    """sha256 of shape and bytes."""
    digest = hashlib.sha256(f"{tuple(rows.shape)} {rows.dtype}\n".encode())
    for piece in rows.split(PIECE):
        digest.update(piece.cpu().numpy().tobytes())
    return digest.hexdigest()


def cached(path: Path | None, read: Callable[[Path], T], make: Callable[[], T], write: Callable[[Path, T], None]) -> T:
    """What the file holds; where it is missing or damaged, made and written to it. A folder that cannot be written to
    costs time at the next evaluation, nothing else.
    """
    if path is not None and path.is_file():
        with contextlib.suppress(CheckpointError, OSError, RuntimeError, KeyError, TypeError):
            return read(path)
    made = make()
    with contextlib.suppress(OSError):
        if path is not None:
            write(path, made)
    return made


def cached_statistics(
    images: Tensor, features: Features, folder: Path | None, update: Progress = ignore, content: str | None = None
) -> tuple[Statistics, Path | None]:
    """Statistics of a set of real images, read if they were computed before, and the file that holds them (None: no
    file).
    """
    content = content or content_hash(images)
    key = hashlib.sha256(f"{content}\n{features.name}\n{features.precision}".encode()).hexdigest()
    path = folder and folder / f"fid-{key[:32]}.safetensors"

    def read_same(path: Path) -> Statistics:
        known = read(path)
        if (known.features, known.n) != (features.name, len(images)):
            raise CheckpointError(f"{path} is damaged: it holds statistics of other images")
        return known

    made = cached(path, read_same, lambda: statistics(in_pieces(images, update), features), write)
    return made, path if path and path.is_file() else None


def write(path: Path, s: Statistics) -> None:
    meta = {"kind": "statistics", "n": s.n, "features": s.features, "sha256": _checksum(s.mean, s.cov)}
    save_tensors(path, {"mean": torch.from_numpy(s.mean), "cov": torch.from_numpy(s.cov)}, meta)


def read(path: Path) -> Statistics:
    """What `write` wrote, checked against its own checksum."""
    tensors, meta = load_tensors(path)
    mean, cov = (tensors[k].numpy() if k in tensors else np.empty(0) for k in ("mean", "cov"))
    right = meta.get("kind") == "statistics" and isinstance(meta.get("n"), int)
    if not right or mean.ndim != 1 or cov.shape != (len(mean), len(mean)):
        raise CheckpointError(f"{path} holds no statistics of image features; `lebm fid` writes such files")
    if meta.get("sha256") != _checksum(mean, cov):
        raise CheckpointError(
            f"{path} is damaged: its numbers do not match their checksum; delete it and compute it again"
        )
    return Statistics(mean, cov, meta["n"], str(meta.get("features")))


def _checksum(mean: np.ndarray, cov: np.ndarray) -> str:
    return hashlib.sha256(mean.tobytes() + cov.tobytes()).hexdigest()

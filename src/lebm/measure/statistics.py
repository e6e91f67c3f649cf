"""Mean and covariance of image features, which is all that a FID looks at; those of real images are cached on disk.

A cached file is named after what it was made of: the images' bytes, the network and the resize convention. So it never
goes stale and can be carried to another machine as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lebm.core.errors import CheckpointError, DataError
from lebm.core.progress import Progress
from lebm.core.tensors import load_tensors, save_tensors
from lebm.measure.frechet import Moments, frechet_distance
from lebm.measure.inception import Features

FOLDER = ".lebm-cache"
PIECE = 2000  # rows handed to the features at once


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
    moments = Moments()
    for piece in pieces:
        moments.add(features(piece))
    if moments.n < 2:
        raise DataError(
            f"statistics of {moments.n} images; a FID needs at least 2, and says little with less than thousands"
        )
    return Statistics(*moments.mean_cov(), moments.n, features.name)


def in_pieces(images: Tensor, update: Progress | None = None) -> Iterable[Tensor]:
    for start in range(0, len(images), PIECE):
        yield images[start : start + PIECE]
        if update:
            update(min(start + PIECE, len(images)), len(images))


# --- the cache ------------------------------------------------------------------------------------------------------


def cache_folder(root: Path | None) -> Path | None:
    """Where statistics are cached: the environment variable LEBM_CACHE, or a hidden folder in the data folder, or
    nowhere.
    """
    given = os.environ.get("LEBM_CACHE")
    if given:
        return Path(given).expanduser()
    return root / FOLDER if root is not None and root.is_dir() else None


def content_hash(rows: Tensor) -> str:
    """sha256 of shape and bytes."""
    digest = hashlib.sha256(f"{tuple(rows.shape)} {rows.dtype}\n".encode())
    for piece in rows.split(PIECE):
        digest.update(piece.cpu().numpy().tobytes())
    return digest.hexdigest()


def cached_statistics(
    images: Tensor, features: Features, folder: Path | None, update: Progress | None = None, content: str | None = None
) -> tuple[Statistics, Path | None]:
    """Statistics of a set of real images, read if they were computed before, and the file that holds them (None: no
    file).

    A damaged file is made again. Where the folder cannot be written to, nothing is cached.
    """
    content = content or content_hash(images)
    key = hashlib.sha256(f"{content}\n{features.name}\n{features.precision}".encode()).hexdigest()
    path = None if folder is None else folder / f"fid-{key[:32]}.safetensors"
    if path is not None and path.is_file():
        with contextlib.suppress(CheckpointError, OSError):
            cached = read(path)
            if cached.features == features.name and cached.n == len(images):
                return cached, path
    fresh = statistics(in_pieces(images, update), features)
    try:
        if path is not None:
            write(path, fresh)
    except OSError:
        path = None
    return fresh, path


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
    digest = hashlib.sha256(mean.tobytes())
    digest.update(cov.tobytes())
    return digest.hexdigest()

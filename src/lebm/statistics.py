"""Mean and covariance of image features, which is all that a FID looks at; those of real images are kept on disk.

A kept file is named after what it was made of: the images' bytes, the network and the resize convention. So it never goes stale
and can be carried to another machine as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lebm import checkpoint
from lebm.errors import CheckpointError, DataError
from lebm.metrics.fid import Moments, frechet_distance
from lebm.metrics.inception import Features

FOLDER = ".lebm-cache"
PIECE = 2000  # rows handed to the features at once
Progress = Callable[[int, int], None]


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
            raise DataError(f"these statistics are of different features ({self.features!r} and {other.features!r}) and cannot be compared")
        return frechet_distance(self.mean, self.cov, other.mean, other.cov)


def statistics(pieces: Iterable[Tensor], features: Features) -> Statistics:
    """Of uint8 images (n, c, h, w) that come in pieces; the sizes of the pieces do not matter."""
    moments = Moments()
    for piece in pieces:
        moments.add(features(piece))
    if moments.n < 2:
        raise DataError(f"statistics of {moments.n} images; a FID needs at least 2, and says little with less than thousands")
    return Statistics(*moments.mean_cov(), moments.n, features.name)


def in_pieces(images: Tensor, update: Progress | None = None) -> Iterable[Tensor]:
    for start in range(0, len(images), PIECE):
        yield images[start : start + PIECE]
        if update:
            update(min(start + PIECE, len(images)), len(images))


# --- kept on disk ---------------------------------------------------------------------------------------------------


def cache_folder(root: Path | None) -> Path | None:
    """Where statistics are kept: the environment variable LEBM_CACHE, or a hidden folder in the data folder, or nowhere."""
    given = os.environ.get("LEBM_CACHE")
    if given:
        return Path(given).expanduser()
    return root / FOLDER if root is not None and root.is_dir() else None


def content_hash(images: Tensor) -> str:
    """sha256 of shape and bytes."""
    digest = hashlib.sha256(f"{tuple(images.shape)} {images.dtype}\n".encode())
    for piece in images.split(PIECE):
        digest.update(piece.cpu().numpy().tobytes())
    return digest.hexdigest()


def kept_statistics(
    images: Tensor, features: Features, folder: Path | None, update: Progress | None = None, content: str | None = None
) -> tuple[Statistics, Path | None]:
    """Statistics of a set of real images, read if they were computed before, and the file that holds them (None: not kept).

    A damaged file is made again. Where the folder cannot be written to, nothing is kept.
    """
    key = hashlib.sha256(f"{content or content_hash(images)}\n{features.name}\n{features.precision}".encode()).hexdigest()
    path = None if folder is None else folder / f"fid-{key[:32]}.safetensors"
    if path is not None and path.is_file():
        with contextlib.suppress(CheckpointError, OSError):
            kept = read(path)
            if kept.features == features.name and kept.n == len(images):
                return kept, path
    fresh = statistics(in_pieces(images, update), features)
    try:
        if path is not None:
            write(path, fresh)
    except OSError:
        path = None
    return fresh, path


def write(path: Path, s: Statistics) -> None:
    tensors = {"mean": torch.from_numpy(s.mean), "cov": torch.from_numpy(s.cov)}
    checkpoint.save_tensors(path, tensors, {"kind": "statistics", "n": s.n, "features": s.features, "sha256": _sum(s.mean, s.cov)})


def read(path: Path) -> Statistics:
    """What `write` wrote, checked against its own sum."""
    tensors, meta = checkpoint.load_tensors(path)
    mean, cov = (tensors[k].numpy() if k in tensors else np.empty(0) for k in ("mean", "cov"))
    if meta.get("kind") != "statistics" or not isinstance(meta.get("n"), int) or mean.ndim != 1 or cov.shape != (len(mean), len(mean)):
        raise CheckpointError(f"{path} holds no statistics of image features; `lebm fid` writes such files")
    if meta.get("sha256") != _sum(mean, cov):
        raise CheckpointError(f"{path} is damaged: its numbers do not match their checksum; delete it and compute it again")
    return Statistics(mean, cov, meta["n"], str(meta.get("features")))


def _sum(mean: np.ndarray, cov: np.ndarray) -> str:
    digest = hashlib.sha256(mean.tobytes())
    digest.update(cov.tobytes())
    return digest.hexdigest()

"""SVHN, cropped digits, from the official .mat files."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from lebm.config import Config
from lebm.data.cache import Decoded, cached
from lebm.data.mat5 import read_mat5
from lebm.data.splits import GIB, Dataset, Progress, Splits, check_size, first_folder, found, one_line
from lebm.errors import DataError

PLACES = ("svhn", "SVHN", ".")
FILES = ("train_32x32.mat", "test_32x32.mat")
MAX_IMAGES = 1_000_000
HOW = "put train_32x32.mat and test_32x32.mat into svhn under the data folder; they come from http://ufldl.stanford.edu/housenumbers/"


def read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) and labels 0..9: the file keeps the digit 0 as class 10."""
    check_size(path, 4 * GIB)
    try:
        parts = read_mat5(path, ("X", "y"), limit=MAX_IMAGES * 32 * 32 * 3 + 4096)
    except (OSError, ValueError, zlib.error, MemoryError) as e:
        raise DataError(f"{path} is no readable MATLAB 5 file ({one_line(e)}); fetch it again") from None
    if not _fits(parts):
        names = ", ".join(f"{name} {x.shape} of {x.dtype}" for name, x in parts.items()) or "neither"
        raise DataError(f"{path} should hold X (32, 32, 3, n) of uint8 and y (n, 1) with labels 1..10, and holds {names}; fetch it again")
    return np.ascontiguousarray(parts["X"].transpose(3, 2, 0, 1)), parts["y"].reshape(-1).astype(np.int64) % 10


def _fits(parts: dict[str, np.ndarray]) -> bool:
    if set(parts) != {"X", "y"}:
        return False
    x, y = parts["X"], parts["y"]
    return (
        x.ndim == 4 and x.shape[:3] == (32, 32, 3) and x.dtype == np.uint8 and 0 < y.size == x.shape[3] and bool(np.isin(y, np.arange(1, 11)).all())
    )


def load_svhn(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    folder = found("svhn", HOW, find(root), root)

    def build() -> Decoded:
        parts = []
        for i, name in enumerate(FILES, start=1):
            parts.append(read_mat(folder / name))
            if progress:
                progress(i, len(FILES))
        (train, train_labels), (test, test_labels) = parts
        return Decoded(np.concatenate([train, test]), len(train), np.concatenate([train_labels, test_labels]))

    return cached(folder, "svhn-32x3", [folder / f for f in FILES], build).splits(str(folder))


def find(root: Path | None) -> Path | None:
    return first_folder(root, PLACES, lambda folder: all((folder / f).is_file() for f in FILES))


SVHN = Dataset(
    "svhn",
    load_svhn,
    find,
    HOW,
    licence="non-commercial use only (Netzer et al. 2011)",
    description="73,257 training and 26,032 test house-number digits, 32x32 colour",
)

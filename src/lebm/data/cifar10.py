"""CIFAR-10 from the official binary batches, or from the Python batches without trusting their pickles."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lebm.core.errors import DataError
from lebm.core.files import check_regular_size
from lebm.core.progress import Progress
from lebm.data.cache import Decoded
from lebm.data.plain_pickle import load_plain
from lebm.data.splits import Config, Dataset, Download, Splits, first_folder

BIN = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
PY = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
BIN_PLACES = ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", "CIFAR10", ".")
PY_PLACES = ("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10", "CIFAR10", ".")
PIXELS = 3 * 32 * 32
MAX_BYTES = 1 << 28


def read_bin(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (n, 3072) and labels (n,) from rows of a label byte and 3072 pixels, one plane a channel."""
    size = check_regular_size(path, MAX_BYTES)
    if not size or size % (PIXELS + 1):
        raise DataError(
            f"{path} has {size} bytes, not a multiple of {PIXELS + 1}; "
            "it is truncated or no CIFAR-10 batch, fetch it again"
        )
    try:
        rows = np.fromfile(path, dtype=np.uint8).reshape(-1, PIXELS + 1)
    except OSError as e:
        raise DataError(f"{path} cannot be read ({e.strerror or e}); check its permissions") from None
    return rows[:, 1:], _checked(rows[:, 0], path)


def read_py(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The same from a dict with `data` and `labels`, read by an unpickler that can only build such plain values."""
    check_regular_size(path, MAX_BYTES)
    parts = load_plain(path)
    if not isinstance(parts, dict):
        raise DataError(f"{path} holds {type(parts).__name__}, not a dict of data and labels; fetch it again")
    pixels, labels = (parts.get(key.encode(), parts.get(key)) for key in ("data", "labels"))
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != PIXELS or not len(pixels):
        pixels = np.empty((0, PIXELS), dtype=np.uint8)
    fits = isinstance(labels, list) and labels and len(labels) == len(pixels)
    if not fits or any(type(y) is not int for y in labels or ()):
        raise DataError(f"{path} does not hold data (n, {PIXELS}) and a label for each row; fetch it again")
    return pixels, _checked(np.asarray(labels, dtype=object), path)


def _checked(labels: np.ndarray, path: Path) -> np.ndarray:
    if labels.min() < 0 or labels.max() > 9:
        wrong = labels.max() if labels.max() > 9 else labels.min()
        raise DataError(f"{path} has the label {wrong}; labels are 0..9, so fetch it again")
    return labels.astype(np.int64)


def load_cifar10(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """50,000 training and 10,000 test images with their labels."""
    folder = CIFAR10.place(root)
    files, read = (BIN, read_bin) if _has(folder, BIN) else (PY, read_py)
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    for i, name in enumerate(files, start=1):
        parts.append(read(folder / name))
        if len(parts[-1][0]) != len(parts[0][0]):  # the official batches are all of one length
            raise DataError(
                f"{folder / name} has {len(parts[-1][0])} images and {files[0]} {len(parts[0][0])}; "
                "one is truncated, fetch them again"
            )
        if progress:
            progress(i, len(files))
    # No cache: reading takes half a second, and a second copy of the set would cost more than it saves.
    images = np.concatenate([p[0] for p in parts]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([p[1] for p in parts])
    return Decoded(images, len(images) - len(parts[-1][0]), labels).splits(str(folder))


def find(root: Path | None) -> Path | None:
    binary = first_folder(root, BIN_PLACES, lambda f: _has(f, BIN))
    return binary or first_folder(root, PY_PLACES, lambda f: _has(f, PY))


def _has(folder: Path, files: tuple[str, ...]) -> bool:
    return all((folder / f).is_file() for f in files)


CIFAR10 = Dataset(
    "cifar10",
    load_cifar10,
    find,
    how="unpack cifar-10-binary.tar.gz (or cifar-10-python.tar.gz) under the data folder, so that "
    "cifar-10-batches-bin (or cifar-10-batches-py) lies there; they come from "
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="no formal licence; the authors ask to cite Krizhevsky 2009",
    description="50,000 training and 10,000 test images of ten classes, 32x32 colour",
    download=Download(
        ".",
        {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
        ("https://www.cs.toronto.edu/~kriz/",),
        archive="cifar-10-batches-bin",
    ),
)
DATASETS = (CIFAR10,)

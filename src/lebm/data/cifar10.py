"""CIFAR-10 from the official binary batches, or from the Python batches without trusting their pickles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lebm.core.errors import DataError
from lebm.core.files import check_regular_size
from lebm.core.progress import Progress
from lebm.data.cache import Decoded, read_parts
from lebm.data.plain_pickle import load_plain
from lebm.data.splits import Config, Splits, described, in_folder

PY = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
BIN = tuple(f"{name}.bin" for name in PY)
PLACES = ("cifar10", "CIFAR10", ".")
PIXELS = 3 * 32 * 32
MAX_BYTES = 1 << 28

find_bin = in_folder("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", *PLACES, files=BIN)
find_py = in_folder("cifar-10-batches-py", "cifar10/cifar-10-batches-py", *PLACES, files=PY)


def read_bin(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (n, 3, 32, 32) and labels (n,) from rows of a label byte and 3072 pixels, one plane a channel."""
    size = check_regular_size(path, MAX_BYTES)
    if not size or size % (PIXELS + 1):
        raise DataError(
            f"{path} has {size} bytes, not a multiple of {PIXELS + 1}; "
            "it is truncated or no CIFAR-10 batch, fetch it again"
        )
    rows = np.fromfile(path, dtype=np.uint8).reshape(-1, PIXELS + 1)
    return _checked(rows[:, 1:], rows[:, 0], path)


def read_py(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The same from a dict with `data` and `labels`, read by an unpickler that can only build such plain values."""
    check_regular_size(path, MAX_BYTES)
    value = load_plain(path)
    batch: dict[Any, Any] = value if isinstance(value, dict) else {}
    pixels, labels = (batch.get(key.encode(), batch.get(key, ())) for key in ("data", "labels"))
    images = isinstance(pixels, np.ndarray) and pixels.ndim == 2 and pixels.shape[1] == PIXELS and len(pixels) > 0
    numbers = isinstance(labels, list) and all(type(y) is int for y in labels)
    if not images or not numbers or len(labels) != len(pixels):
        raise DataError(f"{path} does not hold data (n, {PIXELS}) and a label for each row; fetch it again")
    return _checked(pixels, np.asarray(labels, dtype=object), path)


def _checked(pixels: np.ndarray, labels: np.ndarray, path: Path) -> tuple[np.ndarray, np.ndarray]:
    wrong = labels[(labels < 0) | (labels > 9)]
    if len(wrong):
        raise DataError(f"{path} has the label {wrong[0]}; labels are 0..9, so fetch it again")
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def load_cifar10(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """50,000 training and 10,000 test images with their labels."""
    folder = CIFAR10.place(root)
    names, read = (BIN, read_bin) if find_bin(root) else (PY, read_py)
    paths = [folder / name for name in names]
    parts = read_parts(paths, read, progress)
    for path, (images, _) in zip(paths, parts, strict=True):
        if len(images) != len(parts[0][0]):  # the official batches are all of one length
            raise DataError(
                f"{path} has {len(images)} images and {names[0]} {len(parts[0][0])}; one is truncated, fetch them again"
            )
    # No cache: reading takes half a second, and a second copy of the set would cost more than it saves.
    return Decoded.of(parts).splits(str(folder))


CIFAR10 = described("cifar10", load_cifar10, lambda root: find_bin(root) or find_py(root))
DATASETS = (CIFAR10,)

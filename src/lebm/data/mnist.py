"""MNIST from the official idx files, gzipped or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from lebm.core.errors import DataError, one_line
from lebm.core.files import GIB, check_regular_size
from lebm.core.pixels import as_tensor
from lebm.core.progress import Progress
from lebm.data.splits import Config, Splits, as_labels, described

PLACES = ("MNIST/raw", "mnist/raw", "MNIST", "mnist", ".")
PARTS, KINDS = ("train", "t10k"), ("images-idx3", "labels-idx1")
MAX_VALUES = GIB
FOREIGN = "so it is no idx file of that kind; fetch it again"
DAMAGED = "it is truncated or damaged, fetch it again"


def read_idx(path: Path, dims: int) -> np.ndarray:
    """The uint8 array of an idx file with so many dimensions; no more is unpacked than its header declares."""
    check_regular_size(path, 2 * GIB)
    start = bytes((0, 0, 8, dims))
    try:
        with cast(BinaryIO, gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")) as f:
            header = f.read(4 + 4 * dims)
            if header[:4] != start:
                raise DataError(f"{path} begins with {header[:4].hex()} and not {start.hex()}, {FOREIGN}")
            if len(header) < 4 + 4 * dims:
                raise DataError(f"{path} ends inside its header; fetch it again")
            shape = struct.unpack(f">{dims}I", header[4:])
            values = math.prod(shape)
            if values > MAX_VALUES:
                raise DataError(f"{path} declares the shape {shape}, more than {MAX_VALUES} values; {DAMAGED}")
            body = f.read(values + 1)
    except (EOFError, OSError, zlib.error) as e:
        raise DataError(f"{path} is truncated or damaged ({one_line(e)}); fetch it again") from None
    if len(body) != values:
        there = str(len(body)) if len(body) < values else "more"
        raise DataError(f"{path} declares {values} values for the shape {shape} and holds {there}; {DAMAGED}")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def load_mnist(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """60,000 training and 10,000 test images with their labels."""
    folder = MNIST.place(root)
    (train, train_labels), (test, test_labels) = (_pair(folder, part) for part in PARTS)
    if config.generator.size == 32 and train.shape[1:] == test.shape[1:] == (28, 28):
        # A black rim of two pixels is the usual padding to a side that halves five times.
        train, test = (np.pad(x, ((0, 0), (2, 2), (2, 2))) for x in (train, test))
    images = as_tensor(train[:, None]), as_tensor(test[:, None])
    return Splits(*images, as_labels(train_labels), as_labels(test_labels), str(folder))


def find(root: Path | None) -> Path | None:
    folders = [root / place for place in PLACES] if root is not None else []
    return next((f for f in folders if all(_file(f, part, kind) for part in PARTS for kind in KINDS)), None)


def _pair(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    image_file, label_file = (_file(folder, part, kind) for kind in KINDS)
    assert image_file and label_file  # `find` has checked that they exist
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if len(images) != len(labels) or not len(images):
        raise DataError(
            f"{image_file} holds {len(images)} images and {label_file} {len(labels)} labels; fetch both again"
        )
    return images, labels


def _file(folder: Path, part: str, kind: str) -> Path | None:
    names = [f"{part}-{k}-ubyte{end}" for k in (kind, kind.replace("-", ".")) for end in ("", ".gz")]
    return next((p for n in names if (p := folder / n).is_file()), None)


MNIST = described("mnist", load_mnist, find)
DATASETS = (MNIST,)

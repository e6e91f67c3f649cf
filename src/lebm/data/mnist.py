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
from lebm.data.splits import Config, Dataset, Download, Splits, as_labels, first_folder

PLACES = ("MNIST/raw", "mnist/raw", "MNIST", "mnist", ".")
MAX_VALUES = GIB


def read_idx(path: Path, dims: int) -> np.ndarray:
    """The uint8 array of an idx file with so many dimensions; no more is unpacked than its header declares."""
    check_regular_size(path, 2 * GIB)
    try:
        with cast(BinaryIO, gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")) as f:
            shape = _shape(path, f.read(4 + 4 * dims), dims)
            values = math.prod(shape)
            body = f.read(values + 1)
    except (EOFError, OSError, zlib.error) as e:
        raise DataError(f"{path} is truncated or damaged ({one_line(e)}); fetch it again") from None
    if len(body) != values:
        there = f"{len(body)}" if len(body) < values else "more"
        raise DataError(
            f"{path} declares {values} values for the shape {shape} and holds {there}; "
            "it is truncated or damaged, fetch it again"
        )
    return np.frombuffer(bytearray(body), dtype=np.uint8).reshape(shape)


def _shape(path: Path, header: bytes, dims: int) -> tuple[int, ...]:
    if header[:4] != bytes((0, 0, 8, dims)):
        raise DataError(
            f"{path} begins with {header[:4].hex()} and not 000008{dims:02x}, "
            "so it is no idx file of that kind; fetch it again"
        )
    if len(header) < 4 + 4 * dims:
        raise DataError(f"{path} ends inside its header; fetch it again")
    shape = struct.unpack(f">{dims}I", header[4:])
    if math.prod(shape) > MAX_VALUES:
        raise DataError(
            f"{path} declares the shape {shape}, more than {MAX_VALUES} values; it is damaged, fetch it again"
        )
    return shape


def load_mnist(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """60,000 training and 10,000 test images with their labels."""
    folder = MNIST.place(root)
    train, train_labels = _pair(folder, "train")
    test, test_labels = _pair(folder, "t10k")
    if config.generator.size == 32 and train.shape[1:] == test.shape[1:] == (28, 28):
        # A black rim of two pixels is the usual padding to a side that halves five times.
        train, test = (np.pad(x, ((0, 0), (2, 2), (2, 2))) for x in (train, test))
    images = as_tensor(train[:, None]), as_tensor(test[:, None])
    return Splits(*images, as_labels(train_labels), as_labels(test_labels), str(folder))


def find(root: Path | None) -> Path | None:
    def complete(folder: Path) -> bool:
        kinds = ("images-idx3", "labels-idx1")
        return all(_file(folder, part, kind) for part in ("train", "t10k") for kind in kinds)

    return first_folder(root, PLACES, complete)


def _pair(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    image_file, label_file = _file(folder, part, "images-idx3"), _file(folder, part, "labels-idx1")
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


MNIST = Dataset(
    "mnist",
    load_mnist,
    find,
    how="put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and "
    "t10k-labels-idx1-ubyte.gz (gzipped or not) into MNIST/raw under the data folder; they come from "
    "http://yann.lecun.com/exdb/mnist/, mirrored at https://ossci-datasets.s3.amazonaws.com/mnist/",
    licence="CC BY-SA 3.0 (Yann LeCun, Corinna Cortes)",
    description="60,000 training and 10,000 test digits, 28x28 grey (padded to 32x32 where generator.size is 32)",
    download=Download(
        "MNIST/raw",
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    ),
)
DATASETS = (MNIST,)

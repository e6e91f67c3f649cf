"""What a data set gives (Splits) and what is known about it (Dataset)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lebm.config import Config
from lebm.errors import DataError

Progress = Callable[[int, int], None]  # (done, total)
GIB = 1 << 30
FETCHED = ("svhn", "cifar10", "mnist")  # what `lebm fetch` can download


@dataclass(frozen=True)
class Splits:
    """Rows of training and test data: images as uint8 (n, c, h, w), 0..255; labels, where the set has them, as int64 (n,)."""

    train: Tensor
    test: Tensor
    train_labels: Tensor | None = None
    test_labels: Tensor | None = None
    source: str = ""  # where the rows came from, for the record
    validation: Tensor | None = None  # where the set has such a split
    facts: dict[str, Any] = field(default_factory=dict)  # what a generator must know to read and show rows; plain JSON, saved with the model
    notes: tuple[str, ...] = ()  # what a person should know of how the data was read


class Loader(Protocol):
    def __call__(self, config: Config, root: Path | None, progress: Progress | None = None) -> Splits: ...


@dataclass(frozen=True)
class Dataset:
    name: str
    load: Loader
    find: Callable[[Path | None], Path | None]  # where it lies under the data folder; None: not there
    how: str  # which files to put where, and where they officially come from
    licence: str
    description: str = ""
    kind: str = "image"  # of the generators that take its rows


def found(name: str, how: str, place: Path | None, root: Path | None) -> Path:
    """The place where a set was found, or the error that says how to get it."""
    if place is not None:
        return place
    if root is None:
        where = "no data folder is given (data_dir, or the environment variable LEBM_DATA)"
    else:
        where = f"it is not under {root}" if root.is_dir() else f"the data folder {root} does not exist"
    fetch = f"`lebm fetch {name}` downloads it, or " if name in FETCHED else ""
    raise DataError(f"{name} cannot be read because {where}: {fetch}{how}")


def first_folder(root: Path | None, places: tuple[str, ...], complete: Callable[[Path], bool]) -> Path | None:
    """The first of the places under the root that holds everything a set needs."""
    if root is None:
        return None
    return next((root / p for p in places if complete(root / p)), None)


def as_tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def as_labels(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))


def one_line(text: object) -> str:
    """What a foreign file or library says, fit to stand inside a sentence on a terminal."""
    line = " ".join(str(text).split()) or type(text).__name__
    return "".join(c if c.isprintable() else "?" for c in line[:200])


def size_settings(side: int) -> list[str]:
    """The settings under which a generator makes images of this side; none if no first map doubles to it."""
    sides = [b for b in sorted(range(1, 17), key=lambda b: abs(b - 4)) if side % b == 0 and (n := side // b) >= 2 and n & (n - 1) == 0]
    return [f"generator.size={side}", f"generator.base={sides[0]}"] if sides and side <= 256 else []


def check_size(path: Path, limit: int) -> int:
    """The size of a regular file (a pipe or device would hang a reader), refused above a limit."""
    try:
        size = path.stat().st_size
    except OSError as e:
        raise DataError(f"{path} cannot be read ({e.strerror or e}); check the path and its permissions") from None
    if not path.is_file():
        raise DataError(f"{path} is not a regular file; give a file")
    if size > limit:
        raise DataError(f"{path} has {size} bytes, more than the {limit} a file of this kind can have; it is damaged or not what its name says")
    return size

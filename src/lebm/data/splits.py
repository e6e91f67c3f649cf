"""The rows that a data set gives (Splits) and what is known about the set (Dataset)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from lebm.core.errors import DataError
from lebm.core.image_sizes import doublings
from lebm.core.progress import Progress

Config = Any  # a lebm.config.Config; only its attributes are used here


@dataclass(frozen=True)
class Splits:
    """Rows of training and test data: images as uint8 (n, c, h, w), sentences as int32 (n, words)."""

    train: Tensor
    test: Tensor
    train_labels: Tensor | None = None  # int64 (n,), where the set has labels
    test_labels: Tensor | None = None
    source: str = ""  # where the rows came from, for the record
    validation: Tensor | None = None  # where the set has such a split
    facts: dict[str, Any] = field(default_factory=dict)  # what a generator must know of the rows; plain JSON
    notes: tuple[str, ...] = ()  # what a person should know of how the data was read


Loader = Callable[[Config, Path | None, Progress | None], Splits]  # of the data folder
Finder = Callable[[Path | None], Path | None]


@dataclass(frozen=True)
class Download:
    """The official files of a set and where they lie on the web."""

    folder: str  # under the data folder
    files: dict[str, str]  # name -> sha256
    urls: Sequence[str]  # mirrors in order, each followed by a file's name
    archive: str | None = None  # the one file is a tar, and this folder in it is needed


@dataclass(frozen=True)
class Dataset:
    """A data set: its reader, and what a person must know to get it."""

    name: str
    load: Loader
    find: Finder  # where it lies under the data folder; None: it is not there
    how: str  # which files to put where, and where they officially come from
    licence: str
    description: str = ""
    modality: str = "image"  # that of the generators which take its rows
    download: Download | None = None  # for `lebm fetch`

    def place(self, root: Path | None) -> Path:
        """Where the set lies, or the error that says how to get it."""
        if (place := self.find(root)) is not None:
            return place
        where = "no data folder is given (data_dir, or the environment variable LEBM_DATA)"
        if root is not None:
            where = f"it is not under {root}" if root.is_dir() else f"the data folder {root} does not exist"
        fetch = f"`lebm fetch {self.name}` downloads it, or " if self.download else ""
        raise DataError(f"{self.name} cannot be read because {where}: {fetch}{self.how}")


FACTS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("sets.yaml").read_text(encoding="utf-8"))


def described(name: str, load: Loader, find: Finder) -> Dataset:
    """A data set whose other facts are in sets.yaml."""
    facts = dict(FACTS[name])
    if "download" in facts:
        facts["download"] = Download(**facts["download"])
    return Dataset(name, load, find, **facts)


def in_folder(*places: str, files: Iterable[str] = ()) -> Finder:
    """A `find`: the first of the places under the root that is a folder with all these files."""

    def find(root: Path | None) -> Path | None:
        folders = [root / place for place in places] if root is not None else []
        return next((f for f in folders if f.is_dir() and all((f / name).is_file() for name in files)), None)

    return find


def nowhere(root: Path | None) -> None:
    """The `find` of a set that data.path names."""


def built_in(root: Path | None) -> Path:
    """The `find` of a set that this package makes itself."""
    return Path(__file__).parent


def given_path(config: Config, root: Path | None, what: str) -> Path:
    """The existing path that data.path names, which may be relative to the data folder; `what` it should name."""
    given = config.data.path
    if not given:
        raise DataError(f"data.path is not set; name {what} with --set data.path=PATH")
    path = Path(given).expanduser()
    if not path.exists() and root is not None:
        path = root / path
    if not path.exists():
        raise DataError(f"data.path is {given}, which does not exist; name {what}")
    return path


def image_shape(config: Config) -> tuple[int, int, int]:
    """(channels, height, width) of the images that the configured generator makes."""
    g = config.generator
    return g.channels, g.size, g.size


def as_labels(array: np.ndarray) -> Tensor:
    """Labels as int64."""
    return torch.from_numpy(array.astype(np.int64))


def size_settings(side: int) -> list[str]:
    """The settings under which a generator makes images of this side; none if no first map doubles to it."""
    bases = [base for base in sorted(range(1, 17), key=lambda b: abs(b - 4)) if doublings(side, base)]
    return [f"generator.size={side}", f"generator.base={bases[0]}"] if bases else []

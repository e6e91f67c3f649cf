"""Decoded images kept beside their source, so that the second start takes seconds.

One uint8 .npy (training rows, then test rows), memory-mapped when it is read, and a JSON file with the number of
training rows and the labels. The JSON file is written last: without it the array does not count.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lebm.core.files import write_atomic, write_with
from lebm.core.pixels import as_tensor
from lebm.core.progress import Progress
from lebm.data.splits import Splits, as_labels

FOLDER = ".lebm-cache"
VERSION = 1
Part = tuple[np.ndarray, np.ndarray]  # images (n, c, h, w) in uint8, and their labels (n,)


def read_parts(paths: Sequence[Path], read: Callable[[Path], Part], progress: Progress | None) -> list[Part]:
    """What `read` gives of every file."""
    parts = []
    for done, path in enumerate(paths, start=1):
        parts.append(read(path))
        if progress:
            progress(done, len(paths))
    return parts


@dataclass(frozen=True)
class Decoded:
    """Rows of images, the first `train` of them for training, and a label for each row or None."""

    images: np.ndarray
    train: int
    labels: np.ndarray | None = None

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Decoded:
        """The rows of several files, the last of which is the test split."""
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return cls(images, len(images) - len(parts[-1][0]), labels)

    def splits(self, source: str) -> Splits:
        """The training rows and the rest."""
        images, n = as_tensor(self.images), self.train
        train, test = (None, None) if self.labels is None else as_labels(self.labels).tensor_split([n])
        return Splits(images[:n], images[n:], train, test, source)


def cached(folder: Path, name: str, sources: Sequence[Path], build: Callable[[], Decoded]) -> Decoded:
    """What `build` returns, from the cache in `folder` while names, sizes and times of the sources stay the same.

    `name` says what was made (set, size, channels). Where the folder cannot be written to, there is no cache.
    """
    try:
        stem = f"{name}-{_key(folder, sources)}"
    except OSError:  # a source has gone: `build` says which
        return build()
    cache = folder / FOLDER
    array, facts = cache / f"{stem}.npy", cache / f"{stem}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, EOFError, OverflowError, RecursionError):
        return _read(array, facts)
    fresh = build()
    labels = None if fresh.labels is None else fresh.labels.tolist()
    with contextlib.suppress(OSError):  # a read-only or full disk costs time at the next start, nothing else
        write_with(array, lambda path: np.save(path, fresh.images, allow_pickle=False))
        write_atomic(facts, json.dumps({"train": fresh.train, "shape": fresh.images.shape, "labels": labels}))
        for path in cache.glob(f"{name}-*"):  # rows made of earlier states of the same sources
            if path.stem != stem:
                path.unlink()
    return fresh


def _key(folder: Path, sources: Iterable[Path]) -> str:
    digest = hashlib.blake2b(f"{VERSION}".encode(), digest_size=10)
    for path in sources:
        stat = path.stat()
        line = f"\n{path.relative_to(folder).as_posix()!r} {stat.st_size} {stat.st_mtime_ns}"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def _read(array: Path, facts: Path) -> Decoded:
    """The cached rows. Any error means that there are none, or that they do not fit together and are made again."""
    known = json.loads(facts.read_text(encoding="utf-8"))
    # Copy-on-write: read lazily like "r", but writable in memory, which is what torch asks of an array it shares.
    images = np.lib.format.open_memmap(array, mode="c")
    train, labels = known["train"], known["labels"]
    y = None if labels is None else np.asarray(labels, dtype=np.int64)
    fits = images.dtype == np.uint8 and images.ndim == 4 and list(images.shape) == known["shape"]
    if not fits or type(train) is not int or not 0 < train <= len(images) or (y is not None and len(y) != len(images)):
        raise ValueError
    return Decoded(images, train, y)

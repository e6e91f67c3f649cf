"""Decoded images kept beside their source, so that the second start takes seconds.

One uint8 .npy (training rows, then test rows), memory-mapped when it is read, and a JSON file with the number of
training rows and the labels. The JSON file is written last: without it the array does not count.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lebm.core.files import write_atomic, write_with
from lebm.core.pixels import as_tensor
from lebm.data.splits import Splits, as_labels

FOLDER = ".lebm-cache"
VERSION = 1


@dataclass(frozen=True)
class Decoded:
    """Rows of images, the first `train` of them for training, and a label for each row or None."""

    images: np.ndarray
    train: int
    labels: np.ndarray | None = None

    def splits(self, source: str) -> Splits:
        """The training rows and the rest."""
        images, n = as_tensor(self.images), self.train
        labels = None if self.labels is None else as_labels(self.labels)
        if labels is None:
            return Splits(images[:n], images[n:], source=source)
        return Splits(images[:n], images[n:], labels[:n], labels[n:], source)


def cached(folder: Path, name: str, sources: Iterable[Path], build: Callable[[], Decoded]) -> Decoded:
    """What `build` returns, from the cache in `folder` while names, sizes and times of the sources stay the same.

    `name` says what was made (set, size, channels). Where the folder cannot be written to, there is no cache.
    """
    try:
        stem = f"{name}-{_key(folder, sources)}"
    except OSError:  # a source has gone: `build` says which
        return build()
    cache = folder / FOLDER
    known = _read(cache / stem)
    if known is not None:
        return known
    fresh = build()
    with contextlib.suppress(OSError):  # a read-only or full disk costs time at the next start, nothing else
        _write(cache, stem, fresh)
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


def _read(stem: Path) -> Decoded | None:
    """The cached rows, or None if there are none or they do not fit together (then they are made again)."""
    try:
        facts = json.loads(stem.with_name(stem.name + ".json").read_text(encoding="utf-8"))
        # Copy-on-write: read lazily like "r", but writable in memory, which is what torch asks of an array it shares.
        images = np.lib.format.open_memmap(stem.with_name(stem.name + ".npy"), mode="c")
        labels = None if facts["labels"] is None else np.asarray(facts["labels"], dtype=np.int64)
        train = facts["train"]
        fits = images.dtype == np.uint8 and images.ndim == 4 and list(images.shape) == facts["shape"]
    except (OSError, ValueError, KeyError, TypeError, EOFError, OverflowError, RecursionError):
        return None
    if not fits or not isinstance(train, int) or not 0 < train <= len(images):
        return None
    return Decoded(images, train, labels) if labels is None or labels.shape == (len(images),) else None


def _write(folder: Path, stem: str, rows: Decoded) -> None:
    labels = None if rows.labels is None else rows.labels.tolist()
    facts = {"train": rows.train, "shape": list(rows.images.shape), "labels": labels}
    write_with(folder / f"{stem}.npy", lambda path: np.save(path, rows.images, allow_pickle=False))
    write_atomic(folder / f"{stem}.json", json.dumps(facts))

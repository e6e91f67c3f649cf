"""Decoded images kept beside their source, so that the second start takes seconds.

One uint8 .npy (training rows, then test rows), memory-mapped on reading, and a JSON that says where the test rows begin
and holds the labels. The JSON is written last: without it the array does not count.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lebm.data.splits import Splits, as_labels, as_tensor

FOLDER = ".lebm-cache"
VERSION = 1


@dataclass(frozen=True)
class Decoded:
    """Rows of images, the first `train` of them for training, and a label a row or None."""

    images: np.ndarray
    train: int
    labels: np.ndarray | None = None

    def splits(self, source: str) -> Splits:
        images, n = as_tensor(self.images), self.train
        labels = None if self.labels is None else as_labels(self.labels)
        if labels is None:
            return Splits(images[:n], images[n:], source=source)
        return Splits(images[:n], images[n:], labels[:n], labels[n:], source)


def cached(folder: Path, name: str, sources: Iterable[Path], build: Callable[[], Decoded]) -> Decoded:
    """What `build` returns, from the cache in `folder` while the names, sizes and times of the sources stay the same.

    `name` says what was made (set, size, channels). Where the folder cannot be written to, nothing is kept.
    """
    try:
        stem = f"{name}-{_key(folder, sources)}"
    except OSError:  # a source went away: let `build` say which
        return build()
    kept = _read(folder / FOLDER / stem)
    if kept is not None:
        return kept
    fresh = build()
    with contextlib.suppress(OSError):  # a read-only or full disk costs time at the next start, nothing else
        _write(folder / FOLDER, stem, fresh)
        _drop_stale(folder / FOLDER, name, stem)
    return fresh


def _key(folder: Path, sources: Iterable[Path]) -> str:
    digest = hashlib.blake2b(f"{VERSION}".encode(), digest_size=10)
    for path in sources:
        stat = path.stat()
        digest.update(f"\n{path.relative_to(folder).as_posix()!r} {stat.st_size} {stat.st_mtime_ns}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _read(stem: Path) -> Decoded | None:
    """The kept rows, or None if there are none or they do not fit together (then they are made again)."""
    try:
        facts = json.loads(stem.with_name(stem.name + ".json").read_text(encoding="utf-8"))
        # Copy-on-write: lazily read like "r", but writable in memory, which is what torch asks of an array it shares.
        images = np.lib.format.open_memmap(stem.with_name(stem.name + ".npy"), mode="c")
        labels = None if facts["labels"] is None else np.asarray(facts["labels"], dtype=np.int64)
        train = facts["train"]
    except (OSError, ValueError, KeyError, TypeError, EOFError, OverflowError, RecursionError):
        return None
    if not isinstance(train, int):
        return None
    fits = images.dtype == np.uint8 and images.ndim == 4 and list(images.shape) == facts.get("shape") and 0 < train <= len(images)
    return Decoded(images, train, labels) if fits and (labels is None or labels.shape == (len(images),)) else None


def _write(folder: Path, stem: str, rows: Decoded) -> None:
    folder.mkdir(exist_ok=True)
    facts = {"train": rows.train, "shape": list(rows.images.shape), "labels": None if rows.labels is None else rows.labels.tolist()}
    _replace(folder / f"{stem}.npy", lambda f: np.save(f, rows.images, allow_pickle=False))
    _replace(folder / f"{stem}.json", lambda f: f.write(json.dumps(facts).encode()))


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write to a temporary file and rename it: a reader sees all of it or nothing."""
    temporary = path.with_name(f".tmp-{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as f:
            write(f)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _drop_stale(folder: Path, name: str, stem: str) -> None:
    """Rows made of earlier states of the same sources are of no use any more."""
    for path in folder.glob(f"{name}-*"):
        if path.stem != stem:
            path.unlink()

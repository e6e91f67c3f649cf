"""Files that are written whole or not at all, and checks before a file is read."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from lebm.core.errors import DataError

GIB = 1 << 30


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a temporary file beside `path` and rename it: a reader sees the old file or the new one, never a part."""
    raw = content.encode() if isinstance(content, str) else content
    write_with(path, lambda temporary: write_synced(temporary, raw))


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """The same for any function that fills a path. The file's mode follows the umask, as for a plain open()."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-", suffix=path.suffix)
    os.close(fd)
    temporary = Path(name)
    try:
        write(temporary)
        sync(temporary)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def save_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table with a line of column names, written whole."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    write_atomic(path, text.getvalue())


def save_npz(path: Path, **arrays: Any) -> None:
    """Arrays by name, written whole."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomic(path, buffer.getvalue())


def write_synced(path: Path, content: bytes) -> None:
    """Write the content and wait until the disk has it."""
    path.write_bytes(content)
    sync(path)


def sync(path: Path) -> None:
    """Wait until the disk has this file or this folder's entries."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sha256(path: Path) -> str:
    """The checksum of a file, as hexadecimal digits."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def check_regular_size(path: Path, limit: int) -> int:
    """The size of a regular file (a pipe or device would hang a reader), refused above `limit` bytes."""
    try:
        size = path.stat().st_size
    except OSError as e:
        raise DataError(f"{path} cannot be read ({e.strerror or e}); check the path and its permissions") from None
    if not path.is_file():
        raise DataError(f"{path} is not a regular file; give a file")
    if size > limit:
        raise DataError(
            f"{path} has {size} bytes, more than the {limit} a file of this kind can have; "
            "it is damaged or not what its name says"
        )
    return size

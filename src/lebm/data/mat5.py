"""Numeric arrays out of a MATLAB 5 file, compressed or not.

Why not scipy.io.loadmat: a damaged file can crash the whole process there. Here every length is checked before it is used.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MATRIX, COMPRESSED, INT8, INT32, UINT32 = 14, 15, 1, 5, 6
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
NUMERIC = range(6, 16)  # the array classes double, single and int8 .. uint64
COMPLEX = 0x0800
HEAD = 4096  # bytes of a compressed array that are unpacked to learn its name


class Damaged(ValueError):
    """The file is no MATLAB 5 file, or its parts do not fit together."""


@dataclass(frozen=True)
class _Head:
    name: str
    shape: tuple[int, ...]
    numeric: bool
    end: int  # where the values begin


def read_mat5(path: Path, names: Collection[str], limit: int) -> dict[str, np.ndarray]:
    """The arrays of these names that the file holds; an array of more than `limit` bytes is refused before it is unpacked."""
    if path.stat().st_size < 128:
        raise Damaged("it ends inside its header")
    raw = np.memmap(path, dtype=np.uint8, mode="r").data
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(bytes(raw[124:128]))
    if order is None:
        raise Damaged("it is not of version 5")
    out: dict[str, np.ndarray] = {}
    at = 128
    while at < len(raw) and len(out) < len(names):
        if at + 8 > len(raw):
            raise Damaged("it is truncated")
        kind, size = struct.unpack(f"{order}II", raw[at : at + 8])
        body = raw[at + 8 : at + 8 + size]
        if len(body) < size:
            raise Damaged("it is truncated")
        at += 8 + size
        found = _inflate(body, order, names, limit) if kind == COMPRESSED else body if kind == MATRIX else None
        if found is not None:
            head = _head(found, order)
            if head.name in names and head.numeric:
                out[head.name] = _values(found, head, order)
    return out


def _inflate(packed: memoryview, order: str, names: Collection[str], limit: int) -> memoryview | None:
    """The array in a compressed element; None if it is not one of these names, of which only the beginning is unpacked."""
    stream = zlib.decompressobj()
    start = stream.decompress(packed, HEAD)
    if len(start) < 8:
        raise Damaged("it is truncated")
    kind, size = struct.unpack(f"{order}II", start[:8])
    if kind != MATRIX or _head(memoryview(start)[8:], order).name not in names:
        return None
    if size > limit:
        raise Damaged(f"an array unpacks to {size} bytes, more than {limit}")
    rest = stream.decompress(stream.unconsumed_tail, size + 8 - len(start)) if size + 8 > len(start) else b""
    stream.decompress(stream.unconsumed_tail, 8)  # reaching the end lets zlib compare its checksum
    if not stream.eof:
        raise Damaged("it is truncated")
    return memoryview(start + rest)[8 : 8 + size]


def _head(matrix: memoryview, order: str) -> _Head:
    flag_kind, flags, at = _element(matrix, 0, order)
    shape_kind, shape, at = _element(matrix, at, order)
    name_kind, name, at = _element(matrix, at, order)
    if (flag_kind, shape_kind, name_kind) != (UINT32, INT32, INT8) or len(flags) != 8 or len(shape) % 4:
        raise Damaged("an array has no proper head")
    word = struct.unpack(f"{order}I", flags[:4])[0]
    sides = struct.unpack(f"{order}{len(shape) // 4}i", shape)
    return _Head(bytes(name).decode("latin1"), sides, (word & 0xFF) in NUMERIC and not word & COMPLEX, at)


def _values(matrix: memoryview, head: _Head, order: str) -> np.ndarray:
    kind, raw, _ = _element(matrix, head.end, order)
    if kind not in TYPES:
        raise Damaged(f"{head.name} has values of the unknown type {kind}")
    dtype = np.dtype(order + TYPES[kind])
    if min(head.shape, default=-1) < 0 or len(head.shape) > 8 or math.prod(head.shape) * dtype.itemsize != len(raw):
        raise Damaged(f"{head.name} of shape {head.shape} does not fit into its {len(raw)} bytes")
    return np.frombuffer(raw, dtype=dtype).reshape(head.shape, order="F")


def _element(view: memoryview, at: int, order: str) -> tuple[int, memoryview, int]:
    """Type and bytes of the element at this place, and where the next one begins; up to 4 bytes lie inside the tag itself."""
    if at + 8 > len(view):
        raise Damaged("it is truncated")
    first, size = struct.unpack(f"{order}II", view[at : at + 8])
    if first >> 16:
        kind, size, start, end = first & 0xFFFF, first >> 16, at + 4, at + 8
        if size > 4:
            raise Damaged("an element is longer than its place")
    else:
        kind, start = first, at + 8
        end = start + size + -size % 8
    if start + size > len(view):
        raise Damaged("it is truncated")
    return kind, view[start : start + size], end

"""A user's .npy and .npz files -> images (n, c, h, w), uint8 or float32 in [-1, 1], checked before they are used."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

from lebm.core.errors import DataError, one_line
from lebm.core.files import GIB, check_regular_size
from lebm.data.splits import size_settings

SUFFIXES = (".npy", ".npz")
NAMES = ("x", "images", "arr_0")  # taken from a .npz with several arrays, in this order
MAX_BYTES = 16 * GIB
GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # ITU-R 601 luma, as Pillow turns colour to grey


def is_array(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def read_images(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    """The images of an array file as (n, c, h, w) in the shape asked for, uint8 or float32 in [-1, 1]."""
    raw = read_array(path)
    images = _channels(_layout(raw, shape, path), shape[0])
    if not len(images):
        raise DataError(f"{path} holds no images (its shape is {raw.shape}); give at least one")
    return np.ascontiguousarray(images)


def read_array(path: Path) -> np.ndarray:
    """The array of a .npy file (memory-mapped) or of a .npz file. Pickled objects are never loaded."""
    check_regular_size(path, MAX_BYTES)
    try:
        if path.suffix.lower() == ".npz":
            return _read_npz(path)
        with path.open("rb") as f:
            _check_header(f, path, path.stat().st_size)
        array: np.ndarray = np.lib.format.open_memmap(path, mode="c")  # takes no objects
        return array
    except DataError:
        raise
    except MemoryError:
        raise DataError(f"{path} does not fit into memory; split it or give smaller images") from None
    except Exception as e:
        kind = path.suffix.lower()
        raise DataError(
            f"{path} is not a readable {kind} file ({one_line(e)}); save the array again with numpy"
        ) from None


def _read_npz(path: Path) -> np.ndarray:
    with zipfile.ZipFile(path) as archive:
        members = {m.filename.removesuffix(".npy"): m for m in archive.infolist() if m.filename.endswith(".npy")}
        if not members:
            raise DataError(f"{path} holds no arrays; save one with numpy.savez({path.name!r}, images=array)")
        name = next(iter(members)) if len(members) == 1 else next((n for n in NAMES if n in members), None)
        if name is None:
            shown = one_line(", ".join(sorted(members)))
            raise DataError(
                f"{path} holds the arrays {shown}; call the images one of {', '.join(NAMES)}, or save them alone"
            )
        member = members[name]
        if member.file_size > MAX_BYTES:
            raise DataError(f"{path} unpacks to {member.file_size} bytes, more than {MAX_BYTES}; split it")
        with archive.open(member) as f:
            _check_header(f, path, member.file_size)
        with archive.open(member) as f:
            array: np.ndarray = np.lib.format.read_array(f, allow_pickle=False)
            return array


def _check_header(f: IO[bytes], path: Path, size: int) -> None:
    """Raise unless the header declares plain numbers that fit into the file: numpy would allocate whatever it says."""
    version = np.lib.format.read_magic(f)
    read: Callable[[IO[bytes]], tuple[tuple[int, ...], bool, np.dtype]]
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(f)
    if dtype.hasobject or dtype.kind not in "uif":
        what = "Python objects (images of mixed shapes?)" if dtype.hasobject else f"values of type {dtype}"
        raise DataError(f"{path} holds {what}; give one array of uint8 pixels 0..255 or floats in [-1, 1]")
    if not 2 <= len(shape) <= 4:
        raise DataError(f"{path} has shape {shape}; give images as (n, channels, height, width)")
    declared, there = math.prod(shape) * dtype.itemsize, size - f.tell()
    if declared > there or min(shape) < 0:
        raise DataError(
            f"{path} is truncated: shape {shape} of {dtype} needs {declared} bytes and there are {there}; save it again"
        )


# --- layout, channels and range -----------------------------------------------------------------------------------


def _layout(raw: np.ndarray, shape: tuple[int, int, int], path: Path) -> np.ndarray:
    """(n, c, h, w), (n, h, w, c), (n, h, w) or one image of these -> (n, c, h, w), 1 or 3 channels, checked values."""
    channels, h, w = shape
    x = raw[None] if raw.shape == (h, w) or _one_colour(raw.shape, (h, w)) else raw
    if x.ndim == 3 and x.shape[1:] == (h, w):
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or x.shape[2:] != (h, w):
        fix = _fix(raw.shape, h, w)
        raise DataError(
            f"{path} has shape {raw.shape} but the images must be "
            f"(n, {channels}, {h}, {w}) or (n, {h}, {w}, {channels}); {fix}"
        )
    return _values(x, path)


def _fix(given: tuple[int, ...], h: int, w: int) -> str:
    sides = given[-2:] if len(given) == 3 or (len(given) == 4 and given[1] in (1, 3)) else given[1:3]
    settings = size_settings(sides[0]) if len(sides) == 2 and sides[0] == sides[1] != h else []
    if not settings:
        return f"change them to {h}x{w} pixels in 1 or 3 channels"
    return f"resize them to {h}x{w}, or train with {' '.join('--set ' + s for s in settings)}"


def _one_colour(given: tuple[int, ...], side: tuple[int, int]) -> bool:
    return len(given) == 3 and given in ((3, *side), (*side, 3), (*side, 1))


def _values(x: np.ndarray, path: Path) -> np.ndarray:
    """uint8 as it is, other whole numbers in 0..255 as uint8, floats in [-1, 1] as float32."""
    if x.dtype == np.uint8 or not x.size:
        return x.astype(np.uint8, copy=False)
    low, high = x.min(), x.max()  # NaN spreads to both
    if x.dtype.kind in "ui":
        if low < 0 or high > 255:
            raise DataError(f"{path} holds whole numbers from {low} to {high}; pixels must lie in 0..255")
        return x.astype(np.uint8)
    if not (np.isfinite(low) and np.isfinite(high)):
        row = next(i for i in range(len(x)) if not np.isfinite(x[i]).all())
        raise DataError(f"image {row} of {path} contains NaN or infinity; remove or repair such rows")
    if low < -1.001 or high > 1.001:
        raise DataError(
            f"{path} holds floats from {low:.4g} to {high:.4g}; they must lie in [-1, 1] "
            "(divide 0..255 by 127.5 and subtract 1, or save uint8)"
        )
    return x.astype(np.float32).clip(-1, 1)


def _channels(x: np.ndarray, channels: int) -> np.ndarray:
    """Grey repeated to colour, or colour weighted to grey."""
    if x.shape[1] == channels:
        return x
    if channels == 3:
        return x.repeat(3, axis=1)
    grey = np.tensordot(x, GREY, axes=(1, 0))[:, None]
    return grey.round().astype(np.uint8) if x.dtype == np.uint8 else grey.clip(-1, 1).astype(np.float32)

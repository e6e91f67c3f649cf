"""A user's .npy and .npz files -> images (n, c, h, w), uint8 or float32 in [-1, 1], checked before they are used."""

from __future__ import annotations

import math
import zipfile
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


def read_array(path: Path) -> np.ndarray:
    """The array of a .npy file (memory-mapped) or of a .npz file. Pickled objects are never loaded."""
    size, kind = check_regular_size(path, MAX_BYTES), path.suffix.lower()
    try:
        if kind == ".npy":
            with path.open("rb") as f:
                _check_header(f, path, size)
            return np.asarray(np.lib.format.open_memmap(path, mode="c"))  # takes no objects
        with zipfile.ZipFile(path) as archive:
            member = _member(archive, path)
            with archive.open(member) as f:
                _check_header(f, path, member.file_size)
                f.seek(0)
                return np.asarray(np.lib.format.read_array(f, allow_pickle=False))
    except (DataError, MemoryError):
        raise
    except Exception as e:
        raise DataError(
            f"{path} is not a readable {kind} file ({one_line(e)}); save the array again with numpy"
        ) from None


def _member(archive: zipfile.ZipFile, path: Path) -> zipfile.ZipInfo:
    """The array that holds the images; what it unpacks to is limited."""
    members = {m.filename.removesuffix(".npy"): m for m in archive.infolist() if m.filename.endswith(".npy")}
    if not members:
        raise DataError(f"{path} holds no arrays; save one with numpy.savez({path.name!r}, images=array)")
    name = next((n for n in (NAMES if len(members) > 1 else members) if n in members), None)
    if name is None:
        shown = one_line(", ".join(sorted(members)))
        raise DataError(
            f"{path} holds the arrays {shown}; call the images one of {', '.join(NAMES)}, or save them alone"
        )
    if members[name].file_size > MAX_BYTES:
        raise DataError(f"{path} unpacks to {members[name].file_size} bytes, more than {MAX_BYTES}; split it")
    return members[name]


def _check_header(f: IO[bytes], path: Path, size: int) -> None:
    """Raise unless the header declares plain numbers that fit into the file: numpy would allocate whatever it says."""
    first = np.lib.format.read_magic(f) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
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


def read_images(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    """The images of an array file as (n, c, h, w) in the shape asked for, uint8 or float32 in [-1, 1]."""
    raw, (channels, h, w) = read_array(path), shape
    x = _channels_first(raw, h, w)
    fits = x.ndim == 4 and x.shape[1] in (1, 3)
    if not fits or x.shape[2:] != (h, w):
        settings = size_settings(x.shape[2]) if fits and x.shape[2] == x.shape[3] else []
        train = f"resize them to {h}x{w}, or train with {' '.join('--set ' + s for s in settings)}"
        raise DataError(
            f"{path} has shape {raw.shape} but the images must be (n, {channels}, {h}, {w}) or (n, {h}, {w}, "
            f"{channels}); {train if settings else f'change them to {h}x{w} pixels in 1 or 3 channels'}"
        )
    if not len(x):
        raise DataError(f"{path} holds no images (its shape is {raw.shape}); give at least one")
    x = _values(x, path)
    if x.shape[1] < channels:
        x = x.repeat(3, axis=1)
    elif x.shape[1] > channels:
        grey = np.tensordot(x, GREY, axes=(1, 0))[:, None]
        x = grey.round().astype(np.uint8) if x.dtype == np.uint8 else grey.clip(-1, 1).astype(np.float32)
    return np.ascontiguousarray(x)


def _channels_first(raw: np.ndarray, h: int, w: int) -> np.ndarray:
    """(n, c, h, w), (n, h, w, c), (n, h, w) or one image of these -> (n, c, h, w)."""
    x = raw[None] if raw.shape in ((h, w), (3, h, w), (h, w, 3), (h, w, 1)) else raw
    if x.ndim == 3:
        return x[:, None]
    return x.transpose(0, 3, 1, 2) if x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3) else x


def _values(x: np.ndarray, path: Path) -> np.ndarray:
    """uint8 as it is, other whole numbers in 0..255 as uint8, floats in [-1, 1] as float32."""
    low, high = x.min(), x.max()  # NaN spreads to both
    if x.dtype.kind in "ui":
        if low < 0 or high > 255:
            raise DataError(f"{path} holds whole numbers from {low} to {high}; pixels must lie in 0..255")
        return x.astype(np.uint8, copy=False)
    if not np.isfinite([low, high]).all():
        row = np.isfinite(x).all((1, 2, 3)).argmin()
        raise DataError(f"image {row} of {path} contains NaN or infinity; remove or repair such rows")
    if low < -1.001 or high > 1.001:
        raise DataError(
            f"{path} holds floats from {low:.4g} to {high:.4g}; they must lie in [-1, 1] "
            "(divide 0..255 by 127.5 and subtract 1, or save uint8)"
        )
    return x.astype(np.float32).clip(-1, 1)

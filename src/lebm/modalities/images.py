"""Images: read from pictures and arrays, shown and written as grids."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeGuard

from torch import Tensor

from lebm.core.errors import DataError, UserError
from lebm.core.pixels import as_tensor, to_pixels
from lebm.core.progress import Progress
from lebm.data import arrays, pictures
from lebm.generators.base import Generator
from lebm.modalities import grids
from lebm.modalities.base import VERBS, Ends, Given, Inputs, Modality, Target

MOST_SHOWN = 10_000  # images in one picture
MOST_PIXELS = 1024  # beyond, the Fréchet distance of raw pixels takes minutes to hours and says little
PHOTOGRAPHS = ("svhn", "cifar10", "celeba")  # sets on which the FID is published


class Images(Modality):
    noun = "image"
    unit = "pixel"
    endings = dict.fromkeys(VERBS, (".png", ".npz"))
    pictures = True

    def read_inputs(self, given: Given, generator: Generator) -> Inputs:
        """A folder of pictures, picture files, or one .npy or .npz file."""
        return read_images([Path(p) for p in given], _shape(generator))

    def write_samples(self, path: Target, x: Tensor, generator: Generator, columns: int | None = None) -> None:
        """A grid (.png) or an array of floats in [-1, 1] (.npz)."""
        if not _is_png(path):
            super().write_samples(path, x, generator)
        elif len(x) > MOST_SHOWN:
            raise UserError(f"{len(x)} images are too many for one picture; give at most {MOST_SHOWN}, or a .npz file")
        else:
            grids.save(grids.grid(to_pixels(x), columns), path)

    def write_pairs(self, path: Target, rows: Tensor, x_hat: Tensor, **numbers: Tensor) -> None:
        if _is_png(path):
            grids.save(grids.pairs(to_pixels(rows), to_pixels(x_hat)), path)
        else:
            super().write_pairs(path, rows, x_hat, **numbers)

    def write_paths(self, path: Target, ends: Ends, x: Tensor, z: Tensor, generator: Generator) -> None:
        """One row of images a path, between the images that it joins (.png), or arrays (.npz)."""
        if _is_png(path):
            grids.save(grids.rows_of_images(ends[0], x, ends[1]), path)
        else:
            super().write_paths(path, ends, x, z, generator)

    def default_metrics(self, generator: Generator, data: str, inception: bool) -> list[str]:
        if data in PHOTOGRAPHS and inception:
            return ["fid", "mse"]
        return ["frechet", "mse"] if math.prod(_shape(generator)) <= MOST_PIXELS else ["mse"]

    def saturation(self, x: Tensor) -> float | None:
        """The share of nearly black and nearly white values."""
        return float((x.abs() > 0.98).float().mean())


def _shape(generator: Generator) -> tuple[int, int, int]:
    assert generator.shape is not None
    channels, height, width = generator.shape
    return channels, height, width


def _is_png(path: Target) -> TypeGuard[Path]:
    return path is not None and path.suffix.lower() == ".png"


def read_images(given: Sequence[Path], shape: tuple[int, int, int], progress: Progress | None = None) -> Inputs:
    """Images (n, c, h, w), uint8 or (from float arrays) float32 in [-1, 1], and a name for each.

    The name of a picture is its path in its folder, or the file's name, or the whole path where names collide.
    """
    paths = [path.expanduser() for path in given]
    if not paths:
        raise DataError("no input is given; name a folder, picture files, or one .npy or .npz file")
    for path in paths:
        if not path.exists():
            raise DataError(f"{path} does not exist; check the path")
    if any(arrays.is_array(p) and not p.is_dir() for p in paths):
        if len(paths) > 1:
            raise DataError(f"{len(paths)} inputs are given and one of them is an array file; give an array file alone")
        images = arrays.read_images(paths[0], shape)
        return Inputs(as_tensor(images), [f"{paths[0].name}[{i}]" for i in range(len(images))])
    found = [(p, path) for path in paths for p in (pictures.list_pictures(path) if path.is_dir() else [path])]
    files = [p for p, _ in found]
    names = [p.relative_to(path).as_posix() if p != path else p.name for p, path in found]
    if len(set(names)) < len(names):
        names = [p.as_posix() for p in files]
    return Inputs(as_tensor(pictures.decode_all(files, shape, progress)), names, notes=_changes(files, shape))


def _changes(files: Sequence[Path], shape: tuple[int, int, int]) -> list[str]:
    """A note where pictures that were read are of another size than the model's images."""
    size = shape[2], shape[1]
    other = Counter(found for found in map(pictures.size, files) if found != size)
    if not other:
        return []
    (width, height), _ = other.most_common(1)[0]
    count, also = other.total(), " and other sizes" if len(other) > 1 else ""
    cut = " after cutting out the central square" if any(w != h for w, h in other) else ""
    grey = "grey pixels" if shape[0] == 1 else "pixels"
    return [
        f"{count} picture{'s were' if count > 1 else ' was'} resized{cut}: from {width}x{height}{also} "
        f"to {size[0]}x{size[1]} {grey}"
    ]

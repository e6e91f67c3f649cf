"""Images: read from pictures and arrays, shown and written as grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lebm.core.errors import DataError, UserError
from lebm.core.pixels import as_tensor, to_pixels
from lebm.core.progress import Progress
from lebm.data import arrays, pictures
from lebm.generators.base import Generator
from lebm.modalities import grids
from lebm.modalities.base import VERBS, Inputs, Modality

MOST_SHOWN = 10_000  # images in one picture
MOST_PIXELS = 1024  # beyond, the Fréchet distance of raw pixels takes minutes to hours and says little
PHOTOGRAPHS = ("svhn", "cifar10", "celeba")  # sets on which the FID is published


class Images(Modality):
    name = "image"
    noun = "image"
    endings = dict.fromkeys(VERBS, (".png", ".npz"))
    pictures = True

    def read_inputs(
        self, given: Sequence[str | Path], generator: Generator, progress: Progress | None = None
    ) -> Inputs:
        """A folder of pictures, picture files, or one .npy or .npz file."""
        return read_images([Path(p) for p in given], _shape(generator), progress)

    def write_samples(self, path: Path | None, x: Tensor, generator: Generator, columns: int | None = None) -> None:
        """A grid (.png) or an array of floats in [-1, 1] (.npz)."""
        if path is None or path.suffix.lower() != ".png":
            super().write_samples(path, x, generator)
        elif len(x) > MOST_SHOWN:
            raise UserError(f"{len(x)} images are too many for one picture; give at most {MOST_SHOWN}, or a .npz file")
        else:
            grids.save(grids.grid(_pixels(x), columns), path)

    def _write_pairs(
        self, path: Path | None, rows: Tensor, x_hat: Tensor, z: Tensor, mse: Tensor, generator: Generator
    ) -> None:
        if path is not None and path.suffix.lower() == ".png":
            grids.save(grids.pairs(_pixels(rows), _pixels(x_hat)), path)
        else:
            super()._write_pairs(path, rows, x_hat, z, mse, generator)

    def write_paths(
        self, path: Path | None, ends: tuple[Tensor, Tensor], x: Tensor, z: Tensor, generator: Generator
    ) -> None:
        """One row of images a path, between the images that it joins (.png), or arrays (.npz)."""
        if path is None or path.suffix.lower() != ".png":
            super().write_paths(path, ends, x, z, generator)
            return
        a, b = (_pixels(end).unsqueeze(1) for end in ends)
        sheet = torch.cat([a, _pixels(x), b], 1)
        grids.save(grids.grid(sheet.flatten(0, 1), columns=sheet.shape[1]), path)

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


def _pixels(x: Tensor) -> Tensor:
    return x if x.dtype == torch.uint8 else to_pixels(x)


def read_images(given: Sequence[Path], shape: tuple[int, int, int], progress: Progress | None = None) -> Inputs:
    """Images (n, c, h, w), uint8 or (from float arrays) float32 in [-1, 1], and a name for each."""
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
    files, names = _pictures(paths)
    return Inputs(as_tensor(pictures.decode_all(files, shape, progress)), names)


def _pictures(paths: list[Path]) -> tuple[list[Path], list[str]]:
    """Every picture and its name: its path in its folder, or the file's name, or the whole path where names collide."""
    files: list[Path] = []
    names: list[str] = []
    for path in paths:
        inside = pictures.list_pictures(path) if path.is_dir() else [path]
        files += inside
        names += [p.relative_to(path).as_posix() if path.is_dir() else path.name for p in inside]
    return files, names if len(set(names)) == len(names) else [p.as_posix() for p in files]

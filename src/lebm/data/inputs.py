"""What a user hands in to be scored or reconstructed: a folder, pictures, or one array file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from lebm.data import arrays, pictures
from lebm.data.splits import Progress, as_tensor
from lebm.errors import DataError


def read_inputs(inputs: Sequence[Path], shape: tuple[int, int, int], progress: Progress | None = None) -> tuple[Tensor, list[str]]:
    """Images (n, c, h, w), uint8 or (from float arrays) float32 in [-1, 1], and a name for each row."""
    paths = [Path(p).expanduser() for p in inputs]
    if not paths:
        raise DataError("no input is given; name a folder, picture files, or one .npy or .npz file")
    for path in paths:
        if not path.exists():
            raise DataError(f"{path} does not exist; check the path")
    if any(arrays.is_array(p) and not p.is_dir() for p in paths):
        if len(paths) > 1:
            raise DataError(f"{len(paths)} inputs are given and one of them is an array file; give an array file alone")
        images = arrays.read_images(paths[0], shape)
        return as_tensor(images), [f"{paths[0].name}[{i}]" for i in range(len(images))]
    files, names = _pictures(paths)
    return as_tensor(pictures.decode_all(files, shape, progress)), names


def _pictures(paths: list[Path]) -> tuple[list[Path], list[str]]:
    """Every picture with its name: the path inside its folder, or the file's name, or all of the path where names collide."""
    files: list[Path] = []
    names: list[str] = []
    for path in paths:
        inside = pictures.list_pictures(path) if path.is_dir() else [path]
        files += inside
        names += [p.relative_to(path).as_posix() if path.is_dir() else path.name for p in inside]
    return files, names if len(set(names)) == len(names) else [p.as_posix() for p in files]

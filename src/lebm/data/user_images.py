"""The user's images: a folder of pictures, or an array in a .npy or .npz file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from lebm.core import rng
from lebm.core.errors import DataError
from lebm.core.pixels import as_tensor, to_pixels
from lebm.core.progress import Progress
from lebm.data import arrays
from lebm.data.cache import Decoded, cached
from lebm.data.pictures import SUFFIXES, decode_all, list_pictures
from lebm.data.splits import Config, Splits, described, given_path, image_shape, nowhere

CACHE_FROM = 200  # pictures; a smaller folder is decoded in a moment and left untouched


def load_images(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """All images that data.path names, parted by one fixed permutation (stream `split` of seed 0)."""
    path = given_path(config, root, "a folder of pictures or a .npy or .npz file")
    shape = image_shape(config)
    images = _read_folder(path, shape, progress) if path.is_dir() else _read_file(path, shape)
    n = len(images)
    if n < 2:
        raise DataError(f"{path} holds one image; training and testing need at least two")
    order = torch.randperm(n, generator=rng.stream(0, "split"))
    cut = min(n - 1, max(1, round(n * config.data.test_fraction)))
    rows = as_tensor(images)
    return Splits(rows[order[cut:]], rows[order[:cut]], source=str(path))


def _read_folder(folder: Path, shape: tuple[int, int, int], progress: Progress | None) -> np.ndarray:
    files = list_pictures(folder)

    if len(files) < CACHE_FROM:
        return decode_all(files, shape, progress)
    name = f"images-{shape[1]}x{shape[0]}"
    return cached(folder, name, files, lambda: Decoded(decode_all(files, shape, progress), len(files))).images


def _read_file(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    if not arrays.is_array(path):
        picture = path.suffix.lower() in SUFFIXES
        advice = "the folder that holds it" if picture else "a folder of pictures or a .npy or .npz file"
        raise DataError(f"data.path is the file {path}; give {advice}")
    x = arrays.read_images(path, shape)
    if x.dtype == np.uint8:
        return x
    if x.min() >= 0 and x.max() > 0:
        # A whole set without one dark pixel was scaled to [0, 1]: learning would take it for washed-out images.
        raise DataError(
            f"{path} holds floats from {x.min():.4g} to {x.max():.4g}, which looks like [0, 1]; "
            "rescale to [-1, 1] (2 x - 1) or save uint8"
        )
    return to_pixels(as_tensor(x)).numpy()


DATASETS = (described("images", load_images, nowhere),)

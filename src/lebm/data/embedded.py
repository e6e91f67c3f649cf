"""Image sets that need no files: scikit-learn's digits, and noise for dry runs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch

from lebm.core import rng
from lebm.core.progress import Progress
from lebm.data.splits import Config, Splits, built_in, described, image_shape

DIGITS_TRAIN = 1500  # of 1797; the other 297 are the test split
NOISE_TRAIN, NOISE_TEST = 2000, 200


def load_digits(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """8x8 digits, 0..16 rescaled to 0..255, in the order of one fixed permutation (stream `split` of seed 0)."""
    from sklearn.datasets import load_digits as embedded

    values, labels = (torch.from_numpy(array) for array in embedded(return_X_y=True))
    order, n = torch.randperm(len(values), generator=rng.stream(0, "split")), DIGITS_TRAIN
    images = values.mul(255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)[order]
    y = labels.to(torch.int64)[order]
    return Splits(images[:n], images[n:], y[:n], y[n:], "scikit-learn load_digits")


def load_noise(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """Random pixels in the generator's shape."""
    shape = (NOISE_TRAIN + NOISE_TEST, *image_shape(config))
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng.stream(0, "noise"))
    return Splits(images[:NOISE_TRAIN], images[NOISE_TRAIN:], source="noise")


def _find_digits(root: Path | None) -> Path | None:
    spec = find_spec("sklearn")
    return Path(spec.origin).parent if spec and spec.origin else None


DATASETS = (described("digits", load_digits, _find_digits), described("noise", load_noise, built_in))

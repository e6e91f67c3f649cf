"""CelebA from the official folder of aligned faces."""

from __future__ import annotations

from pathlib import Path

from lebm.core.errors import DataError
from lebm.core.progress import Progress
from lebm.data.cache import Decoded, cached
from lebm.data.pictures import decode_all, list_pictures
from lebm.data.splits import Config, Splits, described, image_shape, in_folder

PLACES = ("celeba/img_align_celeba", "CelebA/img_align_celeba", "celeba/Img/img_align_celeba", "img_align_celeba")
TRAIN, TEST = 40_000, 3_000  # the most that are used: for training as in the paper, and for testing


def load_celeba(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """By file name, the last tenth (at most 3,000) are test and the first 40,000 of the others training pictures."""
    folder, shape = CELEBA.place(root), image_shape(config)
    files = list_pictures(folder)
    if len(files) < 2:
        raise DataError(f"{folder} holds one picture; training and testing need at least two")
    tests = max(1, min(TEST, len(files) // 10))
    train = files[:-tests][:TRAIN]
    used, name = train + files[-tests:], f"celeba-{shape[1]}x{shape[0]}"
    # The cache lies beside the folder of pictures, so that the folder stays as it was unpacked.
    rows = cached(folder.parent, name, used, lambda: Decoded(decode_all(used, shape, progress), len(train)))
    return rows.splits(str(folder))


CELEBA = described("celeba", load_celeba, in_folder(*PLACES))
DATASETS = (CELEBA,)

"""CelebA from the official folder of aligned faces."""

from __future__ import annotations

from pathlib import Path

from lebm.core.errors import DataError
from lebm.core.progress import Progress
from lebm.data.cache import Decoded, cached
from lebm.data.pictures import decode_all, list_pictures
from lebm.data.splits import Config, Dataset, Splits, first_folder, image_shape

PLACES = ("celeba/img_align_celeba", "CelebA/img_align_celeba", "celeba/Img/img_align_celeba", "img_align_celeba")
TRAIN, TEST = 40_000, 3_000  # the most that are used: for training as in the paper, and for testing


def load_celeba(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """By file name, the last tenth (at most 3,000) are test and the first 40,000 of the others training pictures."""
    folder = CELEBA.place(root)
    files = list_pictures(folder)
    if len(files) < 2:
        raise DataError(f"{folder} holds one picture; training and testing need at least two")
    test = files[len(files) - max(1, min(TEST, len(files) // 10)) :]
    train = files[: len(files) - len(test)][:TRAIN]
    shape = image_shape(config)

    def build() -> Decoded:
        return Decoded(decode_all(train + test, shape, progress), len(train))

    # The cache lies beside the folder of pictures, so that the folder stays as it was unpacked.
    return cached(folder.parent, f"celeba-{shape[1]}x{shape[0]}", train + test, build).splits(str(folder))


def find(root: Path | None) -> Path | None:
    return first_folder(root, PLACES, Path.is_dir)


CELEBA = Dataset(
    "celeba",
    load_celeba,
    find,
    how="unpack img_align_celeba.zip into celeba under the data folder, so that the pictures lie in "
    "celeba/img_align_celeba; it comes from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    licence="non-commercial research only (MMLAB, The Chinese University of Hong Kong)",
    description="faces, centre-cropped and resized to generator.size: at most 40,000 training and 3,000 test pictures",
)
DATASETS = (CELEBA,)

"""FID between two sets of images: splits of a data set, folders of pictures, array files, or statistics kept from before."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from lebm import results
from lebm import statistics as stats
from lebm.config import preset_names, resolve
from lebm.data import data_root, read_inputs
from lebm.data import load as load_data
from lebm.data.arrays import is_array, read_array
from lebm.data.pictures import FORMATS, decode, list_pictures
from lebm.errors import DataError
from lebm.generators.image import to_pixels
from lebm.log import progress_bar
from lebm.metrics.inception import FILE, Features, load_inception
from lebm.training import pick_device

SPLIT = re.compile(r"([\w-]+):(train|test)(?::(\d+))?")
PRESET_OF = {"celeba": "celeba64"}  # a data set whose preset has another name
FORMS = "NAME:train or NAME:test of a data set (NAME:test:1000 for its first 1,000 images), a folder of pictures, a .npy or .npz file, or a statistics file"


@dataclass(frozen=True)
class ImageSet:
    name: str
    images: Tensor | None = None  # uint8 (n, c, h, w)
    kept: stats.Statistics | None = None


def fid(
    a: str,
    b: str | None = None,
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    console: Console | None = None,
    features: Features | None = None,
) -> tuple[dict[str, Any], list[Path | None]]:
    """A result with the FID between a and b (of a alone: its statistics only), and the files in which their statistics are kept."""
    started, root, where = time.monotonic(), data_root(data_dir), pick_device(device)
    sets = [read_set(spec, root, console) for spec in (a, b) if spec is not None]
    features = features or inception(root, where)
    found, paths, data = [], [], {}
    for key, one in zip("ab", sets, strict=False):
        content = None if one.images is None else stats.content_hash(one.images)
        with progress_bar(console, f"features of {one.name.replace(':', ' ')}") as update:
            s, path = _statistics(one, features, root, content, update)
        found.append(s)
        paths.append(path)
        data[key] = {"name": one.name, "images": s.n, "sha256": content}
    summary = results.result(
        experiment="fid",
        metrics={"fid": found[0].distance(found[1])} if len(found) == 2 else {},
        protocol={"features": features.name, "precision": features.precision, "images": "uint8"},
        data=data,
        device=results.device_name(where),
        seconds=round(time.monotonic() - started, 1),
    )
    return summary, paths


def inception(root: Path | None, device: torch.device) -> Features:
    """The feature network of the data folder."""
    if root is None:
        raise DataError(
            f"FID needs the Inception network and no data folder is given; set LEBM_DATA or --data-dir, where `lebm fetch inception` puts {FILE}"
        )
    return load_inception(root / FILE, device)


def _statistics(
    one: ImageSet, features: Features, root: Path | None, content: str | None, update: stats.Progress
) -> tuple[stats.Statistics, Path | None]:
    if one.images is None:
        assert one.kept is not None
        return one.kept, Path(one.name)
    return stats.kept_statistics(one.images, features, stats.cache_folder(root), update, content)


def read_set(spec: str, root: Path | None, console: Console | None = None) -> ImageSet:
    """The images that a word of the command line means."""
    match = SPLIT.fullmatch(spec)
    known = [*preset_names(), *PRESET_OF]
    if match and match[1] in known:
        config = resolve(PRESET_OF.get(match[1], match[1])).with_values(**{"data.limit": None})
        with progress_bar(console, f"reading {match[1]}") as update:
            splits = load_data(config, root, update)
        images = splits.train if match[2] == "train" else splits.test
        return ImageSet(spec, images if match[3] is None else images[: int(match[3])])
    path = Path(spec).expanduser()
    if not path.exists():
        raise DataError(f"{spec!r} is no set of images; give {FORMS}. Data sets are {', '.join(known)}")
    if path.suffix == ".safetensors":
        return ImageSet(str(path), kept=stats.read(path))
    with progress_bar(console, f"reading {path.name}") as update:
        images, _ = read_inputs([path], _shape(path), update)
    return ImageSet(spec, images if images.dtype == torch.uint8 else to_pixels(images))


def _shape(path: Path) -> tuple[int, int, int]:
    """Channels, height and width as they are in the file; a folder is taken in colour at the size of its first picture."""
    if path.is_file() and is_array(path):
        s = read_array(path).shape
        if len(s) < 4:
            return 1, s[-2], s[-1]
        return (s[1], s[2], s[3]) if s[1] in (1, 3) else (s[3], s[1], s[2])
    first = list_pictures(path)[0] if path.is_dir() else path
    decode(first, (3, 8, 8))  # says in a sentence what is wrong with it
    with Image.open(first, formats=FORMATS) as image:
        side = min(image.size)
    return 3, side, side

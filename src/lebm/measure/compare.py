"""FID between two sets of images: splits of a data set, folders of pictures, array files, or cached statistics."""

from __future__ import annotations

import re
import time
from pathlib import Path

from torch import Tensor

from lebm.config import preset_names, resolve
from lebm.core.device import pick_device
from lebm.core.errors import DataError
from lebm.core.pixels import to_pixels
from lebm.core.progress import SILENT, Reporter
from lebm.data import data_root
from lebm.data import load as load_data
from lebm.data.arrays import is_array, read_array
from lebm.data.pictures import FORMATS, decode, list_pictures
from lebm.measure import inception, result, statistics
from lebm.measure.statistics import Statistics
from lebm.modalities.images import read_images

SPLIT = re.compile(r"([\w-]+):(train|test)(?::(\d+))?")
PRESET_OF = {"celeba": "celeba64"}  # a data set whose presets have another name
FORMS = (
    "NAME:train or NAME:test of a data set (NAME:test:1000 for its first 1,000 images), a folder of pictures, "
    "a .npy or .npz file, or a statistics file"
)


def fid(
    a: str, b: str | None = None, device: str = "auto", data_dir: str | Path | None = None, reporter: Reporter = SILENT
) -> tuple[result.Result, list[Path | None]]:
    """A result with the FID between a and b (of a alone: its statistics only), and the files that hold their
    statistics.
    """
    started, root, where = time.monotonic(), data_root(data_dir), pick_device(device)
    sets = [(given, read_set(given, root, reporter)) for given in (a, b) if given is not None]
    features, folder = inception.load(root, where), statistics.cache_folder(root)
    both, paths, data = [], [], {}
    for key, (name, one) in zip("ab", sets, strict=False):
        path: Path | None = Path(name)
        content = None
        if isinstance(one, Tensor):
            content = statistics.content_hash(one)
            with reporter.progress(f"features of {name.replace(':', ' ')}") as update:
                one, path = statistics.cached_statistics(one, features, folder, update, content)
        both.append(one)
        paths.append(path)
        data[key] = {"name": name, "images": one.n, "sha256": content}
    summary = result.result(
        name="fid",
        metrics={"fid": both[0].distance(both[1])} if len(both) == 2 else {},
        protocol={"features": features.name, "precision": features.precision, "images": "uint8"},
        data=data,
        device=result.device_name(where),
        seconds=round(time.monotonic() - started, 1),
    )
    return summary, paths


def read_set(given: str, root: Path | None, reporter: Reporter = SILENT) -> Tensor | Statistics:
    """What a word of the command line means: images as uint8 (n, c, h, w), or a file with the statistics of some."""
    match = SPLIT.fullmatch(given)
    known = list(dict.fromkeys([*(name.split("/")[0] for name in preset_names()), *PRESET_OF]))
    if match and match[1] in known:
        config = resolve(PRESET_OF.get(match[1], match[1])).with_values(**{"data.limit": None})
        with reporter.progress(f"reading {match[1]}") as update:
            splits = load_data(config, root, update)
        return (splits.train if match[2] == "train" else splits.test)[: int(match[3]) if match[3] else None]
    path = Path(given).expanduser()
    if not path.exists():
        raise DataError(f"{given!r} is no set of images; give {FORMS}. Data sets are {', '.join(known)}")
    if path.suffix == ".safetensors":
        return statistics.read(path)
    with reporter.progress(f"reading {path.name}") as update:
        images = read_images([path], _shape(path), update).rows
    return to_pixels(images) if images.is_floating_point() else images


def _shape(path: Path) -> tuple[int, int, int]:
    """Channels, height and width as in the file; a folder is taken in colour at the size of its first picture."""
    if path.is_file() and is_array(path):
        s = read_array(path).shape
        if len(s) < 4:
            return 1, s[-2], s[-1]
        return (s[1], s[2], s[3]) if s[1] in (1, 3) else (s[3], s[1], s[2])
    from PIL import Image

    first = list_pictures(path)[0] if path.is_dir() else path
    decode(first, (3, 8, 8))  # which says in a sentence what is wrong with it
    with Image.open(first, formats=FORMATS) as image:
        side = min(image.size)
    return 3, side, side

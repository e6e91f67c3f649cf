"""Pictures made of images, and the record of how each was drawn. Grids themselves are in `lebm.modalities.grids`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from lebm.core.errors import DataError
from lebm.core.files import write_atomic
from lebm.core.pixels import to_pixels
from lebm.measure.result import read
from lebm.modalities.grids import animation, grid, pairs, png, rows_of_images, save
from lebm.sampler import SamplerSpec

__all__ = [
    "PROVENANCE", "animation", "grid", "note", "pairs", "png", "provenance", "rows_of_images", "save", "save_images",
]  # fmt: skip

PROVENANCE = "provenance.json"  # in the folder of the pictures: name of a picture -> its sampler and number of samples


def save_images(x: Any, path: str | Path, columns: int = 8) -> Path:
    """Write images as one grid, a .png file. x: (n, c, h, w), floats in [-1, 1] or uint8, a tensor or an array."""
    x = torch.as_tensor(x).detach().cpu()
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise DataError("the images contain NaN or infinity; a picture cannot show them")
    return save(grid(to_pixels(x) if x.is_floating_point() else x, columns=columns), path)


def note(folder: str | Path, name: str, spec: SamplerSpec | None, samples: int = 1) -> None:
    """Record how the z of the picture or sentences called `name` were drawn; None forgets an older record."""
    path = Path(folder) / PROVENANCE
    record = read(path)
    record.pop(name, None)
    if spec is not None:
        record[name] = {"sampler": spec.to_dict(), "samples": samples}
    write_atomic(path, json.dumps(record, indent=1) + "\n")


def provenance(folder: str | Path, name: str) -> tuple[SamplerSpec, int] | None:
    """How the z of a picture were drawn and how many there were; None where no valid record says so."""
    try:
        entry = read(Path(folder) / PROVENANCE)[name]
        return SamplerSpec.from_dict(entry["sampler"]), int(entry["samples"])
    except (KeyError, TypeError, ValueError, AttributeError, DataError):
        return None

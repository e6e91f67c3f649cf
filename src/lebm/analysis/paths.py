"""Paths in z between two images, and the training images nearest to samples (does the model copy?)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lebm import figures
from lebm.errors import DataError
from lebm.generators import TextGenerator
from lebm.generators.image import as_floats, to_pixels
from lebm.model import LatentEBM

if TYPE_CHECKING:
    from lebm.analysis import Subject

PIECE = 2000  # rows compared at once
COUNT, NEAREST = 8, 5
COMPARED = 500  # samples and test images behind the numbers


def interpolate(
    model: LatentEBM, a: Any, b: Any, n: int = 9, seed: int = 0, steps: int | None = None, by: str | None = None
) -> tuple[Tensor, Tensor]:
    """n points z from the posterior of each row of a to that of b, and g(z): (rows, n, nz) and (rows, n, ...)."""
    if n < 2:
        raise DataError(f"a path of {n} points; it has at least 2, its ends")
    a, b = model.as_input(a), model.as_input(b)
    if len(a) != len(b):
        raise DataError(f"paths from {len(a)} images to {len(b)}; give as many ends as starts")
    z = between(model.infer(a, seed, steps, by=by), model.infer(b, seed, steps, by=by), n)
    x = model.decode(z.flatten(0, 1)).cpu()
    return z, x.view(len(a), n, *x.shape[1:])


def between(a: Tensor, b: Tensor, n: int) -> Tensor:
    """Along the arc in the plane of a and b, lengths in between: a straight line would pass where |z| is smaller than any sample's."""
    t = torch.linspace(0, 1, n, dtype=a.dtype).view(1, n, 1)
    size_a, size_b = a.norm(dim=1, keepdim=True), b.norm(dim=1, keepdim=True)
    u, v = a / size_a.clamp_min(1e-12), b / size_b.clamp_min(1e-12)
    angle = torch.arccos((u * v).sum(1, keepdim=True).clamp(-1, 1)).unsqueeze(1)
    arc = (torch.sin((1 - t) * angle) * u.unsqueeze(1) + torch.sin(t * angle) * v.unsqueeze(1)) / torch.sin(angle).clamp_min(1e-12)
    straight = (1 - t) * u.unsqueeze(1) + t * v.unsqueeze(1)
    plain = (angle < 1e-3) | (angle > torch.pi - 1e-3)  # one direction, or no plane
    return torch.where(plain, straight, arc) * ((1 - t) * size_a.unsqueeze(1) + t * size_b.unsqueeze(1))


def nearest(x: Tensor, images: Tensor, k: int = NEAREST, progress: Any = None) -> tuple[Tensor, Tensor]:
    """For every row of x the k nearest images: distances (root mean square a pixel, in [-1, 1]) and places, nearest first."""
    k = min(k, len(images))
    rows = x.flatten(1).float()
    best = torch.full((len(x), k), float("inf"))
    where = torch.zeros(len(x), k, dtype=torch.long)
    for i in range(0, len(images), PIECE):
        piece = as_floats(images[i : i + PIECE]).flatten(1)
        d = torch.cdist(rows, piece, compute_mode="donot_use_mm_for_euclid_dist" if rows.shape[1] <= 64 else "use_mm_for_euclid_dist")
        both, places = torch.cat([best, d], 1), torch.cat([where, torch.arange(i, i + len(piece)).expand(len(x), -1)], 1)
        best, order = both.topk(k, largest=False)
        where = places.gather(1, order)
        if progress:
            progress(min(i + PIECE, len(images)), len(images))
    return best / rows.shape[1] ** 0.5, where


def find_neighbours(subject: Subject, count: int = COUNT, seed: int = 0) -> dict[str, Any]:
    """Samples beside their nearest training images, drawn; are they nearer than images the model never saw?"""
    subject.images_only("nearest neighbours by pixels")
    model, train = subject.model, subject.splits.train[: subject.model.config.data.limit]
    with subject.bar("sampling") as update:
        samples = model.sample(max(count, COMPARED), seed, progress=update)
    with subject.bar("searching training images") as update:
        d, places = nearest(samples, train, progress=update)
    test = as_floats(subject.splits.test[:COMPARED])
    with subject.bar("the same for test images") as update:
        d_test = nearest(test, train, 1, update)[0][:, 0]
    shown = as_floats(train[places[:count].flatten()]).view(count, -1, *train.shape[1:])
    sheet = torch.cat([samples[:count].unsqueeze(1), shown], 1).flatten(0, 1)
    figures.save(figures.grid(to_pixels(sheet), columns=1 + places.shape[1]), subject.run / "figures" / "neighbours.png")
    return {
        "seed": seed,
        "samples": len(samples),
        "test": len(test),
        "median_sample": float(d[:, 0].median()),
        "median_test": float(d_test.median()),
        "nearer_than_test": float((d[:, 0] < d_test.quantile(0.01)).float().mean()),
        "shown": [[round(float(v), 4) for v in row] for row in d[:count]],
    }


def words(found: Mapping[str, Any]) -> str:
    """What the distances say about copying."""
    share, sample, test = found["nearer_than_test"], found["median_sample"], found["median_test"]
    numbers = f"the median distance to the nearest training image is {sample:.3f} for samples and {test:.3f} for test images"
    nearer = f"{share:.1%} of the samples are nearer to one than 99 % of the test images are"
    judgement = "No sign of copying" if share <= 0.05 else "Some samples may be copies"
    return f"{judgement}: {numbers} (root mean square a pixel, images in [-1, 1]), and {nearer}."


def draw_interpolation(subject: Subject, rows: int = 6, n: int = 11, seed: int = 0) -> dict[str, Any]:
    """Paths between the first test images, drawn with the images themselves at both ends."""
    test = as_floats(subject.splits.test[: 2 * rows])
    a, b = test[0::2][: len(test) // 2], test[1::2]
    if not len(a):
        raise DataError("there are fewer than two test rows to walk between")
    with subject.bar("inferring") as update:
        update(0, 1)
        _, x = interpolate(subject.model, a, b, n, seed)
    if isinstance(subject.model.generator, TextGenerator):
        say = subject.model.generator.to_text
        return {"seed": seed, "rows": len(a), "points": n, "ends": [*zip(say(a), say(b), strict=True)], "paths": [say(path) for path in x]}
    figures.save(path_sheet(a, b, x), subject.run / "figures" / "interpolation.png")
    return {"seed": seed, "rows": len(a), "points": n}


def path_sheet(a: Tensor, b: Tensor, x: Tensor) -> Any:
    sheet = torch.cat([a.unsqueeze(1), x, b.unsqueeze(1)], 1)
    return figures.grid(to_pixels(sheet.flatten(0, 1)), columns=sheet.shape[1])

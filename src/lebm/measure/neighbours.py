"""The nearest training rows, by brute force on any device: does the model copy, and how far is a row from all known
ones?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lebm.core.progress import Progress, ignore

PIECE = 2000  # rows compared at once
EXACT = 64  # numbers a row, up to which distances are not taken from products: those lose digits where rows are close
COPIES = 0.05  # share of samples nearer to training rows than 99 % of test rows are, above which the model may copy


def nearest(
    x: Tensor,
    rows: Tensor,
    k: int = 5,
    *,
    convert: Callable[[Tensor], Tensor] = lambda rows: rows,
    device: torch.device | str = "cpu",
    progress: Progress = ignore,
) -> tuple[Tensor, Tensor]:
    """For every row of x the k nearest of `rows`: root mean square differences a number, and places, nearest first, on
    the CPU.

    `convert` turns stored rows into rows like those of x, piece by piece: a generator's `from_storage`.
    """
    k, queries = min(k, len(rows)), x.flatten(1).float().split(PIECE)
    width = queries[0].shape[1]
    mode = "donot_use_mm_for_euclid_dist" if width <= EXACT else "use_mm_for_euclid_dist"
    best = [torch.empty(len(q), 0, device=device) for q in queries]
    places = [torch.empty(len(q), 0, dtype=torch.long, device=device) for q in queries]
    for i in range(0, len(rows), PIECE):
        piece = convert(rows[i : i + PIECE]).flatten(1).float().to(device)
        at = torch.arange(i, i + len(piece), device=device)
        for j, q in enumerate(queries):
            d = torch.cdist(q.to(device), piece, compute_mode=mode)
            both, ids = torch.cat([best[j], d], 1), torch.cat([places[j], at.expand(len(q), -1)], 1)
            best[j], order = both.topk(min(k, both.shape[1]), largest=False)
            places[j] = ids.gather(1, order)
        progress(min(i + PIECE, len(rows)), len(rows))
    return torch.cat(best).cpu() / width**0.5, torch.cat(places).cpu()


def copying(samples: Tensor, test: Tensor) -> dict[str, float]:
    """From the distances of samples and of test rows to their nearest training row."""
    return {
        "samples": len(samples),
        "test": len(test),
        "median_sample": float(samples.median()),
        "median_test": float(test.median()),
        "nearer_than_test": float((samples < test.quantile(0.01)).float().mean()),
    }


def in_words(numbers: Mapping[str, Any]) -> str:
    """What the distances say about copying."""
    share, sample, test = numbers["nearer_than_test"], numbers["median_sample"], numbers["median_test"]
    judgement = "No sign of copying" if share <= COPIES else "Some samples may be copies"
    return (
        f"{judgement}: the median distance to the nearest training image is {sample:.3f} for samples and {test:.3f} "
        f"for test images (root mean square a pixel, images in [-1, 1]), and {share:.1%} of the samples are nearer to "
        "one than 99 % of the test images are."
    )

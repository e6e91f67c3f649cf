"""Paths in z between two rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lebm.core.errors import DataError
from lebm.method import Method
from lebm.sampler import SamplerSpec


def interpolate(
    method: Method, a: Any, b: Any, n: int = 9, seed: int = 0, spec: SamplerSpec | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """n points z from the posterior of each row of a to that of b, and g(z): (rows, n, nz) and (rows, n, ...).

    `options` go to the generator's `decode`: of text, a beam.
    """
    if n < 2:
        raise DataError(f"a path of {n} points; it has at least 2, its ends")
    a, b = method.generator.as_input(a), method.generator.as_input(b)
    if len(a) != len(b):
        raise DataError(f"paths from {len(a)} rows to {len(b)}; give as many ends as starts")
    z = between(method.encode(a, seed, spec), method.encode(b, seed, spec), n)
    flat = z.flatten(0, 1)
    x = method.decode(flat, **options)
    return z, x.cpu().view(len(a), n, *x.shape[1:])


def between(a: Tensor, b: Tensor, n: int) -> Tensor:
    """Along the arc in the plane of a and b, lengths in between: a straight line would pass where |z| is smaller than
    any sample's.
    """
    t = torch.linspace(0, 1, n, dtype=a.dtype).view(1, n, 1)
    size_a, size_b = a.norm(dim=1, keepdim=True), b.norm(dim=1, keepdim=True)
    u, v = a / size_a.clamp_min(1e-12), b / size_b.clamp_min(1e-12)
    angle = torch.arccos((u * v).sum(1, keepdim=True).clamp(-1, 1)).unsqueeze(1)
    arc = torch.sin((1 - t) * angle) * u.unsqueeze(1) + torch.sin(t * angle) * v.unsqueeze(1)
    straight = (1 - t) * u.unsqueeze(1) + t * v.unsqueeze(1)
    plain = (angle < 1e-3) | (angle > torch.pi - 1e-3)  # one direction, or no plane
    direction = torch.where(plain, straight, arc / torch.sin(angle).clamp_min(1e-12))
    return direction * ((1 - t) * size_a.unsqueeze(1) + t * size_b.unsqueeze(1))

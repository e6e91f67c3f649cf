"""Numbers of a log row, and checks on them, that hold for any method; the rest is in `Method.checks`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lebm.health import shared_variance
from lebm.method import Method

MAX_WEIGHT = 1e5  # a saturated generator gives finite numbers and learns nothing
ROWS = 500  # training rows behind the number of active units


def fetch(values: Mapping[str, Tensor]) -> dict[str, float]:
    """0-d tensors as numbers, fetched from the device at once."""
    numbers = torch.stack([v.double() for v in values.values()]).tolist() if values else []
    return dict(zip(values, numbers, strict=True))


@torch.no_grad()
def gradient_norms(method: Method) -> dict[str, Tensor]:
    """`grad_<network>`: the norm of the last gradient of every network that moved, after clipping."""
    norms = {}
    for name, net in method.networks().items():
        gradients = [p.grad for p in net.parameters() if p.grad is not None]
        if gradients:
            norms[f"grad_{name}"] = torch.stack(torch._foreach_norm(gradients)).norm()
    return norms


@torch.no_grad()
def largest_weights(method: Method) -> dict[str, float]:
    """max |w| of each network; NaN where one weight is not finite."""
    largest = {}
    for name, net in method.networks().items():
        each = [p.abs().max().double() for p in net.parameters() if p.numel()]
        largest[name] = torch.stack(each).max() if each else torch.zeros(())  # max passes NaN on
    return fetch(largest)


def exploded(weights: Mapping[str, float]) -> str | None:
    """What is wrong with the largest weight of each network, with advice; None where they are sane."""
    for name, value in weights.items():
        if not value <= MAX_WEIGHT:
            advice = f"lower optimizers.{name}.rate, or set training.clip"
            return f"the largest weight of the {name} is {value:.4g}; {advice}"
    return None


def not_finite(row: Mapping[str, Any], networks: Sequence[str]) -> str | None:
    """Which number of a log row is not finite, with advice; None where all are."""
    for key, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            names = [name for name in networks if key == f"grad_{name}"] or list(networks)
            rates = ", ".join(f"optimizers.{name}.rate" for name in names)
            return f"{key} is {value:.4g}; lower the rates ({rates}), or set training.clip"
    return None


def without_gradient(row: Mapping[str, Any], rates: Mapping[str, float]) -> dict[str, str]:
    """A sentence about each network that should move, having a rate above 0, and has a gradient of exactly 0."""
    still = [name for name, rate in rates.items() if rate > 0 and row.get(f"grad_{name}") == 0]
    return {
        name: f"the gradient of the {name} is exactly 0: it learns nothing; look for a detach() or no_grad() between "
        f"its weights and the loss, or for units that have saturated. If it shall stay as it is, set "
        f"optimizers.{name}.rate to 0"
        for name in still
    }


def active_units(method: Method, rows: Tensor) -> dict[str, float]:
    """How many coordinates of z say something about x, from two independent posterior draws of training rows."""
    if "posterior" not in method.samplers():
        return {}
    a, b = (method.encode(rows[:ROWS], seed, shared_noise=False).double() for seed in (0, 1))
    return shared_variance(a, b)

"""Several processes that learn one model. On one process every function here does nothing or says so."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist
from torch import nn


def active() -> bool:
    """Whether this process belongs to an initialised group."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """The number of this process in its group; 0 on one process."""
    return dist.get_rank() if active() else 0


def world_size() -> int:
    """How many processes learn together."""
    return dist.get_world_size() if active() else 1


def average_over_ranks(params: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by its mean over all processes."""
    if world_size() == 1:
        return
    for p in params:
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= world_size()

"""The device to compute on, and the number of CPU threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lebm.core.errors import ConfigError

SMALL = 1e8  # operations of one update below which several threads cost more than they save


def pick_device(name: str) -> torch.device:
    """auto, cpu, cuda or cuda:N; auto is a CUDA device where there is one."""
    if name not in ("auto", "cpu", "cuda") and not name.startswith("cuda:"):
        raise ConfigError(f"device is {name!r}; it must be auto, cpu or cuda")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but PyTorch finds no CUDA device; use --device cpu or auto")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


@contextmanager
def fitting_threads(flops: float | None, device: torch.device | str) -> Iterator[None]:
    """Use one CPU thread where an update takes so few operations that two threads are ten times slower than one.

    `flops`: operations of one pass of the generator over a batch; None where they are unknown.
    """
    before = torch.get_num_threads()
    try:
        if torch.device(device).type == "cpu" and flops is not None and flops < SMALL:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)

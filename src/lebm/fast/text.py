"""Text on CUDA: the reference's learning step, captured as a graph for every width of a batch.

The steps of an LSTM are many small kernels, and a chain repeats them; launched one by one they leave the device idle. Batches come in a
few widths (data.batches.width), so a graph a width suffices. They share one pool of memory, for only one runs at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from lebm.fast.engine import Captured
from lebm.fast.words import log_words
from lebm.learn import Step
from lebm.model import LatentEBM


def working(model: LatentEBM) -> AbstractContextManager[None]:
    """How a text generator works inside an engine: words by the kernel of this package, unless the config says float32."""
    return model.text().working(None if model.config.precision == "float32" else log_words)


class Buckets:
    """rows -> Step: captured when a shape comes for the first time, replayed from then on."""

    def __init__(
        self, iterate: Callable[[Tensor], Step], model: LatentEBM, optimizer: torch.optim.Optimizer, rng: torch.Generator, example: Tensor
    ) -> None:
        self.iterate, self.model, self.optimizer, self.rng = iterate, model, optimizer, rng
        self.pool = torch.cuda.graph_pool_handle()
        self.parameters = list(model.parameters())
        self.graphs: dict[torch.Size, tuple[Captured, list[Tensor | None]] | None] = {}
        self._capture(example)  # what cannot be captured is said before learning begins

    def _capture(self, rows: Tensor) -> None:
        captured = Captured(self.iterate, self.model, self.optimizer, self.rng, rows, self.pool)
        self.graphs[rows.shape] = captured, [p.grad for p in self.parameters]

    def __call__(self, rows: Tensor) -> Step:
        if rows.shape not in self.graphs:
            try:
                self._capture(rows)
            except RuntimeError as e:  # memory, most likely: this width goes on without a graph
                self.graphs[rows.shape] = None
                warnings.warn(f"batches of {rows.shape[1]} words are learned without a graph ({str(e).splitlines()[0]})", stacklevel=2)
        found = self.graphs[rows.shape]
        if found is None:
            return self.iterate(rows)
        captured, grads = found
        step = captured(rows)
        for p, g in zip(self.parameters, grads, strict=True):  # those that this graph writes, for the log
            p.grad = g
        return step

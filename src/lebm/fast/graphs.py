"""An update as CUDA graphs: captured once for every shape of a batch, and replayed without the host in between."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lebm.method import Method
from lebm.training.engine import Optimizers, Update

Snapshot = tuple[list[Tensor], dict[tuple[Tensor, str], Tensor], Tensor]


@dataclass
class State:
    """All that an update changes: what the method holds, the moments of the optimisers, and the random numbers."""

    method: Method
    optimizers: Optimizers
    rng: torch.Generator

    def check(self) -> None:
        """Refuse what a graph cannot hold."""
        if self.rng.device.type != "cuda":  # registering another kind with a graph would end the process
            raise ValueError(f"a CUDA graph cannot draw from a generator on {self.rng.device}")
        for name, optimizer in self.optimizers.items():
            if not all(isinstance(group["lr"], Tensor) and group["lr"].is_cuda for group in optimizer.param_groups):
                raise ValueError(f"a graph would freeze the rate of the optimiser {name}: it is no tensor on the GPU")

    def values(self) -> list[Tensor]:
        return [p.detach() for p in self.method.parameters()] + list(self.method.buffers())

    def moments(self) -> dict[tuple[Tensor, str], Tensor]:
        states = [item for optimizer in self.optimizers.values() for item in optimizer.state.items()]
        return {(p, k): v for p, state in states for k, v in state.items() if isinstance(v, Tensor)}

    def snapshot(self) -> Snapshot:
        moments = {key: moment.clone() for key, moment in self.moments().items()}
        return [v.clone() for v in self.values()], moments, self.rng.get_state()

    @torch.no_grad()
    def put_back(self, before: Snapshot) -> None:
        values, moments, random = before
        torch.cuda.synchronize()
        for target, value in zip(self.values(), values, strict=True):
            target.copy_(value)
        for key, moment in self.moments().items():  # those that the warm-up made begin at zero
            moment.copy_(moments[key] if key in moments else torch.zeros_like(moment))
        self.rng.set_state(random)


class Captured:
    """(rows, index) -> one update: captured when a shape of rows comes for the first time, replayed from then on.

    Rows of images have one shape. Sentences come in a few widths (data/batches.py), and a graph for each is enough.
    The graphs share one pool of memory, because only one runs at a time.
    """

    def __init__(self, step: Update, state: State, rows: Tensor, index: Tensor) -> None:
        self.step, self.state, self.pool = step, state, torch.cuda.graph_pool_handle()
        # What cannot be captured is reported before learning begins.
        self.graphs: dict[torch.Size, Callable[..., None]] = {rows.shape: Graph(step, state, rows, index, self.pool)}

    def __call__(self, rows: Tensor, index: Tensor) -> None:
        if rows.shape not in self.graphs:
            try:
                self.graphs[rows.shape] = Graph(self.step, self.state, rows, index, self.pool)
            except RuntimeError as e:  # most likely there is too little memory: this shape is learned without a graph
                self.graphs[rows.shape] = self.step
                shape, reason = tuple(rows.shape), str(e).splitlines()[0]
                warnings.warn(f"batches of shape {shape} are learned without a graph ({reason})", stacklevel=2)
        self.graphs[rows.shape](rows, index)


class Graph:
    """One captured update. Warming up would move the weights, so all state is put back before the first real update."""

    def __init__(self, step: Update, state: State, rows: Tensor, index: Tensor, pool: Any) -> None:
        state.check()
        self.method, self.step = state.method, step  # the buffers of the step live as long as the graph
        self.rows, self.index = rows.clone(), index.to(rows.device, copy=True)
        before, attributes = state.snapshot(), dict(vars(state.method))
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    step(self.rows, self.index)
            torch.cuda.current_stream().wait_stream(stream)
            state.put_back(before)
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(state.rng)
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
                step(self.rows, self.index)
        finally:  # also where it failed, because the reference goes on from here
            state.put_back(before)
        self.grads = [(p, p.grad) for p in self.method.parameters()]
        self.last = {k: v for k, v in vars(self.method).items() if attributes.get(k) is not v and k != "training"}

    def __call__(self, rows: Tensor, index: Tensor) -> None:
        self.rows.copy_(rows, non_blocking=True)
        self.index.copy_(index, non_blocking=True)
        self.graph.replay()
        vars(self.method).update(self.last)  # such as method.last: the tensors that this graph writes
        for p, g in self.grads:
            p.grad = g

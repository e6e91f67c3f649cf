"""An update as CUDA graphs: captured once for every shape of a batch, and replayed without the host in between."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lebm.method import Method

Update = Callable[[Tensor, Tensor], None]  # rows as they are stored, and which training rows they are
Optimizers = Mapping[str, torch.optim.Optimizer]


class Captured:
    """(rows, index) -> one update: captured when a shape of rows comes for the first time, replayed from then on.

    Rows of images have one shape. Sentences come in a few widths (data/batches.py), and a graph for each is enough.
    The graphs share one pool of memory, because only one runs at a time.
    """

    def __init__(
        self, step: Update, method: Method, optimizers: Optimizers, rng: torch.Generator, rows: Tensor, index: Tensor
    ) -> None:
        self.step, self.method, self.optimizers, self.rng = step, method, optimizers, rng
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[torch.Size, Graph | None] = {}
        self._capture(rows, index)  # what cannot be captured is reported before learning begins

    def _capture(self, rows: Tensor, index: Tensor) -> None:
        self.graphs[rows.shape] = Graph(self.step, self.method, self.optimizers, self.rng, rows, index, self.pool)

    def __call__(self, rows: Tensor, index: Tensor) -> None:
        if rows.shape not in self.graphs:
            try:
                self._capture(rows, index)
            except RuntimeError as e:  # most likely there is too little memory: this shape is learned without a graph
                self.graphs[rows.shape] = None
                reason = str(e).splitlines()[0]
                warnings.warn(
                    f"batches of shape {tuple(rows.shape)} are learned without a graph ({reason})", stacklevel=2
                )
        graph = self.graphs[rows.shape]
        (self.step if graph is None else graph)(rows, index)


class Graph:
    """One captured update. Warming up would move the weights, so all state is put back before the first real update."""

    def __init__(
        self,
        step: Update,
        method: Method,
        optimizers: Optimizers,
        rng: torch.Generator,
        rows: Tensor,
        index: Tensor,
        pool: Any = None,
    ) -> None:
        _check(optimizers, rng)
        self.method, self.step = method, step  # the buffers of the step live as long as the graph
        self.rows, self.index = rows.clone(), index.to(rows.device, copy=True)
        before, attributes = _snapshot(method, optimizers, rng), dict(vars(method))
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    step(self.rows, self.index)
            torch.cuda.current_stream().wait_stream(stream)
            _put_back(before, method, optimizers, rng)
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(rng)
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
                step(self.rows, self.index)
        finally:  # also where it failed, because the reference goes on from here
            _put_back(before, method, optimizers, rng)
        self.grads = [(p, p.grad) for p in method.parameters()]
        self.last = {k: v for k, v in vars(method).items() if attributes.get(k) is not v and k != "training"}

    def __call__(self, rows: Tensor, index: Tensor) -> None:
        self.rows.copy_(rows, non_blocking=True)
        self.index.copy_(index, non_blocking=True)
        self.graph.replay()
        vars(self.method).update(self.last)  # such as method.last: the tensors that this graph writes
        for p, g in self.grads:
            p.grad = g


def _check(optimizers: Optimizers, rng: torch.Generator) -> None:
    if rng.device.type != "cuda":  # registering another kind with a graph would end the process
        raise ValueError(f"a CUDA graph cannot draw from a generator on {rng.device}")
    for name, optimizer in optimizers.items():
        if not all(isinstance(group["lr"], Tensor) and group["lr"].is_cuda for group in optimizer.param_groups):
            raise ValueError(
                f"the rate of the optimiser {name} is not a tensor on the GPU, and a graph would freeze it"
            )


Snapshot = tuple[list[Tensor], dict[Tensor, dict[str, Tensor]], Tensor]


def _moments(optimizers: Optimizers) -> dict[Tensor, dict[str, Tensor]]:
    states = {p: state for optimizer in optimizers.values() for p, state in optimizer.state.items()}
    return {p: {k: v for k, v in state.items() if isinstance(v, Tensor)} for p, state in states.items()}


def _values(method: Method) -> list[Tensor]:
    return [p.detach() for p in method.parameters()] + list(method.buffers())


def _snapshot(method: Method, optimizers: Optimizers, rng: torch.Generator) -> Snapshot:
    moments = {p: {k: v.clone() for k, v in state.items()} for p, state in _moments(optimizers).items()}
    return [v.clone() for v in _values(method)], moments, rng.get_state()


@torch.no_grad()
def _put_back(before: Snapshot, method: Method, optimizers: Optimizers, rng: torch.Generator) -> None:
    values, moments, state = before
    torch.cuda.synchronize()
    for target, value in zip(_values(method), values, strict=True):
        target.copy_(value)
    for p, now in _moments(optimizers).items():
        for key, moment in now.items():
            if p in moments:
                moment.copy_(moments[p][key])
            else:
                moment.zero_()
    rng.set_state(state)

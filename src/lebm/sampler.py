"""Short-run Langevin dynamics (equation 9 of the paper). Knows no model: a score, a start, a chain and randomness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class ChainLike(Protocol):
    @property
    def steps(self) -> int: ...
    @property
    def step_size(self) -> float: ...
    @property
    def first_steps(self) -> tuple[float, ...]: ...
    @property
    def noise(self) -> float: ...
    @property
    def bound(self) -> float: ...


def langevin(
    score: Callable[[Tensor], Tensor],
    z: Tensor,
    chain: ChainLike,
    rng: torch.Generator,
    *,
    shared_noise: bool = False,
    of_chunk: int = 0,
    watch: Callable[[int, Tensor], None] | None = None,
) -> Tensor:
    """Run z <- z + (s^2/2) score(z) + s e for chain.steps steps, on every row of z at once.

    s is chain.step_size, for the first steps chain.first_steps where it has some; chain.noise scales e (1: the paper's);
    chain.bound shortens drifts that are longer (a tamed chain; 0: the paper's).
    The paper writes `s grad + sqrt(2 s) e`; its s is our s^2/2. The published 0.4 and 0.1 are our s.
    `shared_noise` gives every row the same e, so that a row's path does not depend on its neighbours; neither does it where the rows are
    the first ones `of_chunk`, for all of which e is drawn; `watch(k, z)` sees the state after k steps, k = 0 being the start.
    """
    shape = (1 if shared_noise else max(len(z), of_chunk), *z.shape[1:])
    if watch:
        watch(0, z)
    for k in range(chain.steps):
        s = step_size(chain, k)
        e = torch.randn(shape, generator=rng, device=z.device, dtype=z.dtype)[: len(z)]
        z = z.add(bounded(score(z), 0.5 * s * s, chain.bound), alpha=0.5 * s * s).add_(e, alpha=s * chain.noise)
        if watch:
            watch(k + 1, z)
    return z


def step_size(chain: ChainLike, k: int) -> float:
    """s of step k."""
    return chain.first_steps[k] if k < len(chain.first_steps) else chain.step_size


def tamed(score: Callable[[Tensor], Tensor], chain: ChainLike) -> Callable[[Tensor], Tensor]:
    """The score as a chain under a bound takes it: what learns along it is not thrown far by a single row either."""
    return (lambda z: bounded(score(z), 0.5 * chain.step_size**2, chain.bound)) if chain.bound else score


def bounded(score: Tensor, scale: float, bound: float) -> Tensor:
    """The score, shortened where `scale` times it moves a row by more than `bound` (root mean square a coordinate)."""
    if not bound:
        return score
    size = score.square().mean(-1, keepdim=True).sqrt() * scale
    return score * (bound / size.clamp_min(bound))

"""Ways to draw z. Each turns noise into the start of a chain, and learns from where the chain ends.

    start(e, x)            N(0, I) noise e -> where the chain begins (x for the posterior, None for the prior)
    learn(e, z, score, x)  after the chain: the gradient of its own network, or nothing to learn

The chain between the two is always sampler.langevin, with the run's number of steps; `amortised` and `flow` have none. The
posterior and the prior take their ways from the same few classes, so any of one combines with any of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

Score = Callable[[Tensor], Tensor]


class Proposal(Protocol):
    """A density that can be sampled: q_phi(z|x) or q_psi(z)."""

    def draw(self, e: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        """z as a function of N(0, I) noise e, and log q(z)."""

    def log_prob(self, z: Tensor, x: Tensor | None) -> Tensor: ...

    def describe(self, z0: Tensor, x: Tensor | None) -> dict[str, Tensor]:
        """How far its proposals lie apart (`q_spread`: 0 is a collapse), and what else the log should show."""


Teach = Callable[[Proposal, Tensor, Tensor, Score, Tensor | None], Tensor]


def follow(q: Proposal, e: Tensor, z: Tensor, score: Score, x: Tensor | None) -> Tensor:
    """KL(q || target) up to its constant: its gradient is that of log q(z) - z.score(z) along z = z(e). No density is needed,
    so log Z is not either."""
    z, log_q = q.draw(e, x)
    with torch.no_grad():
        slope = score(z.detach())
    return (log_q - (slope * z).sum(-1)).mean()


def imitate(q: Proposal, e: Tensor, z: Tensor, score: Score, x: Tensor | None) -> Tensor:
    """KL(law of the refined z || q) up to its constant: maximum likelihood on where the chain went (MCMC teaching)."""
    return -q.log_prob(z, x).mean()


class Fresh(nn.Module):
    """`langevin`: every chain starts from its noise, and nothing is learned (Algorithm 1)."""

    def start(self, e: Tensor, x: Tensor | None = None) -> Tensor:
        return e

    def learn(self, e: Tensor, z: Tensor, score: Score, x: Tensor | None = None) -> None:
        pass

    def describe(self, z0: Tensor, z: Tensor, x: Tensor | None = None) -> dict[str, Tensor]:
        """What the log shows of a network, after a step."""
        return {}


class Proposed(Fresh):
    """`amortised`, `flow` (q alone, taught by `follow`) and `warm` (q proposes, a chain refines, q is taught by `imitate`)."""

    def __init__(self, q: nn.Module, teach: Teach) -> None:
        super().__init__()
        self.q, self.teach = q, teach

    def start(self, e: Tensor, x: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self.q.draw(e, x)[0]  # type: ignore[operator]

    def learn(self, e: Tensor, z: Tensor, score: Score, x: Tensor | None = None) -> None:
        with torch.enable_grad():
            loss = self.teach(self.q, e, z, score, x)  # type: ignore[arg-type]
            params = list(self.q.parameters())
            for p, g in zip(params, torch.autograd.grad(loss, params, materialize_grads=True), strict=True):
                # In the memory order of its parameter, as backward() would leave it: fused updates walk both side by side.
                p.grad = g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)

    def describe(self, z0: Tensor, z: Tensor, x: Tensor | None = None) -> dict[str, Tensor]:
        return {"log_q": self.q.log_prob(z, x).mean(), **self.q.describe(z0, x)}  # type: ignore[operator]


class Persistent(Fresh):
    """`persistent`: chains that go on from update to update, visited in turn; each starts anew once in `period` visits.

    Two laps of a chain lie chains / batch updates apart. What it keeps is in the state_dict, and so in checkpoints and models.
    """

    z: Tensor
    rows: Tensor

    def __init__(self, chains: int, nz: int, refresh: float) -> None:
        super().__init__()
        self.period = round(1 / refresh) if refresh else 0
        self.register_buffer("z", torch.zeros(chains, nz))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))  # chain rows visited so far

    def _visited(self, n: int) -> tuple[Tensor, Tensor]:
        """Which chains are next, and which lap it is for each."""
        at = self.rows + torch.arange(n, device=self.z.device)
        return at % len(self.z), at // len(self.z)

    def start(self, e: Tensor, x: Tensor | None = None) -> Tensor:
        index, lap = self._visited(len(e))
        new = lap == 0
        if self.period:
            new = new | ((index + lap) % self.period == 0)
        return torch.where(new[:, None], e, self.z[index].to(e.dtype))

    @torch.no_grad()
    def learn(self, e: Tensor, z: Tensor, score: Score, x: Tensor | None = None) -> None:
        index, _ = self._visited(len(z))
        self.z.index_copy_(0, index, z.to(self.z.dtype))
        self.rows += len(z)

    def filled(self) -> int:
        """How many chains have been run at all."""
        return min(int(self.rows), len(self.z))


def goes_on(way: Fresh, e: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Starts for samples first, first + 1, ... outside learning, and for each how many times the chain's length it is to run.

    Kept chains go on from where learning left them; where there are more samples than chains, each further round runs once more as
    long, with noise of its own.
    """
    at = first + torch.arange(len(e), device=e.device)
    if not isinstance(way, Persistent) or not way.filled():
        return way.start(e), torch.ones_like(at)
    return way.z[at % way.filled()].to(e.dtype), 1 + at // way.filled()

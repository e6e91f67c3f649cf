"""What the learned starts share: a density q that proposes z, and the two losses that teach it."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from lebm.sampler import Score
from lebm.start import Draws, Start

Objective = Literal["reverse_kl", "forward_kl"]


def reverse_kl(q: Any, draws: Draws, score: Score) -> Tensor:
    """KL(q || target) up to its constant. Its gradient is that of log q(z) - z . score(z) along z = z(e): the target's
    density, and so log Z, is not needed."""
    z, log_q = q.draw(draws.e, draws.x)
    with torch.no_grad():
        slope = score(z.detach())
    return (log_q - (slope * z).sum(-1)).mean()


def forward_kl(q: Any, draws: Draws, score: Score) -> Tensor:
    """KL(law of the chain's end || q) up to its constant: maximum likelihood on where the chain ended (MCMC
    teaching)."""
    return -q.log_prob(draws.z, draws.x).mean()


OBJECTIVES = {"reverse_kl": reverse_kl, "forward_kl": forward_kl}


class LearnedStart(Start):
    """A network q proposes where chains start; a chain of 0 or more steps follows. `name` is that of the network
    too.

    q is a density that can be sampled, q(z|x) or q(z): `draw(e, x)` gives z as a function of N(0, I) noise e, and log
    q(z); `log_prob(z, x)`; and for the log `scalars(z0, x)`: how far proposals lie apart (`q_spread`; 0 is a collapse),
    and what else should be shown."""

    from_base = False
    q: Any

    def __init__(self, q: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.q, self.objective = q, objective

    def networks(self) -> dict[str, nn.Module]:
        return {self.name: self.q}

    def forward(self, e: Tensor, x: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self.q.draw(e, x)[0]

    def loss(self, draws: Draws, score: Score) -> Tensor:
        with torch.enable_grad():
            return OBJECTIVES[self.objective](self.q, draws, score)

    @torch.no_grad()
    def scalars(self, draws: Draws) -> dict[str, Tensor]:
        return {"log_q": self.q.log_prob(draws.z, draws.x).mean(), **self.q.scalars(draws.z0, draws.x)}

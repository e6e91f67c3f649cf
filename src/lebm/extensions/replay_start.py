"""Prior chains that continue from update to update, from a replay buffer (persistent contrastive divergence)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lebm.start import Draws, Start


class ReplayStart(Start):
    """A buffer of chains that are visited in turn. Each restarts from the base once in 1 / refresh visits; refresh 0 is
    never.

    Two visits of a chain lie chains / batch updates apart. The buffer is in the state_dict, and so in checkpoints and
    models."""

    name = "replay"

    def __init__(self, chains: int, nz: int, refresh: float) -> None:
        super().__init__()
        self.period = round(1 / refresh) if refresh else 0
        self.z = nn.Buffer(torch.zeros(chains, nz))
        self.rows = nn.Buffer(torch.zeros((), dtype=torch.int64))  # how many chain rows were visited so far

    def _next(self, n: int) -> tuple[Tensor, Tensor]:
        """Which chains are next, and how often each was visited before."""
        at = self.rows + torch.arange(n, device=self.z.device)
        return at % len(self.z), at // len(self.z)

    def forward(self, e: Tensor, x: Tensor | None = None) -> Tensor:
        index, visits = self._next(len(e))
        restart = (visits == 0) | ((index + visits) % self.period == 0) if self.period else visits == 0
        return torch.where(restart[:, None], e, self.z[index].to(e.dtype))

    @torch.no_grad()
    def observe(self, draws: Draws) -> None:
        index, _ = self._next(len(draws.z))
        self.z.index_copy_(0, index, draws.z.to(self.z.dtype))
        self.rows.add_(len(draws.z))

    def filled(self) -> int:
        """How many chains of the buffer have been run at all."""
        return min(int(self.rows), len(self.z))

    def resume(self, e: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Chains continue from where learning left them. Where there are more samples than chains, each further round
        of samples runs its chain once more, with noise of its own."""
        if not (filled := self.filled()):
            return super().resume(e, first)
        at = first + torch.arange(len(e), device=e.device)
        return self.z[at % filled].to(e.dtype), 1 + at // filled

    def describe(self) -> Mapping[str, Any]:
        return {"replay_chains": self.filled()}

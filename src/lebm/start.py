"""Where a chain begins, and what it learns: noise in the paper, a network or a buffer in `extensions/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lebm.sampler import Score

# When a check of a method and a log row fires, and its sentence, with numbers of the row in braces; see `lebm.health`.
Rule = tuple[Callable[[Any, Any], Any], str]
Phase = tuple[tuple[str, ...], Tensor]  # the names of the networks that move, and the loss that moves them


@dataclass
class Draws:
    """What one chain of a learning iteration made, all of shape (batch, nz)."""

    e: Tensor  # the N(0, I) noise behind its start
    z0: Tensor  # where it started
    z: Tensor  # where it ended
    x: Tensor | None = None  # the rows it was conditioned on; None for the prior


class Start(nn.Module):
    """The paper's start: the noise itself. Other starts derive from this class and override what they need.

    A start of the prior chain lives on the whitened coordinates of the base, in which N(0, I) noise is drawn; a start
    of the posterior chain lives on z. In the paper the two are the same."""

    name = "noise"
    rules: ClassVar[dict[str, Rule]] = {}  # what healthy learning of this start looks like, by the name of the check
    from_base = True  # whether `e` is first turned into a draw of the base

    def forward(self, e: Tensor, x: Tensor | None = None) -> Tensor:
        """z where the chain begins, from N(0, I) noise e: (batch, nz), and for the posterior the rows x."""
        return e

    def networks(self) -> dict[str, nn.Module]:
        """What learns here, by name."""
        return {}

    def loss(self, draws: Draws, score: Score) -> Tensor | None:
        """A loss that joins the main phase, and so uses the generator before it moves."""
        return None

    def phases(self, draws: Draws, score: Score) -> Iterator[Phase]:
        """Losses that are applied after the main phase, one after the other."""
        yield from ()

    def observe(self, draws: Draws) -> None:
        """After the update: what is remembered of the draws. It must not read a value back to the host."""

    def resume(self, e: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Outside learning: starts for samples first, first + 1, ..., and how often each runs the chain."""
        return self(e), torch.ones(len(e), dtype=torch.int64, device=e.device)

    @torch.no_grad()
    def scalars(self, draws: Draws) -> dict[str, Tensor]:
        """What the log shows of this start."""
        return {}

    def describe(self) -> Mapping[str, Any]:
        """Fields of the SamplerSpec that this start sets besides its name."""
        return {}

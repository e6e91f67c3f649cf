"""Short-run Langevin dynamics (equation 9 of the paper): a pure function that knows no model, and how a draw of z is
described."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor

from lebm.core.errors import DataError

Score = Callable[[Tensor], Tensor]
Watch = Callable[[int, Tensor], None]  # called with the number of steps made and the state


@dataclass(frozen=True)
class Chain:
    """A Langevin chain of the paper: z <- z + (s^2/2) grad log pi(z) + s e, repeated `steps` times with s =
    `step_size`.

    The paper writes `s grad + sqrt(2 s) e`; its s is our s^2/2. The published 0.4 and 0.1 are our s.
    A subclass may vary the step size, scale the noise or limit the drift; see `extensions/tempered_chain.py`.
    """

    steps: int = 60
    step_size: float = 0.4

    @property
    def noise_scale(self) -> float:
        """A factor on the noise besides s; 1 in the paper."""
        return 1.0

    def size(self, k: int) -> float:
        """s of step k, the first being 0."""
        return self.step_size

    def drift(self, score: Tensor, scale: float) -> Tensor:
        """The score as this chain uses it; `scale` is the s^2/2 that multiplies it."""
        return score

    @property
    def reach(self) -> float:
        """The sum of s^2/2 over all steps: how far the drift alone can carry z, per unit of score."""
        return sum(self.size(k) ** 2 for k in range(self.steps)) / 2


def langevin(
    score: Score,
    z: Tensor,
    chain: Chain,
    rng: torch.Generator,
    *,
    shared_noise: bool = False,
    chunk: int = 0,
    watch: Watch | None = None,
) -> Tensor:
    """Run the chain from z, (rows, nz), on every row at once and return where it ends.

    `shared_noise` gives every row the same e. With `chunk` the noise is drawn for so many rows and cut, so that a row's
    path does not depend on how many rows there are. `watch(k, z)` is called with the state after k steps, k = 0 being
    the start.
    """
    shape = (1 if shared_noise else max(len(z), chunk), *z.shape[1:])
    if watch:
        watch(0, z)
    for k in range(chain.steps):
        s = chain.size(k)
        e = torch.randn(shape, generator=rng, device=z.device, dtype=z.dtype)[: len(z)]
        z = z.add(chain.drift(score(z), 0.5 * s * s), alpha=0.5 * s * s).add_(e, alpha=s * chain.noise_scale)
        if watch:
            watch(k + 1, z)
    return z


@dataclass(frozen=True)
class SamplerSpec:
    """How z is drawn from the prior or the posterior, as data: where the chain starts and the steps that follow.

    A method makes it (`Method.samplers`), every result carries it, and `in_words` is the only function that words it.
    """

    target: Literal["prior", "posterior"]
    start: str = "noise"  # "noise", or the name of another start
    steps: int = 0
    step_size: float = 0.0
    base: str = "N(0, I)"  # the density that noise is drawn from, where a start begins with it
    options: Mapping[str, Any] = field(default_factory=dict)  # what else shapes the chain (a tempered one's noise, ...)
    replay_chains: int = 0  # chains that a replay buffer can continue; 0 where there is none

    def rounds(self, samples: int) -> int:
        """How many times a replayed chain runs for so many samples: each further round continues all chains once
        more."""
        return -(-samples // self.replay_chains) if self.replay_chains else 1

    def in_words(self, samples: int = 1) -> str:
        """A phrase for people, such as "20 steps of 0.1 from N(0, I)"."""
        replay, noise = self.start == "replay", self.start == "noise"
        source = f"from {self.base}" if noise or replay else f"from the {self.start}'s proposal"
        if self.replay_chains:
            source = "continuing the replayed chains"
        if not self.steps:
            alone = f"drawn from {self.base}" if noise else f"by the {self.start} alone"
            return f"{source}, without steps" if replay else alone
        rounds = self.rounds(samples)
        count = f"{self.steps} to {rounds * self.steps}" if rounds > 1 else str(self.steps)
        return f"{count} step{'s' * (count != '1')} of {self.step_size:g} {source}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        values = dataclasses.asdict(self)
        values["options"] = {k: list(v) if isinstance(v, tuple) else v for k, v in self.options.items()}
        return values

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> SamplerSpec:
        """What `to_dict` wrote."""
        names = {f.name for f in fields(SamplerSpec)}
        if not isinstance(values, Mapping) or values.get("target") not in ("prior", "posterior") or set(values) - names:
            raise DataError(f"{str(values)[:80]!r} does not describe a sampler; it needs at least a target")
        return SamplerSpec(**values)

"""The ways by name, as a config asks for them and as a person may choose another for a learned model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from lebm.config import Chain, Config
from lebm.errors import DataError
from lebm.methods import Fresh, Persistent, Proposed, follow, imitate
from lebm.methods.encoder import make_encoder
from lebm.methods.flow import SplineFlow

# kind -> name -> how the z of a chain's start comes about, in words
WAYS = {
    "posterior": {
        "langevin": "a chain from N(0, I)",
        "amortised": "the encoder alone",
        "warm": "a chain from the encoder's proposal",
    },
    "prior": {
        "langevin": "a chain from N(0, I)",
        "persistent": "a kept chain, continued",
        "flow": "the flow alone",
        "warm": "a chain from the flow's proposal",
    },
}
# Where a run's own prior chains start, by draw.prior; those of langevin start from p_0
STARTS = {"persistent": "the kept chains of learning", "flow": "the flow's draws", "warm": "the flow's proposals"}
ALONE = ("amortised", "flow")  # no chain
TEACH = {"amortised": follow, "flow": follow, "warm": imitate}


def make_inference(config: Config, generator: nn.Module, own: bool) -> Fresh:
    """The posterior's way: q_phi(z|x) is asked for, or the paper's noise."""
    by = config.draw.posterior
    teach = follow if by == "warm" and config.encoder.teach == "follow" else TEACH.get(by)
    return Proposed(make_encoder(config, generator, own), teach) if teach else Fresh()


def make_synthesis(config: Config) -> Fresh:
    """The prior's way."""
    by, draw = config.draw.prior, config.draw
    if by == "persistent":
        return Persistent(draw.chains, config.nz, draw.refresh)
    return Proposed(SplineFlow(config.nz, config.flow), TEACH[by]) if by in TEACH else Fresh()


@dataclass(frozen=True)
class Drawing:
    """A way that was chosen, with the chain that follows it."""

    kind: str  # prior or posterior
    by: str
    way: Fresh
    chain: Chain
    base: str = "N(0, I)"  # where a chain starts that no network starts

    @property
    def kept(self) -> int:
        """How many kept chains there are to go on with."""
        return self.way.filled() if isinstance(self.way, Persistent) else 0

    def rounds(self, samples: int) -> int:
        """How often kept chains go on for so many samples: each further round of them runs once more as long."""
        return -(-samples // self.kept) if self.kept else 1

    def protocol(self, samples: int = 1) -> dict[str, Any]:
        """What a number says about how its z came about."""
        z, steps, rounds = WAYS[self.kind][self.by], self.chain.steps, self.rounds(samples)
        if isinstance(self.way, Persistent) and not self.kept:
            z = WAYS[self.kind]["langevin"]  # a run without updates has kept nothing
        return {"by": self.by, "z": z.replace("N(0, I)", self.base), "chain_steps": [steps, rounds * steps] if rounds > 1 else steps}


def steps_in_words(chain_steps: Any) -> str:
    """What a protocol says of a chain's length: of kept chains that of the first round and of the last."""
    if isinstance(chain_steps, list) and len(chain_steps) == 2:
        return f"{chain_steps[0]} to {chain_steps[1]} steps"
    return f"{chain_steps} step{'s' * (chain_steps != 1)}"


def choose(kind: str, own: str, way: Fresh, chain: Chain, by: str | None, steps: int | None, base: str = "N(0, I)") -> Drawing:
    """The run's own way, or another that its networks allow, with the run's number of steps or another."""
    by, names = own if by is None else by, WAYS[kind]
    if by not in names:
        raise DataError(f"the {kind} cannot be drawn by {by!r}; there are {', '.join(names)}")
    if steps is not None and steps < 0:
        raise DataError(f"the number of chain steps is {steps}; it must not be negative")
    if by == "langevin":
        way = Fresh()
    elif (by in TEACH and not isinstance(way, Proposed)) or (by == "persistent" and not isinstance(way, Persistent)):
        what = "kept chains" if by == "persistent" else "encoder" if kind == "posterior" else "flow"
        others = "langevin" if own == "langevin" else f"{own} or langevin"
        raise DataError(
            f"the {kind} of this model cannot be drawn by {by}: it was learned with draw.{kind} = {own} and has no {what}; draw by {others}"
        )
    if by in ALONE and steps:
        raise DataError(f"{by} draws have no chain, but {steps} steps were asked for; draw by warm instead")
    if by not in ALONE and own in ALONE and steps is None:
        raise DataError(
            f"this model was learned with draw.{kind} = {own}, without chains; say how many steps a draw by {by} shall take (steps=, or --steps)"
        )
    length = 0 if by in ALONE else chain.steps if steps is None else steps
    return Drawing(kind, by, way, replace(chain, steps=length), base)

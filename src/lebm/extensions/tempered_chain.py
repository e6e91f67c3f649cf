"""A chain whose first steps differ, whose noise is scaled, or whose drift is limited."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lebm.sampler import Chain


@dataclass(frozen=True)
class TemperedChain(Chain):
    """`first_steps` are the step sizes of the first steps, where they differ. `noise` scales e: below 1 a chain climbs
    more than it samples. `drift_limit` is the most that (s^2/2) grad may move a row, as a root mean square over
    coordinates; 0 is no limit."""

    first_steps: tuple[float, ...] = ()
    noise: float = 1.0
    drift_limit: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "first_steps", tuple(self.first_steps))

    @property
    def noise_scale(self) -> float:
        return self.noise

    def size(self, k: int) -> float:
        return self.first_steps[k] if k < len(self.first_steps) else self.step_size

    def drift(self, score: Tensor, scale: float) -> Tensor:
        if not self.drift_limit:
            return score
        size = score.square().mean(-1, keepdim=True).sqrt() * scale
        return score * (self.drift_limit / size.clamp_min(self.drift_limit))

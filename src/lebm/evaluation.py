"""What a metric may look at, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from lebm.data import Splits
from lebm.log import progress_bar
from lebm.methods.ways import ALONE
from lebm.metrics.inception import Features
from lebm.model import LatentEBM

HELD_OUT = 2000  # training rows on which settings may be chosen; a tenth of a set with less than ten times as many
LONG = 100  # posterior steps of `mse_100`, and of chains for a model that was learned without any

Numbers = dict[str, float | None]


@dataclass
class Evaluation:
    """What a metric may look at. It says in `protocol` how it measured."""

    model: LatentEBM
    splits: Splits  # all rows, also where data.limit kept some from the run
    samples: int | None = None  # None: as many as the metric is published with
    seed: int = 0
    split: str = "train"
    limit: int | None = None  # test images for mse; None: all
    bar: Callable[[str], Any] = lambda what: progress_bar(None, what)
    features: Features | None = None
    cache: Path | None = None
    content: str | None = None  # sha256 of all training images
    prior_by: str | None = None  # ways to draw z; None: the run's own
    posterior_by: str | None = None
    protocol: dict[str, Any] = field(default_factory=dict)
    kept: dict[Any, Any] = field(default_factory=dict)  # what several metrics look at and one of them has made

    @property
    def train(self) -> Tensor:
        """The rows that the run learned from."""
        return self.splits.train[: self.model.config.data.limit]

    @property
    def test(self) -> Tensor:
        return self.splits.test

    def held_out(self) -> Tensor:
        """The last training rows. Whether the run learned from them too, data.limit says."""
        n = len(self.splits.train)
        return self.splits.train[n - max(1, min(HELD_OUT, n // 10)) :]

    def posterior_steps(self) -> int | None:
        """None, the run's own K1; or LONG, where chains are asked for and the run was learned without."""
        by = self.posterior_by
        return LONG if by is not None and by not in ALONE and self.model.config.draw.posterior in ALONE else None


Metric = Callable[[Evaluation], Numbers | Iterator[Numbers]]  # one that takes long gives its numbers as they come

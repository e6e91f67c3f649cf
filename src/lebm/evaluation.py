"""What a metric may look at, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from lebm.config import Chains
from lebm.data import Splits
from lebm.log import progress_bar, read, started_from
from lebm.methods.ways import ALONE, Drawing
from lebm.metrics.inception import Features
from lebm.model import LatentEBM

HELD_OUT = 2000  # training rows on which settings may be chosen; a tenth of a set with less than ten times as many
LONG = 100  # posterior steps of `mse_100`
STEPS = {"prior": Chains().prior.steps, "posterior": LONG}  # of chains for a model that was learned without any: the paper's K0, and the longer K1

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

    def drawing(self, kind: str) -> Drawing:
        """How z is drawn from the `prior` or `posterior`: by the run's own way, or by the one asked for."""
        return drawing(self.model, kind, self.prior_by if kind == "prior" else self.posterior_by)


def of_weights(run: Path) -> dict[str, Any]:
    """What every protocol says of the weights: which checkpoint they are, and with whose networks their run began."""
    start = started_from(read(run / "log.jsonl"))
    return {"checkpoint": "last", **({"start": start} if start else {})}


def drawing(model: LatentEBM, kind: str, by: str | None) -> Drawing:
    """The run's own way and chain; or another way, whose chain takes STEPS where the run was learned without one."""
    without = by is not None and by not in ALONE and getattr(model.config.draw, kind) in ALONE
    return model.drawing(kind, by, STEPS[kind] if without else None)


Metric = Callable[[Evaluation], Numbers | Iterator[Numbers]]  # one that takes long gives its numbers as they come

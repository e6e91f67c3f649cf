"""What a metric is, and what it may look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from lebm.core.errors import NotDefined
from lebm.core.progress import SILENT, Reporter
from lebm.data import Splits
from lebm.measure.inception import Features, float32_precision
from lebm.measure.statistics import content_hash
from lebm.method import Method
from lebm.sampler import SamplerSpec

HELD_OUT = 2000  # training rows on which settings may be chosen; a tenth of a set with less than ten times as many
LONG = 100  # posterior steps of `mse_100`
# Steps of a chain that is asked for where the run learned without one: the paper's K0, and the longer K1.
STEPS = {"prior": 60, "posterior": LONG}

Target = Literal["prior", "posterior"]
Choice = tuple[str | None, int | None]  # a start and a number of steps; None is the run's own
Numbers = dict[str, float | None]


@dataclass(frozen=True)
class Number:
    """A number of a result, and what a person must know to read it."""

    name: str
    title: str
    lower_is_better: bool | None  # None where neither direction is better
    about: str  # one plain sentence
    target: Target | None = None  # whose draws of z it is of

    @property
    def direction(self) -> str:
        return {True: "lower is better", False: "higher is better", None: ""}[self.lower_is_better]


@dataclass(frozen=True, kw_only=True)
class Metric(Number):
    """What `lebm evaluate --metrics NAME` measures. `measure` gives its numbers at once, or one by one where they take
    long.
    """

    measure: Callable[[Evaluation], Numbers | Iterator[Numbers]]
    modalities: tuple[str, ...] = ("image", "text", "table", "other")  # of the generators that it is for
    inception: bool = False  # whether it needs the features of Inception
    gives: tuple[Number, ...] = ()  # its numbers, where they are not one of its own name

    @property
    def numbers(self) -> tuple[Number, ...]:
        return self.gives or (self,)


@dataclass
class Evaluation:
    """What a metric may look at. It says in `protocol` how it measured."""

    method: Method
    splits: Splits  # all rows, also where data.limit kept some from the run
    samples: int | None = None  # None: as many as the metric is published with
    seed: int = 0
    split: str = "train"
    limit: int | None = None  # test rows; None: as many as the metric is published with
    reporter: Reporter = SILENT
    features: Features | None = None
    cache_folder: Path | None = None
    choices: dict[Target, Choice] = field(default_factory=dict)  # samplers that were asked for
    protocol: dict[str, Any] = field(default_factory=dict)
    shared: dict[Any, Any] = field(default_factory=dict)  # what several metrics look at and one of them has made

    @property
    def train(self) -> Tensor:
        """The rows that the run learned from."""
        return self.splits.train[: self.learned_limit]

    @property
    def learned_limit(self) -> int | None:
        return None if self.method.config is None else self.method.config.data.limit

    @cached_property
    def train_sha256(self) -> str:
        """Of all training rows."""
        return content_hash(self.splits.train)

    @property
    def test(self) -> Tensor:
        return self.splits.test

    def held_out(self) -> Tensor:
        """The last training rows. Whether the run learned from them too, data.limit says."""
        n = len(self.splits.train)
        return self.splits.train[n - max(1, min(HELD_OUT, n // 10)) :]

    def unseen(self, limit: int | None = None) -> Tensor:
        """The first test rows, or where settings are chosen the first held-out ones."""
        return (self.held_out() if self.split == "validation" else self.test)[: self.limit or limit]

    def spec(self, target: Target) -> SamplerSpec:
        """How z is drawn from the prior or posterior: by the run's own sampler, or as was asked for."""
        return choose(self.method, target, *self.choices.get(target, (None, None)))

    def base(self) -> SamplerSpec:
        """z from the base p_0 itself."""
        return self.method.choose("prior", "noise", 0)

    def other_base(self) -> SamplerSpec | None:
        """The same; None where the method has no other prior than this base, or cannot draw from it."""
        if "noise" not in self.method.starts("prior"):
            return None
        return None if self.base() == self.method.choose("prior") else self.base()

    def sample(self, n: int, spec: SamplerSpec) -> Iterator[Tensor]:
        """x of n samples, in pieces on the method's device: by its engine where one is installed."""
        method = self.method
        with self.reporter.progress("sampling") as update:
            if method.engine is not None:
                yield from method.sample(n, self.seed, spec, progress=update, on_device=True).split(2000)
            else:
                yield from map(method.decode, method.sample_z(n, self.seed, spec, update))


def choose(method: Method, target: Target, start: str | None = None, steps: int | None = None) -> SamplerSpec:
    """The method's own sampler, or one with another start or number of steps. A chain that is asked for by its start
    takes STEPS where the run was learned without one.
    """
    own = method.choose(target)
    if steps is None and not own.steps and start not in (None, own.start):
        steps = STEPS[target]
    return method.choose(target, start, steps)


def require(method: Method, words: str, *names: str) -> Any:
    """The method, where it has the attributes that a measurement needs besides the verbs of every Method; `words` say
    to a person what these are."""
    if not all(hasattr(method, name) for name in names):
        raise NotDefined(method, words)
    return method


def computed_by(method: Method) -> dict[str, str]:
    """Which code computes samples, and in which precision, for the protocol of a number."""
    if method.engine is None:
        return {"engine": "reference", "precision": float32_precision(method.device)}
    return {"engine": "fast", "precision": method.engine.precision}

"""The sections of a configuration, with their defaults; what they must be is in lebm.config.rules."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Chain:
    """A Langevin chain: z <- z + (s^2/2) grad log pi(z) + s e, repeated `steps` times with s = `step_size`."""

    steps: int
    step_size: float
    first_steps: tuple[float, ...] = ()  # s of the first of these steps, where it is another
    noise: float = 1.0  # e is scaled by this; below 1 a chain climbs more than it samples
    bound: float = 0.0  # most that (s^2/2) grad may move a row, root mean square a coordinate: large steps on a steep target; 0 is off


@dataclass(frozen=True)
class Chains:
    prior: Chain = Chain(60, 0.4)
    posterior: Chain = Chain(20, 0.1)


@dataclass(frozen=True)
class Draw:
    """How z is drawn: where a chain starts, and which network learns to start it (lebm.methods)."""

    posterior: Literal["langevin", "amortised", "warm"] = "langevin"
    prior: Literal["langevin", "persistent", "flow", "warm"] = "langevin"
    alone: int = 0  # posterior: warm learns its first so many updates from the encoder's own z, sparing the chain's cost; then its chain refines
    chains: int = 10_000  # prior: persistent keeps so many
    refresh: float = 0.01  # and starts each anew from N(0, I) once in 1/refresh visits; 0: never

    @property
    def encoder(self) -> bool:
        """Whether the run has one."""
        return self.posterior in ("amortised", "warm")

    @property
    def flow(self) -> bool:
        return self.prior in ("flow", "warm")


@dataclass(frozen=True)
class Encoder:
    """q_phi(z|x), where draw.posterior is amortised or warm."""

    width: int = 64  # channels of an image encoder's first map, as generator.ngf; units of a text encoder, or a layer of a flat one
    depth: int = 2  # hidden layers of a flat one; 0: linear
    teach: Literal["imitate", "follow"] = "imitate"  # under warm: towards the refined z, or along the score at its own (amortised always)


@dataclass(frozen=True)
class Flow:
    """q_psi(z), where draw.prior is flow or warm: splines in coupling layers, by zuko."""

    layers: int = 4
    width: int = 128
    bins: int = 8


@dataclass(frozen=True)
class Data:
    name: str = "digits"
    path: str | None = None  # for name: images — a folder of pictures, a .npy or a .npz file; for name: text — a text file
    limit: int | None = None  # take only the first so many training rows
    flip: bool = False  # mirror a training image, left for right, every other time; not where things can be read, as on house numbers
    shift: int = 0  # move a training image by up to so many pixels each way, borders reflected; against overfitting
    test_fraction: float = 0.1  # for data without an official test split
    held_out: int | None = None  # this label is the anomaly: never trained on, all of it in the test split
    labels: Literal["own", "clusters"] = "own"  # whose label: the data set's, or the number of a cluster found without them, to choose settings by


BASES = {"standard": "N(0, I)", "fitted": "N(m, S)", "mixture": "a mixture of Gaussians"}  # p_0 by prior.base, as people read it


@dataclass(frozen=True)
class Prior:
    kind: Literal["energy", "gaussian"] = "energy"
    # p_0, which the energy tilts: N(0, I); N(m, S) with the moments of posterior draws; a mixture of Gaussians fitted to them
    base: Literal["standard", "fitted", "mixture"] = "standard"
    parts: int = 10  # Gaussians of a mixture
    memory: int = 1000  # updates that a fitted p_0 looks back on, at first half of those made: fewer, and it follows sooner but sees less
    width: int = 200
    depth: int = 2  # hidden layers
    activation: Literal["leaky_relu", "gelu", "silu", "tanh"] = "leaky_relu"
    leak: float = 0.2


Rule = tuple[bool, str, Any, str]  # whether it holds, the key, its value, and what it must be


@dataclass(frozen=True)
class Generator:
    """An image generator. Each kind of generator is a class like this one: its keys, what they must be, and its size."""

    kind: Literal["image"] = "image"
    size: int = 32  # pixels a side
    channels: int = 3
    ngf: int = 64
    base: int = 4  # side of the first feature map
    widths: tuple[int, ...] | None = None  # channels of the hidden layers in units of ngf; None: the paper's pattern
    last: Literal["up", "same"] = "up"  # final layer: 4x4 stride 2, or 3x3 stride 1 (CIFAR-10)
    leak: float = 0.2
    sigma: float = 0.3

    def rules(self) -> list[Rule]:
        n = hidden_layers(self)
        fits = self.widths is None or (len(self.widths) == n and min(self.widths, default=0) >= 1)
        return [
            (self.channels in (1, 3), "generator.channels", self.channels, "must be 1 (grey) or 3 (colour)"),
            (1 <= self.ngf <= 4096, "generator.ngf", self.ngf, "must be between 1 and 4096"),
            (1 <= self.base <= 16, "generator.base", self.base, "must be between 1 and 16"),
            (0 <= self.leak < 1, "generator.leak", self.leak, "must be at least 0 and below 1"),
            (1e-6 <= self.sigma <= 1e6, "generator.sigma", self.sigma, "must be between 1e-6 and 1e6"),
            (_doublings(self) is not None, "generator.size", self.size,
             f"must be generator.base ({self.base}) times a power of two (at least twice it), and at most 256"),
            (fits, "generator.widths", self.widths, f"must list {n} positive numbers, one for each hidden layer"),
        ]  # fmt: skip

    def weights(self, nz: int) -> tuple[int, str]:
        """About how many, and the key that rules them; a small file must not be able to ask for all memory."""
        widths = [w * self.ngf for w in self.widths or default_widths(hidden_layers(self))]
        return nz * widths[0] * self.base**2 + 16 * sum(a * b for a, b in itertools.pairwise([*widths, self.channels])), "ngf"

    def shown(self) -> str:
        """What it makes, for a table."""
        return f"{self.size}x{self.size}x{self.channels}"


@dataclass(frozen=True)
class TextGenerator:
    """A one-layer LSTM over words, z at every input and in its first state."""

    kind: Literal["text"] = "text"
    vocabulary: int = 10_003  # most words, the four of our own (<pad>, <s>, </s>, <unk>) among them; the rest are read as <unk>
    length: int = 200  # most words of a sentence; the rest is cut off, and counted
    embedding: int = 128
    hidden: int = 512
    dropout: float = 0.0  # share of the embeddings' and the states' units set to 0, while learning
    word_dropout: float = 0.0  # share of the words the LSTM reads that become <unk>, while learning

    def rules(self) -> list[Rule]:
        return [
            (5 <= self.vocabulary <= 10**6, "generator.vocabulary", self.vocabulary, "must be between 5 and 1,000,000"),
            (1 <= self.length <= 10**4, "generator.length", self.length, "must be between 1 and 10,000"),
            (1 <= self.embedding <= 65536, "generator.embedding", self.embedding, "must be between 1 and 65536"),
            (1 <= self.hidden <= 65536, "generator.hidden", self.hidden, "must be between 1 and 65536"),
            (0 <= self.dropout < 1, "generator.dropout", self.dropout, "must be at least 0 and below 1"),
            (0 <= self.word_dropout < 1, "generator.word_dropout", self.word_dropout, "must be at least 0 and below 1"),
        ]

    def weights(self, nz: int) -> tuple[int, str]:
        lstm = 4 * self.hidden * (nz + self.embedding + self.hidden)
        return lstm + 2 * nz * self.hidden + self.vocabulary * (self.embedding + self.hidden), "hidden"

    def shown(self) -> str:
        return f"LSTM {self.embedding}/{self.hidden}"


@dataclass(frozen=True)
class TableGenerator:
    """Rows of numbers: an MLP from z to the mean of every column."""

    kind: Literal["table"] = "table"
    columns: int = 2
    width: int = 64
    depth: int = 2  # hidden layers
    sigma: float | None = None  # of all columns; None: one a column, learned

    def rules(self) -> list[Rule]:
        return [
            (1 <= self.columns <= 10**6, "generator.columns", self.columns, "must be between 1 and 1,000,000"),
            (1 <= self.width <= 65536, "generator.width", self.width, "must be between 1 and 65536"),
            (0 <= self.depth <= 64, "generator.depth", self.depth, "must be between 0 and 64"),
            (self.sigma is None or 1e-6 <= self.sigma <= 1e6, "generator.sigma", self.sigma, "must be between 1e-6 and 1e6, or null to learn it"),
        ]

    def weights(self, nz: int) -> tuple[int, str]:
        return (nz + self.columns + self.width * max(0, self.depth - 1)) * self.width, "width"

    def shown(self) -> str:
        return f"table, {self.columns} columns"


AnyGenerator = Generator | TextGenerator | TableGenerator  # another kind is another class here, and a line in lebm.generators


@dataclass(frozen=True)
class Learning:
    prior_rate: float = 2e-5
    generator_rate: float = 1e-4
    encoder_rate: float = 1e-4
    flow_rate: float = 1e-3  # the energy moves while the flow follows: it must be the faster
    betas: tuple[float, float] = (0.5, 0.999)
    decay: float = 1.0  # all rates are multiplied by this once an epoch
    clip: float = 0.0  # largest gradient norm, for each network; 0 is off
    l2: float = 0.0  # weight of mean f(z_pos)^2 + mean f(z_neg)^2; 0 is off
    ema: float = 0.0  # decay of the running average of every network but the energy, for sampling and inference; 0 is off


@dataclass(frozen=True)
class Training:
    steps: int = 70_000
    batch: int = 100
    log_every: int = 50
    checkpoint_every: int = 1000
    start_from: str | None = None  # a run folder or model file whose networks this run starts with, in place of random ones


@dataclass(frozen=True)
class Anomaly:
    """How rows are scored (lebm.anomaly), and over how many last epochs a published number is averaged."""

    score: Literal["joint", "chains", "error", "likelihood", "prior", "combined"] = "joint"
    epochs: int = 10


def _doublings(g: Generator) -> int | None:
    """How often the first feature map doubles to reach the image's side."""
    n = g.size // g.base
    fits = g.base * n == g.size and n >= 2 and n & (n - 1) == 0 and g.size <= 256
    return n.bit_length() - 1 if fits else None


def hidden_layers(g: Generator) -> int:
    """Layers before the last one: the first map and its doublings, less the last doubling if the output layer does it."""
    n = _doublings(g) or 1
    return n if g.last == "up" else n + 1


def default_widths(layers: int) -> tuple[int, ...]:
    """Channels of the hidden layers in units of ngf, as in the paper: 8-4-2 at 32 pixels, 8-4-2-1 at 64, 16-8-4-2-1 at 128."""
    lowest = 2 if layers <= 3 else 1
    return tuple(lowest * 2**i for i in reversed(range(layers)))

"""One frozen object says everything about a run: preset < YAML file < --set KEY=VALUE.

The resolved config is printed, saved in the run folder and enough to run it again.
An unknown key, a wrong type or an impossible value is an error that names the key and lists what would be valid.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from lebm.errors import ConfigError

MAX_CONFIG_BYTES = 1 << 20
MAX_WEIGHTS = 10**9  # in each network; the paper's largest has 5e7


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
    chains: int = 10_000  # prior: persistent keeps so many
    refresh: float = 0.01  # and starts each anew from N(0, I) once in 1/refresh visits; 0: never


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


@dataclass(frozen=True)
class Config:
    experiment: str = "digits"
    seed: int = 1
    nz: int = 100
    engine: Literal["auto", "reference"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    data: Data = field(default_factory=Data)
    prior: Prior = field(default_factory=Prior)
    generator: AnyGenerator = field(default_factory=Generator)
    chains: Chains = field(default_factory=Chains)
    draw: Draw = field(default_factory=Draw)
    encoder: Encoder = field(default_factory=Encoder)
    flow: Flow = field(default_factory=Flow)
    learning: Learning = field(default_factory=Learning)
    training: Training = field(default_factory=Training)
    anomaly: Anomaly = field(default_factory=Anomaly)

    def __post_init__(self) -> None:
        # N(0, I) is drawn exactly, an unadjusted chain would only spoil it; amortised and flow are draws without a chain.
        idle = {"prior": self.prior.kind == "gaussian" or self.draw.prior == "flow", "posterior": self.draw.posterior == "amortised"}
        still = {k: dataclasses.replace(getattr(self.chains, k), steps=0) for k, none in idle.items() if none}
        object.__setattr__(self, "chains", dataclasses.replace(self.chains, **still))
        _check_values(self)

    @property
    def image(self) -> Generator:
        """The generator's section where it makes images, for code that knows nothing else."""
        if not isinstance(self.generator, Generator):
            raise ConfigError(f"generator.kind is {self.generator.kind}; this works for image generators only")
        return self.generator

    def to_dict(self) -> dict[str, Any]:
        return cast(dict[str, Any], _plain(dataclasses.asdict(self)))

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    def with_values(self, **values: Any) -> Config:
        """A copy with dotted keys replaced: config.with_values(**{"training.steps": 10})."""
        return from_dict(merge(self.to_dict(), expand(values)))


# --- reading ------------------------------------------------------------------------------------------------------


def preset_names() -> list[str]:
    folder = resources.files("lebm") / "presets"
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))


def resolve(source: str | Path | Mapping[str, Any] | Config, settings: Iterable[str] = ()) -> Config:
    """A Config from a preset's name, a YAML file, a run folder or a mapping, with KEY=VALUE settings on top."""
    if not isinstance(source, str | Path | Mapping | Config):
        raise ConfigError(f"the configuration is a {type(source).__name__}; give a preset's name, a YAML file, a mapping or a Config")
    if isinstance(source, Config):
        values: Mapping[str, Any] = source.to_dict()
    elif isinstance(source, Mapping):
        values = _with_base(expand(source), where="the configuration")
    else:
        values = _with_base(_read_source(source), where=str(source))
    asked: dict[str, Any] = {}
    for setting in settings:
        asked = merge(asked, _parse_setting(setting))
    return from_dict(merge(merge(Config().to_dict(), values), asked))


def from_dict(values: Mapping[str, Any]) -> Config:
    """A Config from nested mappings; what they leave out has its default."""
    return cast(Config, _build(Config, merge(Config().to_dict(), values), ""))


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings laid over each other; what is not a mapping is replaced whole, and so is a generator of another kind."""
    out = dict(base)
    for key, value in over.items():
        mine = out.get(key)
        both = isinstance(mine, Mapping) and isinstance(value, Mapping) and not (key == "generator" and _switches(mine, value))
        out[key] = merge(cast(Mapping[str, Any], mine), value) if both else value
    return out


def _switches(mine: Mapping[str, Any], over: Mapping[str, Any]) -> bool:
    return "kind" in mine and "kind" in over and mine["kind"] != over["kind"]


def expand(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"training.steps": 3} -> {"training": {"steps": 3}}."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise ConfigError(f"the key {key!r} of the configuration is not text; keys are names such as training.steps")
        nested: Any = expand(value) if isinstance(value, Mapping) else value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        out = merge(out, nested)
    return out


def _parse_setting(setting: str) -> dict[str, Any]:
    key, eq, text = setting.partition("=")
    if not eq or not key.strip():
        raise ConfigError(f"--set {setting!r} is not KEY=VALUE; write for example --set training.steps=1000")
    try:
        value = yaml.load(text, Loader) if text.strip() else ""
    except (yaml.YAMLError, ValueError, RecursionError):
        value = text
    return expand({key.strip(): value})


def _read_source(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if (path / "config.yaml").is_file():
        return expand(_read_yaml(path / "config.yaml"))
    if str(source) in preset_names():  # also where a folder or file here has the same name, as data often has
        return _read_preset(str(source))
    if path.is_dir():
        raise ConfigError(f"{source} is a folder without a config.yaml; name a preset ({', '.join(preset_names())}) or a YAML file")
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return expand(_read_yaml(path))
    return _read_preset(str(source))


def _read_preset(name: str) -> dict[str, Any]:
    names = preset_names()
    if name not in names:
        raise ConfigError(f"no preset is called {name!r}{_hint(name, names)}; there are {', '.join(names)} (or give a YAML file)")
    text = (resources.files("lebm") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    return _with_base(expand(yaml.safe_load(text)), where=name)


def _with_base(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A file or preset may stand on another preset: its `preset:` key names it."""
    rest = dict(values)
    base = rest.pop("preset", None)
    if base is None:
        return rest
    if not isinstance(base, str):
        raise ConfigError(f"preset in {where} is {base!r}; it must be the name of a preset: {', '.join(preset_names())}")
    return merge(merge(Config().to_dict(), _read_preset(base)), rest)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path} has {path.stat().st_size} bytes; a configuration has at most {MAX_CONFIG_BYTES}")
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; name a preset ({', '.join(preset_names())}) or a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as e:
        where, problem = getattr(e, "problem_mark", None), getattr(e, "problem", None)
        line = f" (line {where.line + 1}: {problem})" if where else ""
        raise ConfigError(f"{path} is not readable as YAML{line}; `lebm presets digits` shows one that is") from None
    if not isinstance(loaded, Mapping):
        what = "nothing" if loaded is None else f"a {type(loaded).__name__}"
        raise ConfigError(f"{path} holds {what}, not a mapping of keys to values; `lebm presets digits` shows one")
    return dict(loaded)


class Loader(yaml.SafeLoader):
    """Plain YAML: no objects (as in SafeLoader), no aliases (a few lines of them unfold to gigabytes), no key twice."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not taken here", problem_mark=self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen if isinstance(key, yaml.ScalarNode) else True:
                raise yaml.MarkedYAMLError(problem=f"the key {_show(key.value)} is there twice or is not a name", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


# --- checking -----------------------------------------------------------------------------------------------------


def _build(cls: type, values: Any, where: str) -> Any:
    """An instance of the dataclass `cls`, every value checked against its annotation."""
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{where.rstrip('.') or 'the configuration'} is {_show(values)}; it takes the keys {', '.join(f.name for f in fields(cls))}"
        )
    hints = typing.get_type_hints(cls)
    names = [f.name for f in fields(cls)]
    for key in values:
        if key not in names:
            raise ConfigError(f"unknown key {where}{str(key)[:60]}{_hint(str(key), names)}; valid here: {', '.join(where + n for n in names)}")
    return cls(**{k: _convert(hints[k], v, where + k) for k, v in values.items()})


def _convert(hint: Any, value: Any, key: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if is_dataclass(hint):
        return _build(cast(type, hint), value, key + ".")
    if origin in (typing.Union, types.UnionType):
        choices = {_kind(a): a for a in args if is_dataclass(a)}
        if choices:
            return _build(_of_kind(choices, value, key), value, key + ".")
        return None if value is None else _convert(next(a for a in args if a is not type(None)), value, key)
    if origin is Literal:
        if value not in args:
            raise ConfigError(f"{key} is {_show(value)}{_hint(str(value), args)}; it must be one of {', '.join(map(str, args))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{key} is {_show(value)}; it must be a list such as [2, 1]")
        if args[-1] is not Ellipsis and len(value) != len(args):
            raise ConfigError(f"{key} is {_show(list(value))}; it must have {len(args)} entries")
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return tuple(_convert(k, v, f"{key}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    return _scalar(hint, value, key)


def _kind(cls: Any) -> str:
    return cast(str, next(f.default for f in fields(cls) if f.name == "kind"))


def _of_kind(kinds: Mapping[str, Any], value: Any, key: str) -> type:
    """The class that a section's `kind` names; the first where it names none."""
    given = value.get("kind", next(iter(kinds))) if isinstance(value, Mapping) else next(iter(kinds))
    if not isinstance(given, str) or given not in kinds:
        raise ConfigError(f"{key}.kind is {_show(given)}{_hint(str(given), kinds)}; it must be one of {', '.join(kinds)}")
    return cast(type, kinds[given])


def _scalar(kind: Any, value: Any, key: str) -> Any:
    if kind is str and isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    if kind is float and not isinstance(value, bool):
        try:  # YAML 1.1 reads 2e-5 as text
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    if kind is int and not isinstance(value, bool):
        if isinstance(value, int):
            return value
        try:  # and 1e4 too
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if number.is_integer():
            return int(number)
    names = {int: "a whole number", float: "a finite number", str: "text"}
    raise ConfigError(f"{key} is {_show(value)}; it must be {names[kind]}")


def _show(value: Any) -> str:
    """A value inside a sentence, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _hint(given: str, valid: Iterable[Any]) -> str:
    close = difflib.get_close_matches(given, [str(v) for v in valid], n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _check_values(c: Config) -> None:
    g, le, tr = c.generator, c.learning, c.training
    for rule in g.rules():  # before their size is asked for
        _check(*rule)
    size, ruler = g.weights(c.nz)
    rules: list[Rule] = [
        (bool(c.experiment.strip()) and not {"..", "/"} & set(Path(c.experiment).parts), "experiment", c.experiment, "must be a name, with no .. in it"),
        (0 <= c.seed < 2**63, "seed", c.seed, "must be between 0 and 2^63 - 1"),
        (1 <= c.nz <= 4096, "nz", c.nz, "must be between 1 and 4096"),
        (c.data.limit is None or c.data.limit >= 1, "data.limit", c.data.limit, "must be at least 1"),
        (0 < c.data.test_fraction < 1, "data.test_fraction", c.data.test_fraction, "must lie between 0 and 1"),
        (c.data.held_out is None or c.data.held_out >= 0, "data.held_out", c.data.held_out, "must be a label, 0 or above"),
        (1 <= c.prior.width <= 65536, "prior.width", c.prior.width, "must be between 1 and 65536"),
        (1 <= c.prior.depth <= 64, "prior.depth", c.prior.depth, "must be between 1 and 64"),
        (1 <= c.prior.parts <= 1000, "prior.parts", c.prior.parts, "must be between 1 and 1000"),
        (_mixture_numbers(c) <= MAX_WEIGHTS, "prior.parts", c.prior.parts, f"makes a mixture of {_mixture_numbers(c):.1e} numbers; {MAX_WEIGHTS:.0e} is the most"),
        (0 <= c.prior.leak < 1, "prior.leak", c.prior.leak, "must be at least 0 and below 1"),
        (_prior_weights(c) <= MAX_WEIGHTS, "prior.width", c.prior.width, f"makes a network of {_prior_weights(c):.1e} weights; {MAX_WEIGHTS:.0e} is the most"),
        (size <= MAX_WEIGHTS, f"generator.{ruler}", getattr(g, ruler), f"makes a network of {size:.1e} weights; {MAX_WEIGHTS:.0e} is the most"),
        *_chain_rules("chains.prior", c.chains.prior),
        *_chain_rules("chains.posterior", c.chains.posterior),
        (c.prior.kind == "energy" or c.draw.prior == "langevin", "draw.prior", c.draw.prior, "must be langevin where prior.kind is gaussian: N(0, I) is drawn exactly"),
        (1 <= c.draw.chains <= 10**7 and c.draw.chains * c.nz <= MAX_WEIGHTS, "draw.chains", c.draw.chains, "must be between 1 and 10,000,000"),
        (c.draw.prior != "persistent" or c.draw.chains >= tr.batch, "draw.chains", c.draw.chains, f"must be at least training.batch ({tr.batch})"),
        (0 <= c.draw.refresh <= 1, "draw.refresh", c.draw.refresh, "must lie between 0 (never) and 1 (always)"),
        (1 <= c.encoder.width <= 4096, "encoder.width", c.encoder.width, "must be between 1 and 4096"),
        (0 <= c.encoder.depth <= 64, "encoder.depth", c.encoder.depth, "must be between 0 and 64"),
        (c.draw.posterior != "warm" or c.prior.base == "standard" or c.encoder.teach == "follow", "encoder.teach", c.encoder.teach, "must be follow where draw.posterior is warm and prior.base not standard: imitating its own refined z over a p_0 that follows them, the encoder would let z grow without end"),
        (1 <= c.flow.layers <= 64, "flow.layers", c.flow.layers, "must be between 1 and 64"),
        (1 <= c.flow.width <= 4096, "flow.width", c.flow.width, "must be between 1 and 4096"),
        (2 <= c.flow.bins <= 64, "flow.bins", c.flow.bins, "must be between 2 and 64"),
        (_encoder_weights(c) <= MAX_WEIGHTS, "encoder.width", c.encoder.width, f"makes a network of {_encoder_weights(c):.1e} weights; {MAX_WEIGHTS:.0e} is the most"),
        (_flow_weights(c) <= MAX_WEIGHTS, "flow.width", c.flow.width, f"makes a network of {_flow_weights(c):.1e} weights; {MAX_WEIGHTS:.0e} is the most"),
        (0 <= le.encoder_rate <= 1e9, "learning.encoder_rate", le.encoder_rate, "must be between 0 and 1e9"),
        (0 <= le.flow_rate <= 1e9, "learning.flow_rate", le.flow_rate, "must be between 0 and 1e9"),
        (0 <= le.prior_rate <= 1e9, "learning.prior_rate", le.prior_rate, "must be between 0 and 1e9"),
        (0 <= le.generator_rate <= 1e9, "learning.generator_rate", le.generator_rate, "must be between 0 and 1e9"),
        (all(0 <= b < 1 for b in le.betas), "learning.betas", le.betas, "must both be at least 0 and below 1"),
        (0 < le.decay <= 1, "learning.decay", le.decay, "must be above 0 and at most 1"),
        (le.clip >= 0, "learning.clip", le.clip, "must not be negative (0 is off)"),
        (0 <= le.l2 <= 1e6, "learning.l2", le.l2, "must be between 0 (off) and 1e6"),
        (0 <= le.ema < 1, "learning.ema", le.ema, "must be at least 0 (off) and below 1"),
        (0 <= tr.steps <= 10**12, "training.steps", tr.steps, "must be between 0 and 10^12"),
        (1 <= tr.batch <= 10**6, "training.batch", tr.batch, "must be between 1 and 1,000,000"),
        (tr.log_every >= 1, "training.log_every", tr.log_every, "must be at least 1"),
        (c.anomaly.epochs >= 1, "anomaly.epochs", c.anomaly.epochs, "must be at least 1"),
        (tr.checkpoint_every >= 1, "training.checkpoint_every", tr.checkpoint_every, "must be at least 1"),
    ]  # fmt: skip
    for rule in rules:
        _check(*rule)


def _check(ok: bool, key: str, value: Any, what: str) -> None:
    if not ok:
        raise ConfigError(f"{key} is {_show(value)}; it {what}")


def _chain_rules(key: str, chain: Chain) -> list[Rule]:
    first = chain.first_steps
    return [
        (0 <= chain.steps <= 10**9, f"{key}.steps", chain.steps, "must be between 0 and 1,000,000,000"),
        (0 < chain.step_size <= 1000, f"{key}.step_size", chain.step_size, "must be above 0 and at most 1000"),
        (
            len(first) <= 1000 and all(0 < s <= 1000 for s in first),
            f"{key}.first_steps",
            list(first),
            "must list at most 1000 step sizes, each above 0 and at most 1000",
        ),
        (chain.bound >= 0, f"{key}.bound", chain.bound, "must not be negative (0 is off)"),
        (0 <= chain.noise <= 1, f"{key}.noise", chain.noise, "must be between 0 (none) and 1 (Langevin's)"),
    ]


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


def _mixture_numbers(c: Config) -> int:
    """Three matrices a Gaussian (lebm.mixture)."""
    return 3 * c.prior.parts * c.nz**2 if c.prior.base == "mixture" else 0


def _prior_weights(c: Config) -> int:
    return c.prior.width * (c.nz + c.prior.width * (c.prior.depth - 1))


def _encoder_weights(c: Config) -> int:
    """About how many the encoder of lebm.methods.encoder has, where one is asked for."""
    g, width = c.generator, c.encoder.width
    if c.draw.posterior == "langevin":
        return 0
    if isinstance(g, Generator):
        widths = [w * width for w in g.widths or default_widths(hidden_layers(g))]
        return 16 * (widths[0] ** 2 + sum(a * b for a, b in itertools.pairwise([*widths, g.channels]))) + 2 * c.nz * widths[0] * min(g.base, 7) ** 2
    if isinstance(g, TextGenerator):
        return g.vocabulary * g.embedding + 6 * width * (g.embedding + width) + 4 * width * c.nz
    return (g.columns + 2 * c.nz + width * c.encoder.depth) * width


def _flow_weights(c: Config) -> int:
    """The same of lebm.methods.flow."""
    if c.draw.prior not in ("flow", "warm"):
        return 0
    return c.flow.layers * c.flow.width * (c.nz + c.flow.width + c.nz * (3 * c.flow.bins - 1))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value

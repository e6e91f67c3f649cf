"""One frozen object says everything about a run: preset < YAML file < --set KEY=VALUE.

The resolved config is printed, saved in the run folder and enough to run it again.
An unknown key, a wrong type or an impossible value is an error that names the key and lists what would be valid.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from lebm.config.files import MAX_CONFIG_BYTES, did_you_mean, expand, flatten, merge, parse_setting, preset_names, read_yaml
from lebm.config.rules import check_learning, check_values, show
from lebm.config.sections import (
    BASES,
    Anomaly,
    AnyGenerator,
    Chain,
    Chains,
    Data,
    Draw,
    Encoder,
    Flow,
    Generator,
    Learning,
    Prior,
    TableGenerator,
    TextGenerator,
    Training,
    default_widths,
    hidden_layers,
)
from lebm.errors import ConfigError

__all__ = [
    "BASES", "MAX_CONFIG_BYTES", "Anomaly", "AnyGenerator", "Chain", "Chains", "Config", "Data", "Draw", "Encoder", "Flow", "Generator",
    "Learning", "Prior", "TableGenerator", "TextGenerator", "Training", "check_learning", "default_widths", "expand", "flatten", "from_dict", "hidden_layers", "merge",
    "preset_names", "resolve",
]  # fmt: skip


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
        check_values(self)

    def chains_at(self, step: int) -> Chains:
        """The chains of that update: under draw.alone the first ones have none for the posterior."""
        if step >= self.draw.alone:
            return self.chains
        return dataclasses.replace(self.chains, posterior=dataclasses.replace(self.chains.posterior, steps=0))

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
        asked = merge(asked, parse_setting(setting))
    return from_dict(merge(merge(Config().to_dict(), values), asked))


def from_dict(values: Mapping[str, Any]) -> Config:
    """A Config from nested mappings; what they leave out has its default."""
    return cast(Config, _build(Config, merge(Config().to_dict(), values), ""))


def _read_source(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if (path / "config.yaml").is_file():
        return expand(read_yaml(path / "config.yaml"))
    if str(source) in preset_names():  # also where a folder or file here has the same name, as data often has
        return _read_preset(str(source))
    if path.is_dir():
        raise ConfigError(f"{source} is a folder without a config.yaml; name a preset ({', '.join(preset_names())}) or a YAML file")
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return expand(read_yaml(path))
    return _read_preset(str(source))


def _read_preset(name: str) -> dict[str, Any]:
    names = preset_names()
    if name not in names:
        raise ConfigError(f"no preset is called {name!r}{did_you_mean(name, names)}; there are {', '.join(names)} (or give a YAML file)")
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


def _build(cls: type, values: Any, where: str) -> Any:
    """An instance of the dataclass `cls`, every value checked against its annotation."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where.rstrip('.') or 'the configuration'} is {show(values)}; it takes the keys {', '.join(f.name for f in fields(cls))}")
    hints = typing.get_type_hints(cls)
    names = [f.name for f in fields(cls)]
    for key in values:
        if key not in names:
            raise ConfigError(f"unknown key {where}{str(key)[:60]}{did_you_mean(str(key), names)}; valid here: {', '.join(where + n for n in names)}")
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
            raise ConfigError(f"{key} is {show(value)}{did_you_mean(str(value), args)}; it must be one of {', '.join(map(str, args))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{key} is {show(value)}; it must be a list such as [2, 1]")
        if args[-1] is not Ellipsis and len(value) != len(args):
            raise ConfigError(f"{key} is {show(list(value))}; it must have {len(args)} entries")
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return tuple(_convert(k, v, f"{key}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    return _scalar(hint, value, key)


def _kind(cls: Any) -> str:
    return cast(str, next(f.default for f in fields(cls) if f.name == "kind"))


def _of_kind(kinds: Mapping[str, Any], value: Any, key: str) -> type:
    """The class that a section's `kind` names; the first where it names none."""
    given = value.get("kind", next(iter(kinds))) if isinstance(value, Mapping) else next(iter(kinds))
    if not isinstance(given, str) or given not in kinds:
        raise ConfigError(f"{key}.kind is {show(given)}{did_you_mean(str(given), kinds)}; it must be one of {', '.join(kinds)}")
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
    if kind is bool and isinstance(value, bool):
        return value
    names = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}
    raise ConfigError(f"{key} is {show(value)}; it must be {names[kind]}")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value

"""One immutable object says everything about a run: preset < YAML file < --set KEY=VALUE.

The configuration is saved in the run folder and is enough to run it again. An unknown key, a wrong type or a value out
of its limits is an error that names the key and says what would be valid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lebm.config.files import (
    MAX_CONFIG_BYTES,
    expand,
    flatten,
    full_name,
    merge,
    parse_setting,
    preset_names,
    read_preset,
    read_yaml,
)
from lebm.config.generators import AnyGenerator, ImageConfig, TableConfig, TextConfig
from lebm.config.methods import (
    METHODS,
    ChainConfig,
    EncoderStart,
    EnergyConfig,
    FlowBase,
    FlowStart,
    LatentEBMConfig,
    MixtureBase,
    NoiseStart,
    PriorChainConfig,
    ReplayStart,
    StandardBase,
    WhitenedBase,
)
from lebm.config.schema import Config, check_learning, json_schema
from lebm.config.sections import AnomalyConfig, DataConfig, OptimizerConfig, Schedule, Stage, TrainingConfig
from lebm.core.errors import ConfigError
from lebm.core.section import show

__all__ = [
    "MAX_CONFIG_BYTES", "METHODS", "AnomalyConfig", "AnyGenerator", "ChainConfig", "Config", "DataConfig",
    "EncoderStart", "EnergyConfig", "FlowBase", "FlowStart", "ImageConfig", "LatentEBMConfig", "MixtureBase",
    "NoiseStart", "OptimizerConfig", "PriorChainConfig", "ReplayStart", "Schedule", "Stage", "StandardBase",
    "TableConfig", "TextConfig", "TrainingConfig", "WhitenedBase", "check_learning", "differences", "expand",
    "flatten", "from_dict", "json_schema", "merge", "preset_names", "resolve",
]  # fmt: skip

Source = str | Path | Mapping[str, Any] | Config


def resolve(source: Source, settings: Iterable[str] = ()) -> Config:
    """A Config from a preset's name, a YAML file, a run folder, a mapping or a Config, with KEY=VALUE settings on
    top."""
    if isinstance(source, Config):
        values: Mapping[str, Any] = source.to_dict()
    elif isinstance(source, Mapping):
        values = _with_preset(expand(source), where="the configuration")
    elif isinstance(source, str | Path):
        values = _read(source)
    else:
        what = type(source).__name__
        raise ConfigError(f"the configuration is a {what}; give a preset's name, a YAML file, a mapping or a Config")
    asked: dict[str, Any] = {}
    for setting in settings:
        asked = merge(asked, parse_setting(setting))
    return from_dict(merge(values, asked))


def from_dict(values: Mapping[str, Any]) -> Config:
    """A Config from nested mappings; what they leave out has its default."""
    return Config.model_validate(dict(values))


def differences(config: Config) -> dict[str, tuple[Any, Any]]:
    """What differs from the preset that the configuration stands on, or from the defaults, by dotted key.

    Each with the other value and its own. A section of another kind, or one that only one of them has, is a value as a
    whole; None stands for what is absent.
    """
    known = config.based_on in preset_names()
    other = resolve(str(config.based_on)) if known else Config()
    return {key: (old, new) for key, old, new in _compare(other.to_dict(), config.to_dict()) if key != "based_on"}


def _compare(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key in {**after, **before}:
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("kind") == new.get("kind"):
            yield from _compare(old, new, f"{prefix}{key}.")
        elif old != new:
            yield prefix + key, old, new


def _read(source: str | Path) -> dict[str, Any]:
    path, names = Path(source), preset_names()
    if (path / "config.yaml").is_file():
        path = path / "config.yaml"
    elif str(source) in names or any(name.startswith(f"{source}/") for name in names):
        return _preset(str(source))  # also where a folder or file here has the same name, as data often has
    elif path.is_dir():
        presets = ", ".join(names)
        raise ConfigError(f"{source} is a folder without a config.yaml; name a preset ({presets}) or a YAML file")
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return _with_preset(expand(read_yaml(path)), where=str(source))
    return _preset(str(source))


def _preset(name: str) -> dict[str, Any]:
    full = full_name(name)
    return _with_preset(read_preset(full), where=full) | {"based_on": full}


def _with_preset(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A file or preset may stand on another preset: its key `preset` names it. Below all of them are the default
    kinds."""
    rest = dict(values)
    base = rest.pop("preset", None)
    if base is None:
        return merge(_KINDS, rest)
    if not isinstance(base, str):
        presets = ", ".join(preset_names())
        raise ConfigError(f"preset in {where} is {show(base)}; it must be the name of a preset: {presets}")
    return merge(_preset(base), rest)


def _kinds(values: Mapping[str, Any]) -> dict[str, Any]:
    """The kinds alone: a section of another kind replaces one whose kind nobody wrote down."""
    inner = {k: _kinds(v) for k, v in values.items() if isinstance(v, Mapping) and k != "optimizers"}
    kind = {"kind": values["kind"]} if "kind" in values else {}
    return kind | {k: v for k, v in inner.items() if v}


_KINDS = _kinds(Config().to_dict())

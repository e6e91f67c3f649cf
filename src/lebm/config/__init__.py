"""One immutable object says everything about a run: preset < YAML file < --set KEY=VALUE.

The configuration is saved in the run folder and is enough to run it again. An unknown key, a wrong type or a value out
of its limits is an error that names the key and says what would be valid."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from lebm.core.errors import ConfigError
from lebm.core.section import Section, show

if TYPE_CHECKING:
    from lebm.config.schema import Config, OptimizerConfig, Stage, check_learning, json_schema

    Source = str | Path | Mapping[str, Any] | Config

__all__ = [
    "MAX_CONFIG_BYTES", "Config", "OptimizerConfig", "Stage", "check_learning", "differences", "expand", "flatten",
    "from_dict", "json_schema", "merge", "preset_names", "resolve",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Config and the sections. They are imported when they are first needed, and the registered methods and generators
    with them."""
    for room in ("schema", "methods", "generators", "sections"):
        module = importlib.import_module(f"lebm.config.{room}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def resolve(source: Source, settings: Iterable[str] = ()) -> Config:
    """A Config from a preset's name, a YAML file, a run folder, a mapping or a Config, with KEY=VALUE settings on
    top."""
    layers = _layers(source)
    asked: dict[str, Any] = {}
    for setting in settings:
        asked = merge(asked, parse_setting(setting))
    from lebm.config import schema  # only now, so that a mistyped preset is refused before the schema is imported

    values = schema.KINDS
    for layer in (*layers, asked):
        values = merge(values, layer)
    return from_dict(values)


def from_dict(values: Mapping[str, Any]) -> Config:
    """A Config from nested mappings; what they leave out has its default."""
    from lebm.config.schema import Config

    return Config.model_validate(dict(values))


def differences(config: Config) -> dict[str, tuple[Any, Any]]:
    """What differs from the preset that the configuration stands on, or from the defaults, by dotted key.

    Each with the other value and its own. A section of another kind, or one that only one of them has, is a value as a
    whole; None stands for what is absent.
    """
    other = resolve(config.based_on if config.based_on in preset_names() else {})
    return {key: (old, new) for key, old, new in _compare(other.to_dict(), config.to_dict()) if key != "based_on"}


def _compare(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key in {**after, **before}:
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("kind") == new.get("kind"):
            yield from _compare(old, new, f"{prefix}{key}.")
        elif old != new:
            yield prefix + key, old, new


def _layers(source: Source) -> list[dict[str, Any]]:
    """What the source says, after the presets that it stands on."""
    if isinstance(source, Section):
        return [source.to_dict()]
    if isinstance(source, Mapping):
        return _on_preset(expand(source), "the configuration")
    if not isinstance(source, str | Path):
        what = type(source).__name__
        raise ConfigError(f"the configuration is a {what}; give a preset's name, a YAML file, a mapping or a Config")
    path, names = Path(source), preset_names()
    if (path / "config.yaml").is_file():
        path = path / "config.yaml"
    elif str(source) in names or any(name.startswith(f"{source}/") for name in names):
        return _preset(str(source))  # also where a folder or file here has the same name, as data often has
    elif path.is_dir():
        presets = ", ".join(names)
        raise ConfigError(f"{source} is a folder without a config.yaml; name a preset ({presets}) or a YAML file")
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return _on_preset(expand(read_yaml(path)), str(source))
    return _preset(str(source))


def _preset(name: str) -> list[dict[str, Any]]:
    full = full_name(name)
    return [*_on_preset(read_preset(full), full), {"based_on": full}]


def _on_preset(values: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The key `preset` of a file or preset names another preset that it stands on."""
    base = values.pop("preset", None)
    if base is not None and not isinstance(base, str):
        presets = ", ".join(preset_names())
        raise ConfigError(f"preset in {where} is {show(base)}; it must be the name of a preset: {presets}")
    return [*([] if base is None else _preset(base)), values]

"""From presets, files and settings to nested mappings."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from lebm.core.errors import ConfigError
from lebm.core.lookup import did_you_mean
from lebm.core.section import show

MAX_CONFIG_BYTES = 1 << 20
DEFAULT_METHOD = "paper"  # the preset that DATA alone means


def parse_setting(setting: str) -> dict[str, Any]:
    """KEY=VALUE from the command line; the value is YAML."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {setting!r} is not KEY=VALUE; write for example --set training.updates=1000")
    try:
        value = yaml.load(text, Loader) if text.strip() else ""
    except (yaml.YAMLError, ValueError, RecursionError):
        value = text
    return expand({key.strip(): value})


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path} has {size} bytes; a configuration has at most {MAX_CONFIG_BYTES}")
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except FileNotFoundError:
        presets = ", ".join(preset_names())
        raise ConfigError(f"{path} does not exist; name a preset ({presets}) or a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as e:
        place, problem = getattr(e, "problem_mark", None), getattr(e, "problem", None)
        line = f" (line {place.line + 1}: {problem})" if place else ""
        raise ConfigError(f"{path} is not readable as YAML{line}; `lebm presets digits` shows one that is") from None
    if not isinstance(loaded, Mapping):
        what = "nothing" if loaded is None else f"a {type(loaded).__name__}"
        raise ConfigError(f"{path} holds {what}, not a mapping of keys to values; `lebm presets digits` shows one")
    return dict(loaded)


class Loader(yaml.SafeLoader):
    """Plain YAML: no objects (as in SafeLoader), no aliases (a few lines of them unfold to gigabytes), no key twice."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not allowed", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                problem = f"the key {show(key.value)} is there twice or is not a name"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def expand(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"training.updates": 3} -> {"training": {"updates": 3}}."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise ConfigError(f"the key {key!r} of the configuration is not text; keys are names like training.updates")
        nested: Any = expand(value) if isinstance(value, Mapping) else value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        out = merge(out, nested)
    return out


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; what is not a mapping has no entries."""
    out: dict[str, Any] = {}
    for key, value in values.items() if isinstance(values, Mapping) else ():
        out.update(flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return out


def merge(base: Mapping[str, Any], over: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """Nested mappings laid over each other. What is not a mapping is replaced whole, and so is a section of another
    kind."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not _replaces(value, old, section):
            out[key] = merge(old, value, key)
        else:
            out[key] = value
    return out


def _replaces(new: Mapping[str, Any], old: Mapping[str, Any], section: str) -> bool:
    """Kinds of sections have different keys; optimisers of all kinds have the same, so they keep theirs."""
    return section != "optimizers" and "kind" in new and "kind" in old and new["kind"] != old["kind"]


def preset_names() -> list[str]:
    """All presets as DATA/METHOD."""
    folders = (f for f in (resources.files("lebm.config") / "presets").iterdir() if f.is_dir())
    files = ((folder.name, file.name) for folder in folders for file in folder.iterdir())
    return sorted(f"{data}/{file.removesuffix('.yaml')}" for data, file in files if file.endswith(".yaml"))


def full_name(name: str) -> str:
    """The preset that a name stands for: DATA alone is DATA/paper."""
    names = preset_names()
    full = name if "/" in name else f"{name}/{DEFAULT_METHOD}"
    if full not in names:
        short = [n.removesuffix(f"/{DEFAULT_METHOD}") for n in names]
        hint, presets = did_you_mean(name, [*short, *names]), ", ".join(names)
        raise ConfigError(f"no preset is called {name!r}{hint}; there are {presets} (or give a YAML file)")
    return full


def read_preset(name: str) -> dict[str, Any]:
    """What the file of a preset says, by its full name."""
    text = (resources.files("lebm.config") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    return expand(yaml.safe_load(text))

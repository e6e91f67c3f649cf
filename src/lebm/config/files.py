"""From files and settings to nested mappings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, cast

import yaml

from lebm.config.rules import show
from lebm.errors import ConfigError

MAX_CONFIG_BYTES = 1 << 20


def parse_setting(setting: str) -> dict[str, Any]:
    key, eq, text = setting.partition("=")
    if not eq or not key.strip():
        raise ConfigError(f"--set {setting!r} is not KEY=VALUE; write for example --set training.steps=1000")
    try:
        value = yaml.load(text, Loader) if text.strip() else ""
    except (yaml.YAMLError, ValueError, RecursionError):
        value = text
    return expand({key.strip(): value})


def read_yaml(path: Path) -> dict[str, Any]:
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
                raise yaml.MarkedYAMLError(problem=f"the key {show(key.value)} is there twice or is not a name", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


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


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; what is not a mapping has no entries."""
    out: dict[str, Any] = {}
    for key, value in values.items() if isinstance(values, Mapping) else ():
        out.update(flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return out


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


def preset_names() -> list[str]:
    folder = resources.files("lebm") / "presets"
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))


def did_you_mean(given: str, valid: Iterable[Any]) -> str:
    close = difflib.get_close_matches(given, [str(v) for v in valid], n=1)
    return f" (did you mean {close[0]}?)" if close else ""

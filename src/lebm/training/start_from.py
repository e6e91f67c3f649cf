"""training.start_from: a run may begin with the networks of another one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lebm.config import Config, flatten, preset_names
from lebm.core.errors import CheckpointError, ConfigError
from lebm.method import Method
from lebm.run import Run, load

NOT_SHAPING = ("objective", "memory", "l2")  # how a network learns, not what it is


def take_over(method: Method, config: Config, model: nn.Module | None) -> tuple[list[str], dict[str, Any]]:
    """Start with another run's generator, and with those of its other networks that are configured alike.

    Returns the names of those that begin anew, and where the others come from: its name, and all updates behind them.
    """
    source = str(config.training.start_from)
    if isinstance(model, Method):
        raise ConfigError(f"training.start_from is {source} and a model was handed in; give one of the two")
    try:
        old = _load_like(method, source)
    except CheckpointError as e:
        name = "/".join(Path(source).parts[-2:])
        known = name in preset_names() and not Path(source).exists()
        advice = f"; learn it first: lebm train {name}" if known else ""
        raise CheckpointError(f"training.start_from is {source}: {e}{advice}") from None
    _check_generators(method, old, source)
    theirs, new = old.parts(), []
    for name, ours in method.parts().items():
        sections = config.method.SECTIONS.get(name, ())
        alike = name in theirs and all(_shaping(config, s) == _shaping(old.config, s) for s in sections)
        if alike and _shapes(ours) == _shapes(theirs[name]):
            ours.load_state_dict(theirs[name].state_dict())
        else:
            new.append(name)
    before = (Run(source).start or {}).get("updates", 0)
    return new, {"name": old.config.name, "updates": (old.updates or 0) + before}


def _load_like(method: Method, source: str) -> Method:
    """A model with the package's generator, or else with one like this method's."""
    try:
        return load(source, method.device)
    except CheckpointError:
        if not method.user_generator:
            raise
        return load(source, method.device, copy.deepcopy(method.generator))


def _check_generators(method: Method, old: Method, source: str) -> None:
    ours, its = ({"nz": c.nz} | _section(c, "generator") for c in (method.config, old.config))
    begin, kind = f"training.start_from is {source},", "generator.kind"
    if ours[kind] != its[kind]:
        raise ConfigError(f"{begin} a model with {kind} {its[kind]}; this run has {kind} {ours[kind]}")
    for key, value in ours.items():
        if value != its[key]:
            raise ConfigError(f"{begin} which has {key} = {its[key]}; this run has {value}: make them equal")
    if method.generator.facts() != old.generator.facts():
        raise ConfigError(f"{begin} which was learned with another vocabulary; start from a run on the same text")


def _section(config: Config, section: str) -> dict[str, Any]:
    """A section with its dotted keys; what is null has none."""
    return {k: v for k, v in flatten(config.to_dict()).items() if f"{k}.".startswith(f"{section}.")}


def _shaping(config: Config, section: str) -> dict[str, Any]:
    return {k: v for k, v in _section(config, section).items() if k.rsplit(".", 1)[-1] not in NOT_SHAPING}


def _shapes(net: nn.Module) -> dict[str, torch.Size]:
    return {k: v.shape for k, v in net.state_dict().items()}

"""The form of every published number: who measured what, on which data, with which code and command."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from lebm import checkpoint
from lebm.errors import ConfigError

KEYS = ("experiment", "metrics", "per_seed", "protocol", "data", "config", "seed", "steps", "device", "seconds", "code", "command")


def result(**values: Any) -> dict[str, Any]:
    """A result with every key of the schema; what was not given is null, what is not in the schema an error."""
    unknown = set(values) - set(KEYS)
    if unknown:
        raise KeyError(f"not in the schema of a result: {sorted(unknown)}")
    values.setdefault("code", code_version())
    values.setdefault("command", command())
    return {k: values.get(k) for k in KEYS}


def write(path: Path, values: dict[str, Any]) -> None:
    checkpoint.write_atomic(path, json.dumps(_finite(values), indent=1, allow_nan=False) + "\n")


def mean(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """One result of several runs that differ in their seed only: means, `<name>_spread` (standard deviation), each run in `per_seed`."""
    first, steps = summaries[0], [s["steps"] for s in summaries]
    seeds = check_one_experiment([s["config"] for s in summaries])
    if len(set(steps)) > 1:
        raise ConfigError(f"these runs are at {', '.join(map(str, steps))} updates; a mean is taken over runs of one length")
    _check_one_data(summaries)
    check_one_protocol([s["protocol"] for s in summaries])
    metrics: dict[str, float] = {}
    for name in first["metrics"]:
        values = [s["metrics"].get(name) for s in summaries]
        if all(isinstance(v, int | float) for v in values):
            metrics[name], metrics[f"{name}_spread"] = statistics.fmean(values), statistics.stdev(values)
    per_seed = [
        {"seed": seed, "steps": s["steps"], "metrics": s["metrics"], "seconds": s["seconds"]} for seed, s in zip(seeds, summaries, strict=True)
    ]
    return {**first, "metrics": metrics, "per_seed": per_seed, "seconds": round(sum(s["seconds"] for s in summaries), 1)}


# What must agree in the protocols of a metric; where one of these holds several facts, all but what every run finds out for itself.
HOW = (
    *("samples", "images", "reference", "reconstructed", "real", "by", "z", "chain", "chain_steps", "step_size", "features", "seed"),
    *("sentences", "language_model", "estimate", "temperatures", "walkers", "timed", "engine"),
)
FOUND = ("cut_at_generator_length", "mean_words", "stopped", "validation_ppl")


def _check_one_data(summaries: list[dict[str, Any]]) -> None:
    if len({(s["data"] or {}).get("sha256") for s in summaries}) > 1:
        raise ConfigError("these runs were measured on different data (data.sha256); numbers go together only where the data are the same")


def check_one_protocol(protocols: list[dict[str, Any]]) -> None:
    """What a metrics.json has kept from before may have been measured otherwise."""
    for name, first in protocols[0].items():
        for other in (p[name] for p in protocols[1:] if name in p and isinstance(first, dict)):
            for key in HOW:
                a, b = _told(first.get(key)), _told(other.get(key))
                if a != b:
                    raise ConfigError(f"these runs have {name} measured with {key} = {a} and {b}; measure it alike first: --metrics {name}")


def _told(value: Any) -> Any:
    """What was chosen before the measurement."""
    return {k: v for k, v in value.items() if k not in FOUND} if isinstance(value, dict) else value


def check_one_experiment(configs: list[dict[str, Any]]) -> list[int]:
    """The seeds of runs that differ in nothing else."""
    for config in configs[1:]:
        if {**config, "seed": 0} != {**configs[0], "seed": 0}:
            raise ConfigError("these runs are not one experiment: a mean is taken over runs of one configuration that differ in their seed only")
    seeds = [config["seed"] for config in configs]
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"these runs have the seeds {', '.join(map(str, seeds))}; a mean is taken over different seeds")
    return seeds


def check_different(configs: list[dict[str, Any]]) -> None:
    """Whether runs can stand side by side: one data set, a name each."""
    names = [config["experiment"] for config in configs]
    if len(set(names)) < len(names):
        raise ConfigError(f"these runs have the experiments {', '.join(names)}; side by side each needs a name of its own (--set experiment=NAME)")
    if len({config["data"]["name"] for config in configs}) > 1:
        raise ConfigError("these runs learned from different data sets; side by side they share one")


def side_by_side(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """One result of different experiments on the same data: numbers, protocols, configs and updates by experiment."""
    _check_one_data(summaries)
    by_name = lambda key: {s["experiment"]: s[key] for s in summaries}  # noqa: E731
    several = {key: by_name(key) for key in ("metrics", "protocol", "config", "steps")}
    return {**summaries[0], "experiment": "side-by-side", **several, "seconds": round(sum(s["seconds"] for s in summaries), 1)}


def _finite(value: Any) -> Any:
    """NaN and infinity are not JSON; they become null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def code_version() -> str:
    """The commit, marked where the tree differs from it; the sha256 of the source where there is no git."""
    src = Path(__file__).resolve().parent
    try:
        git = lambda *a: subprocess.run(["git", "-C", str(src), *a], capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: E731
        if git("ls-files", "--error-unmatch", str(Path(__file__).resolve())):
            return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", str(src)) else "")
    except (OSError, subprocess.SubprocessError):
        pass
    digest = hashlib.sha256()
    for p in sorted(src.rglob("*")):
        if p.suffix in (".py", ".yaml", ".html", ".css"):
            digest.update(p.relative_to(src).as_posix().encode() + b"\0" + p.read_bytes())
    return f"sha256:{digest.hexdigest()}"


def command() -> str:
    """How the program was called. Of an absolute path only the name is kept: the rest is one machine's own."""
    name = Path(sys.argv[0]).name
    return shlex.join(["lebm" if name in ("lebm", "__main__.py") else name, *(Path(a).name if a.startswith("/") else a for a in sys.argv[1:])])


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"

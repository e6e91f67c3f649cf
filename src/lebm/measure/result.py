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
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lebm.core.errors import ConfigError
from lebm.core.files import write_atomic
from lebm.method import Method

KEYS = (
    *("name", "metrics", "per_seed", "protocol", "data", "config", "seed", "updates", "device", "seconds", "code"),
    "command",
)
SIDE_BY_SIDE = "side-by-side"
# What must agree in the protocols of a metric. Where one of these holds several facts, those in MEASURED may differ.
CHOSEN = (
    *("samples", "images", "reference", "reconstructed", "real", "sampler", "steps", "features", "seed", "engine"),
    *("sentences", "language_model", "proposal", "estimate", "temperatures", "particles", "timed"),
)
MEASURED = ("cut_at_generator_length", "mean_words", "stopped", "validation_ppl")

Result = dict[str, Any]


def result(**values: Any) -> Result:
    """A result with every key of the schema; what was not given is null, what is not in the schema an error."""
    unknown = set(values) - set(KEYS)
    if unknown:
        raise KeyError(f"not in the schema of a result: {sorted(unknown)}")
    values.setdefault("code", code_version())
    values.setdefault("command", command())
    return {k: values.get(k) for k in KEYS}


def of_run(method: Method, started: float, **values: Any) -> Result:
    """A result about a run; `started` is the time.monotonic() at which the measurement began."""
    seconds, device = round(time.monotonic() - started, 1), device_name(method.device)
    facts = {"config": method.config.to_dict(), "updates": method.updates, "device": device, "seconds": seconds}
    return result(**facts, **values)


def write(path: Path, values: Result) -> None:
    write_atomic(path, json.dumps(_finite(values), indent=1, allow_nan=False) + "\n")


def read(path: Path) -> Result:
    """What a JSON file holds; a missing or damaged one counts as empty."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


# --- several runs -----------------------------------------------------------------------------------------------------


def mean(summaries: Sequence[Result]) -> Result:
    """One result of several runs that differ in their seed only: means, `<name>_spread` (standard deviation), each run
    in `per_seed`.
    """
    first, updates = summaries[0], [s["updates"] for s in summaries]
    seeds = check_one_configuration([s["config"] for s in summaries])
    if len(set(updates)) > 1:
        made = ", ".join(map(str, updates))
        raise ConfigError(f"these runs are at {made} updates; a mean is taken over runs of one length")
    seconds = _seconds(summaries)
    check_one_protocol([s["protocol"] for s in summaries])
    metrics: dict[str, float] = {}
    for name in first["metrics"]:
        values = [s["metrics"].get(name) for s in summaries]
        if all(isinstance(v, int | float) for v in values):
            metrics[name], metrics[f"{name}_spread"] = statistics.fmean(values), statistics.stdev(values)
    keys = ("updates", "metrics", "seconds")
    per_seed = [{"seed": n, **{k: s[k] for k in keys}} for n, s in zip(seeds, summaries, strict=True)]
    return {**first, "metrics": metrics, "per_seed": per_seed, "seconds": seconds}


def side_by_side(summaries: Sequence[Result]) -> Result:
    """One result of different runs on the same data: numbers, protocols, configs and updates by name."""
    several = {key: {s["name"]: s[key] for s in summaries} for key in ("metrics", "protocol", "config", "updates")}
    return {**summaries[0], "name": SIDE_BY_SIDE, **several, "seconds": _seconds(summaries)}


def _seconds(summaries: Sequence[Result]) -> float:
    """Of all together, which must be on the same data."""
    if len({(s["data"] or {}).get("sha256") for s in summaries}) > 1:
        raise ConfigError(
            "these runs were measured on different data (data.sha256); only numbers on the same data go together"
        )
    return round(sum(s["seconds"] for s in summaries), 1)


def check_one_protocol(protocols: Sequence[dict[str, Any]]) -> None:
    """Raise where a number that a metrics.json has from before was measured in another way."""
    for name, first in protocols[0].items():
        for other in (p[name] for p in protocols[1:] if name in p and isinstance(first, dict)):
            for key in CHOSEN:
                a, b = _chosen(first.get(key)), _chosen(other.get(key))
                if a != b:
                    raise ConfigError(
                        f"these runs have {name} measured with {key} = {a} and {b}; "
                        f"measure it alike first: --metrics {name}"
                    )


def _chosen(value: Any) -> Any:
    """What was decided before the measurement."""
    return {k: v for k, v in value.items() if k not in MEASURED} if isinstance(value, dict) else value


def check_one_configuration(configs: Sequence[dict[str, Any]]) -> list[int]:
    """The seeds of runs that differ in nothing else."""
    for config in configs[1:]:
        if {**config, "seed": 0} != {**configs[0], "seed": 0}:
            raise ConfigError(
                "these runs have different configurations: a mean is taken over runs that differ in their seed only"
            )
    seeds = [config["seed"] for config in configs]
    if len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"these runs have the seeds {', '.join(map(str, seeds))}; a mean is taken over different seeds"
        )
    return seeds


def check_different(configs: Sequence[dict[str, Any]]) -> None:
    """Raise unless runs can stand side by side: one data set, a name each."""
    names = [config["name"] for config in configs]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"these runs have the names {', '.join(names)}; side by side each needs a name of its own (--set name=NAME)"
        )
    if len({config["data"]["name"] for config in configs}) > 1:
        raise ConfigError("these runs learned from different data sets; side by side they share one")


# --- who measured -----------------------------------------------------------------------------------------------------


def _finite(value: Any) -> Any:
    """NaN and infinity are not JSON; they become null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def code_version() -> str:
    """The commit, marked where the tree differs from it; the sha256 of the source where there is no git."""
    here = Path(__file__).resolve()
    source = here.parent.parent

    def git(*args: str) -> str:
        words = ["git", "-C", str(source), *args]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        if git("ls-files", "--error-unmatch", str(here)):
            changed = git("status", "--porcelain", "--", str(source))
            return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        pass
    digest = hashlib.sha256()
    for p in sorted(source.rglob("*")):
        if p.suffix in (".py", ".yaml", ".html", ".css", ".js"):
            digest.update(p.relative_to(source).as_posix().encode() + b"\0" + p.read_bytes())
    return f"sha256:{digest.hexdigest()}"


def command() -> str:
    """How the program was called. Of an absolute path only the last name stays: the rest belongs to one machine."""
    name = Path(sys.argv[0]).name
    words = (Path(a).name if a.startswith("/") else a for a in sys.argv[1:])
    return shlex.join(["lebm" if name in ("lebm", "__main__.py") else name, *words])


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"

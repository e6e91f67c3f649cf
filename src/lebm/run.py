"""A run is a folder: what lies in it, who may write to it, and how models are saved, loaded and exported."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

try:
    import fcntl
except ImportError:  # not a Unix system
    fcntl = None  # type: ignore[assignment]

from lebm.config import Config, flatten, from_dict, resolve
from lebm.config.build import build
from lebm.core.errors import CheckpointError, ConfigError, DataError
from lebm.core.files import write_atomic
from lebm.core.tensors import load_tensors, save_tensors
from lebm.method import Method
from lebm.prior import StandardNormal
from lebm.training import checkpoint

MAX_LINE = 1 << 20
# What may change when a run goes on: its name, its length, how often it reports, and the code that computes the same.
FREE_ON_RESUME = (
    "name", "based_on", "training.updates", "training.log_every", "training.checkpoint_every", "engine",
)  # fmt: skip


class Run:
    """A run folder, read as it is needed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.model_file = self.path / "model.safetensors"
        self.metrics_file = self.path / "metrics.json"
        self.log_file = self.path / "log.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.figures = self.path / "figures"

    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return self.config_file.is_file()

    @cached_property
    def config(self) -> Config:
        return resolve(self.config_file)

    def put(self, config: Config) -> None:
        """Write config.yaml."""
        write_atomic(self.config_file, config.to_yaml())
        self.config = config

    def method(self, device: str | torch.device = "cpu", generator: nn.Module | None = None) -> Method:
        """The model that the run has learned so far."""
        return load(self.path, device, generator)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of log.jsonl; a last line that a kill cut short is left out."""
        rows = []
        if self.log_file.is_file():
            with open(self.log_file, encoding="utf-8", errors="replace") as f:
                while line := f.readline(MAX_LINE):
                    try:
                        row = json.loads(line)
                    except (ValueError, RecursionError):
                        continue
                    if isinstance(row, dict):
                        rows.append(row)
        return rows

    @property
    def start(self) -> dict[str, Any] | None:
        """{"name", "updates"}: with whose networks the run began, after how many updates; None if they were random."""
        for row in reversed(self.rows()):  # of two starts, the first of which was killed at once, the last one counts
            start = row.get("start")
            if isinstance(start, dict) and isinstance(start.get("name"), str) and isinstance(start.get("updates"), int):
                return {key: start[key] for key in ("name", "updates")}
        return None

    @property
    def metrics(self) -> dict[str, Any] | None:
        """The whole of metrics.json; None where the run was not measured."""
        if not self.metrics_file.is_file():
            return None
        try:
            if self.metrics_file.stat().st_size > checkpoint.MAX_JSON:
                raise ValueError("too large")
            values = json.loads(self.metrics_file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise CheckpointError(f"{self.metrics_file} is not readable; evaluate the run again to write it anew")
        return values


# --- folders --------------------------------------------------------------------------------------------------------


def default_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2, -3, ... where that exists."""
    first = Path("runs") / name
    n, path = 2, first
    while path.exists():
        path, n = first.with_name(f"{first.name}-{n}"), n + 1
    return path


def latest_folder(name: str) -> Path:
    """The run that --resume means where none is named: runs/NAME, if there is no second one."""
    first = Path("runs") / name
    second = first.with_name(f"{first.name}-2")
    if second.exists():
        command = f"lebm train {shlex.quote(str(second))} --resume"
        raise CheckpointError(f"{first} and {second} both exist; say which one to resume, as in: {command}")
    return first


def check_run(path: Path, config: Config, resume: bool) -> Run:
    """The run that may start or go on in this folder with this configuration. Nothing is written."""
    run = Run(path)
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is a file; --run takes a folder")
    if run.exists():
        if not resume:
            raise CheckpointError(f"{path} already holds a run; add --resume to go on with it, or choose another --run")
        _check_same(run, config)
    elif path.is_dir() and any(not p.name.startswith(".tmp-") for p in path.iterdir()):
        raise CheckpointError(f"{path} is not empty and holds no run (no config.yaml); choose another --run")
    return run


def _check_same(run: Run, config: Config) -> None:
    old, new = flatten(run.config.to_dict()), flatten(config.to_dict())
    for key in {**old, **new}:
        if old.get(key) != new.get(key) and key not in FREE_ON_RESUME:
            command = f"lebm train {shlex.quote(str(run.path))} --resume"
            raise CheckpointError(
                f"the run in {run.path} has {key} = {old.get(key)}, not {new.get(key)}; to resume, leave its "
                f"configuration as it is ({command}), or choose another --run"
            )
    done = max(checkpoint.saved_updates(run.checkpoints), default=0)
    if done > config.training.updates:
        raise CheckpointError(
            f"the run in {run.path} has {done} updates already, and training.updates is {config.training.updates}; "
            "give more, or leave it out"
        )


@contextmanager
def exclusive(run: Run) -> Iterator[None]:
    """Make the folder, keep other processes out meanwhile, and remove what a kill left half-written."""
    run.path.mkdir(parents=True, exist_ok=True)
    with _lock(run.path):
        checkpoint.sweep(run.path)
        checkpoint.sweep(run.checkpoints)
        yield


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """A lock on the folder itself: it leaves no file behind and ends with the process, however that ends."""
    if fcntl is None:
        yield
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"another process is training in {path}; wait for it, stop it, or choose another --run"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(fd)


# --- models ---------------------------------------------------------------------------------------------------------


def save(
    method: Method,
    path: str | Path,
    note: Mapping[str, Any] | None = None,
    *,
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """One safetensors file with the configuration inside: enough for `load`; `tensors` replace the state_dict."""
    if method.config is None:
        raise ConfigError(
            "a model that was built from parts has no configuration to be saved with; make it by lebm.build(config)"
        )
    meta: dict[str, Any] = {"config": method.config.to_dict(), "user_generator": method.user_generator}
    if facts := method.generator.facts():
        meta["facts"] = facts
    if method.updates is not None:
        meta["updates"] = method.updates
    save_tensors(Path(path), method.state_dict() if tensors is None else tensors, {**meta, **(note or {})})


def load(run_or_file: str | Path, device: str | torch.device = "cpu", generator: nn.Module | None = None) -> Method:
    """A model from a run folder or a .safetensors file. One with a user's generator needs it again: `generator=`."""
    tensors, meta, path = _read(Path(run_or_file))
    if meta.get("user_generator") and generator is None:
        raise CheckpointError(
            f"{path} was trained with a generator of the user's; pass it: "
            f"lebm.load({str(run_or_file)!r}, generator=...)"
        )
    try:
        config = from_dict(meta["config"])
        method = build(config, generator)
    except ConfigError as e:
        raise CheckpointError(f"{path} carries a configuration that cannot be built: {e}") from None
    try:
        method.generator.set_facts(meta.get("facts", {}))
    except DataError as e:
        raise CheckpointError(f"{path} is damaged: {e}") from None
    restore(method, tensors, path)
    if meta.get("precision", "float32") != "float32":
        for module in method.modules():
            if isinstance(module, StandardNormal):
                module.restore_derived()
    method.updates = meta.get("updates")
    return method.to(device).eval()


def export(run_or_file: str | Path, to: str | Path, precision: str = "float16") -> None:
    """The model alone as one small file, its weights rounded to `precision`; `load` reads it like any other."""
    tensors, meta, path = _read(Path(run_or_file))
    dtype = getattr(torch, precision)
    rounded = {k: t.to(dtype) if t.is_floating_point() else t for k, t in tensors.items()}
    for name, t in rounded.items():
        if not bool(torch.isfinite(t.float()).all()):
            raise CheckpointError(f"{name} of {path} holds numbers that {precision} cannot; export it as float32")
    save_tensors(Path(to), rounded, {**meta, "precision": precision})


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], Path]:
    """Weights, what is noted beside them, and the file they are in."""
    if path.is_dir():
        run = Run(path)
        if not run.exists():
            raise CheckpointError(
                f"{path} is not a run folder (it has no config.yaml); give the folder that `lebm train` made"
            )
        if not run.model_file.is_file():
            raise CheckpointError(
                f"{path} has no model.safetensors yet; let `lebm train {path} --resume` reach its first checkpoint"
            )
        path = run.model_file
    tensors, meta = load_tensors(path)
    if not isinstance(meta.get("config"), dict):
        raise CheckpointError(f"{path} carries no lebm configuration; it is not a model that lebm saved")
    return tensors, meta, path


def restore(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """load_state_dict with a sentence instead of a traceback."""
    mine = module.state_dict()
    wrong = [k for k in mine if k not in tensors or tensors[k].shape != mine[k].shape]
    wrong += [k for k in tensors if k not in mine]
    if wrong:
        raise CheckpointError(f"{path} does not fit this model: {json.dumps(wrong[:3])} differ in name or shape")
    module.load_state_dict(tensors)

"""A run is a folder: what lies in it, who may write to it, and how models are saved, loaded and exported."""

from __future__ import annotations

import itertools
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
from lebm.core.errors import CheckpointError, ConfigError, DataError, UserError
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
        rows: list[Any] = []
        if self.log_file.is_file():
            with open(self.log_file, encoding="utf-8", errors="replace") as f:
                while line := f.readline(MAX_LINE):
                    with suppress(ValueError, RecursionError):
                        rows.append(json.loads(line))
        return [row for row in rows if isinstance(row, dict)]

    @property
    def start(self) -> dict[str, Any] | None:
        """{"name", "updates"}: with whose networks the run began, after how many updates; None if they were random."""
        for row in reversed(self.rows()):  # of two starts, the first of which was killed at once, the last one counts
            match row.get("start"):
                case {"name": str(name), "updates": int(updates)}:
                    return {"name": name, "updates": updates}
        return None

    @property
    def metrics(self) -> dict[str, Any] | None:
        """The whole of metrics.json; None where the run was not measured."""
        if not self.metrics_file.is_file():
            return None
        with suppress(OSError, ValueError, RecursionError):
            if self.metrics_file.stat().st_size <= checkpoint.MAX_JSON:
                values = json.loads(self.metrics_file.read_text(encoding="utf-8"))
                if isinstance(values, dict):
                    return values
        raise CheckpointError(f"{self.metrics_file} is not readable; evaluate the run again to write it anew")


# --- folders --------------------------------------------------------------------------------------------------------


def default_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2, -3, ... where that exists."""
    first = Path("runs") / name
    others = (first.with_name(f"{first.name}-{n}") for n in itertools.count(2))
    return next(path for path in itertools.chain([first], others) if not path.exists())


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
            advice = "to go on with it, pass resume=True (on the command line --resume), or choose another run folder"
            raise CheckpointError(f"{path} already holds a run; {advice}")
        _check_same(run, config)
        _check_checkpoints(run)
    elif path.is_dir() and any(not p.name.startswith(".tmp-") for p in path.iterdir()):
        raise CheckpointError(f"{path} is not empty and holds no run (no config.yaml); choose another --run")
    return run


def _check_checkpoints(run: Run) -> None:
    """A run that has learned but lost its checkpoints is refused: to begin anew would overwrite its model and its
    log."""
    learned = run.model_file.exists() or any(row.get("step", 0) for row in run.rows())
    if learned and not checkpoint.saved_updates(run.checkpoints):
        raise CheckpointError(
            f"the run in {run.path} has no checkpoint to go on from, and beginning anew would overwrite its model and "
            "log; "
            f"start another run with --set training.start_from={shlex.quote(str(run.path))}, or choose another --run"
        )


def _check_same(run: Run, config: Config) -> None:
    old, new = flatten(run.config.to_dict()), flatten(config.to_dict())
    begin, command = f"the run in {run.path} has", f"lebm train {shlex.quote(str(run.path))} --resume"
    for key in {**old, **new}:
        if old.get(key) != new.get(key) and key not in FREE_ON_RESUME:
            advice = f"to resume, leave its configuration as it is ({command}), or choose another --run"
            raise CheckpointError(f"{begin} {key} = {old.get(key)}, not {new.get(key)}; {advice}")
    done, most = max(checkpoint.saved_updates(run.checkpoints), default=0), config.training.updates
    if done > most:
        advice = "give more, or leave it out"
        raise CheckpointError(f"{begin} {done} updates already, and training.updates is {most}; {advice}")


@contextmanager
def exclusive(run: Run) -> Iterator[None]:
    """Make the folder, keep other processes out meanwhile, and remove what a kill left half-written.

    The lock is on the folder itself: it leaves no file behind and ends with the process, however that ends."""
    run.path.mkdir(parents=True, exist_ok=True)
    fd = os.open(run.path, os.O_RDONLY) if fcntl else None
    try:
        if fd is not None:
            _lock(fd, run.path)
        checkpoint.sweep(run.path)
        checkpoint.sweep(run.checkpoints)
        yield
    finally:
        if fd is not None:
            os.close(fd)


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        advice = "wait for it, stop it, or choose another --run"
        raise CheckpointError(f"another process is training in {path}; {advice}") from None
    except OSError:  # a file system without locks
        pass


# --- models ---------------------------------------------------------------------------------------------------------


def save(
    method: Method, path: str | Path, note: dict[str, Any] | None = None, *, tensors: Mapping[str, Tensor] | None = None
) -> None:
    """One safetensors file with the configuration inside: enough for `load`; `tensors` replace the state_dict."""
    if method.config is None:
        raise ConfigError(
            "a model that was built from parts has no configuration to be saved with; make it by lebm.build(config)"
        )
    optional = {"facts": method.generator.facts() or None, "updates": method.updates}
    meta = {"config": method.config.to_dict(), "user_generator": method.user_generator}
    meta |= {key: value for key, value in optional.items() if value is not None}
    save_tensors(Path(path), method.state_dict() if tensors is None else tensors, {**meta, **(note or {})})


def load(run_or_file: str | Path, device: str | torch.device = "cpu", generator: nn.Module | None = None) -> Method:
    """A model from a run folder or a .safetensors file. One with a user's generator needs it again: `generator=`."""
    if isinstance(device, nn.Module):
        call = f"lebm.load({str(run_or_file)!r}, generator=...)"
        raise UserError(f"the device is a {type(device).__name__}; pass a generator by its name: {call}")
    tensors, meta, path = _read(Path(run_or_file))
    if meta.get("user_generator") and generator is None:
        call = f"lebm.load({str(run_or_file)!r}, generator=...)"
        raise CheckpointError(f"{path} was trained with a generator of the user's; pass it: {call}")
    try:
        method = build(from_dict(meta["config"]), generator)
        method.generator.set_facts(meta.get("facts", {}))
    except ConfigError as e:
        raise CheckpointError(f"{path} carries a configuration that cannot be built: {e}") from None
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
        run, path = path, Run(path).model_file
        if not Run(run).exists():
            what = "is not a run folder (it has no config.yaml); give the folder that `lebm train` made"
            raise CheckpointError(f"{run} {what}")
        if not path.is_file():
            what = f"has no model.safetensors yet; let `lebm train {run} --resume` reach its first checkpoint"
            raise CheckpointError(f"{run} {what}")
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

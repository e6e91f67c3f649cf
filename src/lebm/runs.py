"""A run is a folder. Who may start or continue one there, and where the pieces lie."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a Unix system
    fcntl = None  # type: ignore[assignment]

from lebm import checkpoint
from lebm.config import Config, flatten, merge, resolve
from lebm.errors import CheckpointError

HANDED_IN = "handed-in"  # data.name of a run whose rows were given to lebm.train
# What may change when a run goes on: its name, how long, how often it speaks, and which code computes the same numbers.
FREE_ON_RESUME = ("experiment", "training.steps", "training.log_every", "training.checkpoint_every", "engine")


@dataclass(frozen=True)
class Run:
    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model_file(self) -> Path:
        return self.path / "model.safetensors"

    def config(self) -> Config:
        return resolve(self.config_file)

    def put(self, config: Config) -> None:
        checkpoint.write_atomic(self.config_file, config.to_yaml())


def default_folder(experiment: str) -> Path:
    """runs/NAME, or runs/NAME-2, -3, … where that is taken."""
    first = Path("runs") / experiment
    n, path = 2, first
    while path.exists():
        path, n = first.with_name(f"{first.name}-{n}"), n + 1
    return path


def latest_folder(experiment: str) -> Path:
    """The run that --resume means where none is named: runs/NAME, if there is no second one."""
    first = Path("runs") / experiment
    second = first.with_name(f"{first.name}-2")
    if second.exists():
        raise CheckpointError(f"{first} and {second} both exist; say which to resume: lebm train {shlex.quote(str(second))} --resume")
    return first


def check_run(path: Path, config: Config, resume: bool) -> tuple[Run, Config]:
    """Whether a run may start or go on in this folder, and the config that counts there. Writes nothing."""
    run = Run(path)
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is a file; --run takes a folder")
    if run.config_file.is_file():
        if not resume:
            raise CheckpointError(f"{path} already holds a run; add --resume to go on with it or choose another --run")
        config = _continued(run.config(), config, path)
        if (done := max(checkpoint.steps(run.checkpoints), default=0)) > config.training.steps:
            raise CheckpointError(
                f"the run in {path} has {done} updates already; training.steps is {config.training.steps}: give more, or leave it out"
            )
    elif path.is_dir() and any(not p.name.startswith(".tmp-") for p in path.iterdir()):
        raise CheckpointError(f"{path} is not empty and holds no run (no config.yaml); choose another --run")
    return run, config


@contextmanager
def started(run: Run) -> Iterator[None]:
    """Make the folder, keep other processes out meanwhile, and remove what a kill left half-written."""
    run.path.mkdir(parents=True, exist_ok=True)
    with _alone(run.path):
        checkpoint.sweep(run.path)
        checkpoint.sweep(run.checkpoints)
        yield


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """A lock on the folder itself: it leaves no file behind and ends with the process, however that ends."""
    if fcntl is None:
        yield
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"another process is training in {path}; wait for it, stop it, or choose another --run") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(fd)


def _continued(old: Config, new: Config, path: Path) -> Config:
    a, b = flatten(old.to_dict()), flatten(new.to_dict())
    changed = [k for k in a if a[k] != b[k] and k not in FREE_ON_RESUME]
    if changed:
        k = changed[0]
        raise CheckpointError(
            f"the run in {path} has {k} = {a[k]}, not {b[k]}; to resume keep its config (lebm train {shlex.quote(str(path))} --resume), "
            "or choose another --run"
        )
    return resolve(merge(old.to_dict(), new.to_dict()))

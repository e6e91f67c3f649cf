"""lebm.train: from a configuration, data and a model to a learned one. The updates themselves are in loop.py."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lebm import data as datasets
from lebm import modalities
from lebm.config import Config, check_learning, resolve
from lebm.config.build import build
from lebm.core.device import fitting_threads, pick_device
from lebm.core.distributed import rank, world_size
from lebm.core.errors import CheckpointError, ConfigError, DataError
from lebm.core.progress import SILENT, Reporter
from lebm.data import HANDED_IN, Batches
from lebm.generators import WrappedGenerator
from lebm.method import Method
from lebm.run import check_run, exclusive
from lebm.training import checkpoint, engine
from lebm.training.loop import Loop
from lebm.training.stages import Stages
from lebm.training.start_from import take_over
from lebm.training.state import TrainingState, set_weights
from lebm.training.user_generator import check_generator


def train(
    config: str | Path | Mapping[str, Any] | Config,
    data: np.ndarray | Tensor | Sequence[str] | None = None,
    model: nn.Module | None = None,
    *,
    run: str | Path | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    reporter: Reporter = SILENT,
    on_epoch: Callable[[int, Method], None] | None = None,
) -> Method:
    """Learn a model and return it, ready to sample.

    `config` is a preset's name, a YAML file, a mapping or a Config. `data` are training rows instead of those that the
    configuration names: images as uint8 or floats in [-1, 1], a list of sentences for a text generator, or whatever the
    generator takes. `model` is a generator (a module with `log_prob(x, z)` and `decode(z)`), or a Method to go on with.
    With `run`, the log, checkpoints and weights are written to that folder. `on_epoch(epoch, method)` is called after
    every epoch, the first being 1.
    """
    config = resolve(config)
    if data is not None:  # so that nobody goes on with the run, or measures it, on another data set by mistake
        config = config.with_values(**{"data.name": HANDED_IN, "data.path": None})
    where = pick_device(device)
    if run is None and resume:
        raise CheckpointError("resume needs the run folder to go on with; give run=...")
    folder = None if run is None else check_run(Path(run), config, resume)
    fresh = folder is None or not checkpoint.saved_updates(folder.checkpoints)
    if fresh:
        check_learning(config)
    method = make_method(config, model).to(where)
    rows = training_rows(config, method, data, data_dir, reporter)
    check_generator(method, config.nz, rows)
    new, start = take_over(method, config, model) if fresh and config.training.start_from else ([], None)
    state = TrainingState(config, method, where, capturable=engine.wanted(config, where))
    stages = Stages(config, method, state.optimizers)
    batches = make_batches(config, method, rows, where)
    flops = method.generator.flops(config.training.batch)
    # A mistake that is found above leaves nothing behind; only now is the folder made.
    with exclusive(folder) if folder else nullcontext(), fitting_threads(flops, where):
        if folder:
            check_run(folder.path, config, resume)  # again, now that no other process can begin a run here
            state.resume_from(folder)
            folder.put(config)
        loop = Loop(state, stages, batches, folder, max_seconds, reporter, data_dir, on_epoch)
        if start:
            loop.note(start=start)  # where evaluations and reports look for it
        if new:
            loop.warn(f"not like those of {config.training.start_from}, and so begun anew: {', '.join(new)}")
        loop.run()
    if method is model and state.ema:  # a model that was handed in goes on to have the weights themselves
        method = copy.deepcopy(method)
    set_weights(method, state.ema)
    method.updates = state.updates
    return method.eval()


def make_method(config: Config, model: nn.Module | None) -> Method:
    """The method that the configuration describes, around `model` where that is a generator; or `model` itself."""
    if not isinstance(model, Method):
        return build(config, model)
    if model.config is None:
        raise ConfigError(
            "the model was built from parts and has no configuration to train by; make it by lebm.build(config), "
            "or call lebm.method.update in a loop"
        )
    for part in ("nz", "method", *(() if model.user_generator else ("generator",))):
        mine, asked = getattr(model.config, part), getattr(config, part)
        if mine != asked:
            raise ConfigError(f"the model has {part} = {mine}, the configuration {asked}; make them equal")
    model.config, model.engine = config, None  # an engine for sampling may hold copies of the weights
    return model


def training_rows(config: Config, method: Method, data: Any, data_dir: str | Path | None, reporter: Reporter) -> Tensor:
    """The rows that were handed in, or those that the configuration names, as they are stored."""
    generator = method.generator
    if data is not None:
        return modalities.of(generator.modality).training_rows(data, generator)
    if isinstance(generator, WrappedGenerator) and generator.shape is None:
        raise DataError(f"the generator {type(generator.module).__name__} needs its data too; pass data=...")
    with reporter.progress("reading data") as update:
        splits = datasets.load(config, data_dir, update)
    generator.set_facts(splits.facts)
    for note in splits.notes:
        reporter.say(f"note: {note}")
    return splits.train


def make_batches(config: Config, method: Method, rows: Tensor, device: torch.device) -> Batches:
    """Batches of stored rows as the configuration asks for them, this process's part of each."""
    modality, data = modalities.of(method.generator.modality), config.data
    where = {"device": device, "rank": rank(), "ranks": world_size()}
    return modality.batches(rows, config.training.batch, config.seed, data.flip, data.shift, **where)

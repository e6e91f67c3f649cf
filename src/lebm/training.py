"""lebm.train: from a configuration, data and a model to a learned one; the updates themselves are in loop.py."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from lebm import checkpoint, fast
from lebm.config import Config, check_learning, flatten, preset_names, resolve
from lebm.data import Batches, SentenceBatches, VariedBatches, data_root
from lebm.data import load as load_data
from lebm.errors import CheckpointError, ConfigError, DataError
from lebm.generators import TextGenerator
from lebm.generators.image import to_pixels
from lebm.log import progress_bar, read, started_from
from lebm.loop import Loop
from lebm.model import LatentEBM, load
from lebm.runs import HANDED_IN, check_run, started
from lebm.state import TrainingState
from lebm.words import from_sentences


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
    console: Console | None = None,
    watch: Callable[[int, LatentEBM], None] | None = None,
) -> LatentEBM:
    """Learn a model by Algorithm 1 and return it, ready to sample.

    `config` is a preset's name, a YAML file, a mapping or a Config; `data` your own training rows instead of config.data
    (images as uint8 or floats in [-1, 1], a list of sentences for a text generator, or whatever yours takes); `model` your own generator (`log_prob(x, z)`
    and `decode(z)`) or a LatentEBM to go on with. With `run` the log, checkpoints and weights are kept in that folder.
    `watch(epoch, model)` sees the model after every epoch, the first being 1.
    """
    config = resolve(config)
    if data is not None:  # so that nobody goes on with, or measures, the run on another set by mistake
        config = config.with_values(**{"data.name": HANDED_IN, "data.path": None})
    where = pick_device(device)
    folder = None
    if run is not None:
        folder, config = check_run(Path(run), config, resume)
    elif resume:
        raise CheckpointError("resume needs the run folder to go on with; give run=...")
    fresh = not (folder and checkpoint.steps(folder.checkpoints))
    if fresh:
        check_learning(config)
    net = _build(config, model).to(where)
    rows = _rows(config, net, data, data_dir, console)
    new: list[str] = []
    start: dict[str, Any] | None = None
    if config.training.start_from and fresh:
        if isinstance(model, LatentEBM):
            raise ConfigError(f"training.start_from is {config.training.start_from} and a model was handed in; give one of the two")
        new, start = take_over(net, config.training.start_from)
    state = TrainingState(config, net, where, capturable=fast.wanted(config, where))
    batches = make_batches(config, rows, where)
    with started(folder) if folder else nullcontext(), fitting_threads(net):  # only now: what fails before leaves nothing behind
        if folder is not None:
            state.resume_from(folder)
            folder.put(config)
        loop = Loop(state, batches, folder, max_seconds, console, data_dir, watch)
        if start and loop.log:
            loop.log.row({"step": 0, "start": start})
        if new:
            loop.warn(f"not like those of {config.training.start_from}, and so begun anew: {', '.join(new)}")
        loop.run()
    return state.exported().eval()


@contextmanager
def fitting_threads(model: LatentEBM) -> Iterator[None]:
    """One thread for a tiny model on a CPU: its products are too short to share, and on a busy machine two threads waiting
    for each other at every one of them are ten times slower than one."""
    before = torch.get_num_threads()
    flops = getattr(model.generator, "flops", None)
    tiny = model.device.type == "cpu" and flops is not None and flops(model.config.training.batch) < 1e8
    try:
        if tiny:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def pick_device(name: str) -> torch.device:
    if name not in ("auto", "cpu", "cuda") and not name.startswith("cuda:"):
        raise ConfigError(f"device is {name!r}; it must be auto, cpu or cuda")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but PyTorch sees no CUDA device; use --device cpu or auto")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def _build(config: Config, model: nn.Module | None) -> LatentEBM:
    if isinstance(model, LatentEBM):
        for part in ("nz", "prior", "draw", "encoder", "flow", *(() if model.own_generator else ("generator",))):
            mine, asked = getattr(model.config, part), getattr(config, part)
            if mine != asked:
                raise ConfigError(f"the model has {part} = {mine}, the configuration {asked}; make them equal")
        model.config = config
        return model.train()
    return LatentEBM(config, model)


def make_batches(config: Config, rows: Tensor, device: torch.device) -> Batches:
    common = (rows, config.training.batch, config.seed, device)
    if config.data.flip or config.data.shift:
        return VariedBatches(*common, flip=config.data.flip, shift=config.data.shift)
    return (SentenceBatches if config.generator.kind == "text" and rows.ndim == 2 else Batches)(*common)


def take_over(model: LatentEBM, source: str) -> tuple[list[str], dict[str, Any]]:
    """Start with the networks of another run: its generator, and of the others those that are configured alike; a flow with its prior only,
    on whose u it lives. Returns the names of those that begin anew, and what they were: whose, after how many updates in all."""
    try:
        old = _load_like(model, source)
    except CheckpointError as e:
        name = Path(source).name
        first = f"; learn it first: lebm train {name}" if name in preset_names() and not Path(source).exists() else ""
        raise CheckpointError(f"training.start_from is {source}: {e}{first}") from None
    mine, its = (flatten({"nz": c.nz, "generator": c.to_dict()["generator"]}) for c in (model.config, old.config))
    if mine["generator.kind"] != its["generator.kind"]:
        raise ConfigError(
            f"training.start_from is {source}, a model of kind {its['generator.kind']}; this run learns one of kind {mine['generator.kind']}"
        )
    for key in mine:
        if mine[key] != its[key]:
            raise ConfigError(f"training.start_from is {source}, which has {key} = {its[key]}; this run has {mine[key]}: make them equal")
    facts: dict[str, Any] = getattr(old.generator, "facts", dict)()
    if facts != getattr(model.generator, "facts", dict)():
        raise ConfigError(f"training.start_from is {source}, which was learned from other words; start from a run on the same text")
    sections = {"generator": (), "prior": ("prior",), "encoder": ("encoder",), "flow": ("prior", "flow")}
    theirs, new = old.networks(), []
    for name, ours in model.networks().items():
        same = name in theirs and all(_shaping(model.config, k) == _shaping(old.config, k) for k in sections[name])
        if same and shapes(ours) == shapes(theirs[name]):
            ours.load_state_dict(theirs[name].state_dict())
        else:
            new.append(name)
    before = (started_from(read(Path(source) / "log.jsonl")) or {}).get("updates", 0)
    return new, {"experiment": old.config.experiment, "updates": (old.step or 0) + before}


def _load_like(model: LatentEBM, source: str) -> LatentEBM:
    """A model of the package's generator, or else of one like this model's own."""
    try:
        return load(source, model.device)
    except CheckpointError:
        if not model.own_generator:
            raise
        return load(source, model.device, copy.deepcopy(model.generator))


def _shaping(config: Config, section: str) -> dict[str, Any]:
    """What a section says of its network, not of how it is to learn."""
    return {k: v for k, v in config.to_dict()[section].items() if k not in ("teach", "memory")}


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    return {k: v.shape for k, v in net.state_dict().items()}


def _rows(config: Config, net: LatentEBM, data: Any, data_dir: Any, console: Console | None) -> Tensor:
    """Training rows: images as uint8, anything else as it is."""
    if data is None:
        if net.own_generator and not hasattr(net.generator, "as_input"):
            shape = getattr(net.generator, "shape", None)
            if shape is None:
                raise DataError("a generator of your own needs its data too; pass data=...")
        refuse_handed_in(config)
        with progress_bar(console, "reading data") as update:
            splits = load_data(config, data_root(data_dir), update)
        take = getattr(net.generator, "take", None)
        if take is not None:
            take(splits.facts)
        for note in splits.notes if console else ():
            console.print(f"note: {note}", soft_wrap=True, markup=False, highlight=False)  # type: ignore[union-attr]
        return splits.train
    if isinstance(data, list | tuple) and isinstance(net.generator, TextGenerator) and all(isinstance(s, str) for s in data):
        net.generator.take({"vocabulary": from_sentences(data, net.generator.config.vocabulary).words})
        return net.as_input(list(data))
    if not isinstance(data, np.ndarray | Tensor) or (isinstance(data, np.ndarray) and data.dtype.kind not in "biuf") or data.ndim < 1:
        what = f"an array of {data.dtype} with shape {tuple(data.shape)}" if isinstance(data, np.ndarray | Tensor) else f"a {type(data).__name__}"
        wanted = "a list of sentences" if isinstance(net.generator, TextGenerator) else "a numpy array or tensor of numbers, a row for every example"
        raise DataError(f"the data is {what}; give {wanted}")
    x = net.as_input(data)
    return to_pixels(x) if not net.own_generator and torch.as_tensor(data).dtype == torch.uint8 else x


def refuse_handed_in(config: Config) -> None:
    if config.data.name == HANDED_IN:
        raise DataError(
            "this run learned from data that was handed to lebm.train, which is not kept; hand it in again (lebm.train(..., data=...)), or work on the run with lebm.load"
        )

"""The loop around learn_step: batch -> step -> log -> checkpoint. Resumes bit for bit, stops by itself when it diverges."""

from __future__ import annotations

import copy
import math
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from lebm import checkpoint, fast, health
from lebm.config import Config, flatten, resolve
from lebm.data import Batches, SentenceBatches, VariedBatches, data_root
from lebm.data import load as load_data
from lebm.errors import CheckpointError, ConfigError, DataError, Diverged, Interrupted
from lebm.generators import TextGenerator
from lebm.generators.image import as_floats, to_pixels
from lebm.learn import Step, describe, reference_step
from lebm.log import Log, progress_bar
from lebm.model import LatentEBM, load
from lebm.prior import REFIT
from lebm.runs import Run, check_run, started
from lebm.state import TrainingState
from lebm.words import from_sentences

LOST = "p_0 stays where it is: the covariance of the posterior draws has no root; lower learning.prior_rate and look at z_sq_pos in the log"
HANDED_IN = "handed-in"  # data.name of a run whose rows were given to lebm.train


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
    net = _build(config, model).to(where)
    rows, new = _rows(config, net, data, data_dir, console), []
    if config.training.start_from and not (folder and checkpoint.steps(folder.checkpoints)):
        if isinstance(model, LatentEBM):
            raise ConfigError(f"training.start_from is {config.training.start_from} and a model was handed in; give one of the two")
        new = take_over(net, config.training.start_from)
    state = TrainingState(config, net, where, capturable=fast.wanted(config, where))
    batches = make_batches(config, rows, where)
    with started(folder) if folder else nullcontext(), fitting_threads(net):  # only now: what fails before leaves nothing behind
        if folder is not None:
            state.resume_from(folder)
            folder.put(config)
        loop = Loop(state, batches, folder, max_seconds, console, data_dir, watch)
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


def take_over(model: LatentEBM, source: str) -> list[str]:
    """Start with the networks of another run: its generator, and of the others those that are configured alike; a flow with its prior only,
    on whose u it lives. Returns the names of those that begin anew."""
    try:
        old = load(source, model.device, copy.deepcopy(model.generator) if model.own_generator else None)
    except CheckpointError as e:
        raise CheckpointError(f"training.start_from is {source}: {e}") from None
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
    return new


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


class Loop:
    """Steps until the configured number, the time limit, a signal or divergence; always leaves a good checkpoint."""

    def __init__(
        self,
        state: TrainingState,
        batches: Batches,
        run: Run | None,
        max_seconds: float | None,
        console: Console | None,
        data_dir: Any = None,
        watch: Callable[[int, LatentEBM], None] | None = None,
    ) -> None:
        self.data_dir, self.watch = data_dir, watch
        self.state, self.batches, self.run_folder, self.max_seconds, self.console = state, batches, run, max_seconds, console
        self.config = state.config.training
        self.log = Log(run.path, state.step) if run else None
        self.warned: set[str] = set()

    def run(self) -> None:
        state, run = self.state, self.run_folder
        try:
            if run:
                state.save(run)  # the start; and where a kill fell between a checkpoint and its model.safetensors
            with stop_on_signals() as stop, progress_bar(self.console, "training") as update:
                signum = self._steps(stop, update)
        finally:
            if self.log:
                self.log.close()
        if signum:
            raise Interrupted(f"stopped at step {state.step} of {self.config.steps} by {signal.Signals(signum).name}{self._how_to_go_on()}", signum)
        if state.step < self.config.steps:
            self._say(f"time is up at step {state.step} of {self.config.steps}{self._how_to_go_on()}")

    def _steps(self, stop: dict[str, int], update: Callable[..., None]) -> int:
        state, config = self.state, self.config
        engine: Any = choose_engine(state, self.batches(state.step), self.warn)
        seen: Any = None
        first, alone = state.step, state.config.draw.alone
        if alone >= config.steps > first:
            self._say(
                f"note: draw.alone is {alone} and this run ends after {config.steps} updates: the encoder learns alone to the end, no chain refines its z"
            )
        started, before, marked = time.monotonic(), state.seconds, (time.monotonic(), state.step)
        saved = state.step
        while state.step < config.steps:
            if state.step == alone > first:
                engine = seen = None  # and their graph's memory, before the next one takes some
                engine = choose_engine(state, self.batches(state.step), self.warn)  # from here on a chain refines
            rows = self.batches(state.step)
            epoch = self.batches.epoch(state.step)
            state.set_rates(epoch)
            seen = engine(rows)
            state.average()
            state.step += 1
            now = time.monotonic()
            late = self.max_seconds is not None and now - started > self.max_seconds
            last = late or bool(stop) or state.step == config.steps
            checkpoint_now = last or state.step % config.checkpoint_every == 0
            if state.step % config.log_every == 0 or checkpoint_now:
                row = {"step": state.step, "epoch": epoch, **describe(seen, state.model, as_floats(rows))}
                if health.reads_words(state.model):
                    row |= health.explained(state.model, seen, rows)
                    row |= health.active_units(state.model, self.batches.images) if checkpoint_now else {}
                now = time.monotonic()  # describe waited for the device
                row["steps_per_second"] = (state.step - marked[1]) / max(now - marked[0], 1e-9)
                state.seconds = before + now - started
                row["seconds"] = round(state.seconds, 3)
                marked = (now, state.step)
                self._watch(row, checkpoint_now)
                update(state.step, config.steps, note=_note(row))
            if state.step % REFIT == 0:
                state.model.prior.refit()  # after the log, which is of the p_0 that this step saw
            if self.watch and state.step % self.batches.per_epoch == 0:  # before the checkpoint: what a kill loses is seen again on resume
                self.watch(state.step // self.batches.per_epoch, state.exported())
            if checkpoint_now and self.run_folder and state.step > saved:
                state.save(self.run_folder)
                saved = state.step
            if last:
                break
        return stop.get("signum", 0)

    def _watch(self, row: dict[str, Any], weights_too: bool) -> None:
        """Log the row; stop on divergence; say once when a chain is frozen or collapsed."""
        config = self.state.config
        trouble = health.diverged(row, config) or (health.exploded(self.state.largest_weight()) if weights_too else None)
        if self.log:
            self.log.row({k: v for k, v in row.items() if not (isinstance(v, float) and not math.isfinite(v))})
            if trouble:
                self.log.row({"step": row["step"], "warning": f"diverged: {trouble}"})
        if trouble:
            good = checkpoint.steps(self.run_folder.checkpoints) if self.run_folder else []
            kept = f"; the last good checkpoint is step {good[-1]} in {self.run_folder.path}" if self.run_folder and good else ""
            raise Diverged(f"diverged at step {row['step']}: {trouble}{kept}")
        lost, chains = [] if self.state.model.prior.follows() else [LOST], config.chains_at(row["step"] - 1)
        for warning in (*health.frozen(row, chains, self.batches.batch), *health.collapsed(row, chains), *lost):
            key = warning.split(":")[0]
            if key not in self.warned:
                self.warned.add(key)
                self.warn(warning)

    def warn(self, words: str) -> None:
        """On the screen, and in the log, where the report finds it."""
        if self.log:
            self.log.row({"step": self.state.step, "warning": words})
        self._say(f"warning at step {self.state.step}: {words}")

    def _say(self, words: str) -> None:
        if self.console:
            self.console.print(words, soft_wrap=True, markup=False, highlight=False)

    def _how_to_go_on(self) -> str:
        if self.run_folder is None:
            return "; nothing was kept, since no run folder was given"
        if self.state.model.own_generator or self.state.config.data.name == HANDED_IN:
            return f"; saved in {self.run_folder.path}. Go on with the same call of lebm.train and resume=True"
        where = f" --data-dir {shlex.quote(str(self.data_dir))}" if self.data_dir else ""
        return f"; saved. Go on with: lebm train {shlex.quote(str(self.run_folder.path))} --resume{where}"


def choose_engine(state: TrainingState, example: Tensor, warn: Callable[[str], None]) -> Callable[[Tensor], Step]:
    """rows -> Step: the code that computes the next learning steps. The reference is learn_step itself; on CUDA a faster one stands in,
    made for rows like the example."""
    config, chains = state.config, state.config.chains_at(state.step)
    if fast.wanted(config, state.model.device):
        try:
            return fast.make_engine(state.model, state.optimizer, state.rng, example, warn, chains)
        except fast.Unavailable as e:
            warn(f"the fast engine is not available, learning goes on with the reference ({e})")
    if config.precision == "bfloat16":
        warn("precision bfloat16 needs the fast engine, which needs CUDA; this run computes in float32")
    return reference_step(state.model, state.optimizer, chains, config.learning, state.rng)


def _note(row: Mapping[str, Any]) -> str:
    error = f"mse {row['mse']:.4f} " if "mse" in row else f"log p(x|z) {row['log_px']:.1f} "
    if "z_share" in row:
        error += f"z explains {row['z_share']:.1%} "
    return f"{error}gap {row['gap']:+.3f} {row['steps_per_second']:.1f} steps/s"


@contextmanager
def stop_on_signals() -> Iterator[dict[str, int]]:
    """Ctrl-C and SIGTERM set a flag that the loop reads after the step in hand. A second Ctrl-C stops at once."""
    flag: dict[str, int] = {}

    def note(signum: int, frame: Any) -> None:
        if flag:
            raise KeyboardInterrupt
        flag["signum"] = signum

    previous = {}
    try:
        for s in (signal.SIGINT, signal.SIGTERM):
            previous[s] = signal.signal(s, note)
    except ValueError:  # not the main thread: the caller's signals stay as they are
        pass
    try:
        yield flag
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler)

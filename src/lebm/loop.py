"""The loop around learn_step: batch -> step -> log -> checkpoint. Resumes bit for bit, stops by itself when it diverges."""

from __future__ import annotations

import math
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from torch import Tensor

from lebm import checkpoint, fast, health
from lebm.data import Batches
from lebm.errors import Diverged, Interrupted
from lebm.generators.image import as_floats
from lebm.learn import Step, describe, reference_step
from lebm.log import Log, progress_bar
from lebm.model import LatentEBM
from lebm.prior import REFIT
from lebm.runs import HANDED_IN, Run
from lebm.state import TrainingState

LOST = "p_0 stays where it is: the covariance of the posterior draws has no root; lower learning.prior_rate and look at z_sq_pos in the log"


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
        if first == 0 and (words := health.short(state.config)):
            self._say(f"note: {words}")
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
    return reference_step(state.model, state.optimizer, chains, state.rng)


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

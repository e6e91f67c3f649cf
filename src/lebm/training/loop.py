"""The loop around `update`: batch, update, log, checkpoint. It resumes bit for bit, and stops where it diverges."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lebm.core.errors import Diverged, Interrupted
from lebm.core.progress import Reporter
from lebm.core.progress import Update as Show
from lebm.data import HANDED_IN, Batches
from lebm.method import Check, Method
from lebm.run import Run
from lebm.training import checkpoint, engine, health
from lebm.training.stages import Stages
from lebm.training.state import TrainingState


class Log:
    """Appends rows to log.jsonl and the same numbers to TensorBoard. Rows after `resumed_at` are cut off."""

    def __init__(self, run: Run, resumed_at: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter  # importing it takes a second

        rows = [row for row in run.rows() if isinstance(row.get("step"), int) and row["step"] <= resumed_at]
        temporary = run.path / ".tmp-log.jsonl"
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
        temporary.replace(run.log_file)
        self._file = open(run.log_file, "a", encoding="utf-8")
        self._board = SummaryWriter(str(run.path), purge_step=resumed_at + 1 if resumed_at else None)

    def row(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float):
                self._board.add_scalar(key, value, row["step"])

    def close(self) -> None:
        with ExitStack() as stack:  # on a full disk each of these may fail; the others are done nevertheless
            stack.callback(self._board.close)
            stack.callback(self._file.close)
            self._file.flush()
            os.fsync(self._file.fileno())


@dataclass
class Loop:
    """Updates until the configured number, the time limit, a signal or divergence. A good checkpoint always remains."""

    state: TrainingState
    stages: Stages
    batches: Batches
    folder: Run | None
    max_seconds: float | None
    reporter: Reporter
    data_dir: str | Path | None
    on_epoch: Callable[[int, Method], None] | None
    warned: set[str] = field(default_factory=set)
    _update: engine.Update | None = None

    def __post_init__(self) -> None:
        self.config, self.total = self.state.config.training, self.state.config.training.updates
        self.log = Log(self.folder, self.state.updates) if self.folder else None

    def run(self) -> None:
        state = self.state
        try:
            if state.updates >= self.total:
                self._say_all_is_done()
                self._finish()
            self._save()  # the start; and where a kill fell between a checkpoint and its model.safetensors
            with stop_on_signals() as stop, self.reporter.progress("training") as show:
                self._learn(stop, show)
        finally:
            self.stages.leave()
            if self.log:
                self.log.close()
        done = f"update {state.updates} of {self.total}"
        if "signum" in stop:
            name = signal.Signals(stop["signum"]).name
            raise Interrupted(f"stopped at {done} by {name}{self._how_to_go_on()}", stop["signum"])
        if state.updates < self.total:
            self.reporter.say(f"time is up at {done}{self._how_to_go_on()}")

    def _learn(self, stop: Mapping[str, int], show: Show) -> None:
        state, config = self.state, self.config
        clock, begin = _Clock(state), time.monotonic()
        if config.stages and config.stages[-1].until >= self.total > state.updates:
            self.reporter.say(
                f"note: training.stages last to update {config.stages[-1].until} and this run ends after {self.total}: "
                "the plain configuration is never learned with"
            )
        last = False
        while state.updates < self.total and not last:
            epoch = self.batches.epoch(state.updates)
            self._update_once(epoch)
            late = self.max_seconds is not None and time.monotonic() - begin > self.max_seconds
            last = late or bool(stop) or state.updates == self.total
            checkpoint_now = last or state.updates % config.checkpoint_every == 0
            if checkpoint_now or state.updates % config.log_every == 0:
                row = self._row(epoch, checkpoint_now)
                row |= clock.read()  # now that the row's numbers have waited for the device
                self._inspect(row, checkpoint_now)
                show(state.updates, self.total, note=_note(row))
            state.method.between_updates(state.updates)  # after the log, which is of what this update used
            self._end_of_epoch()
            if state.updates == self.total:
                self._finish()
            if checkpoint_now:
                self._save()

    def _update_once(self, epoch: int) -> None:
        state, stages = self.state, self.stages
        rows, index = self.batches(state.updates), self.batches.indices(state.updates).to(self.batches.device)
        if stages.enter(state.updates):
            self._update = None  # with the memory of its captured graph, before the next one takes some
        stages.prepare(state.updates, epoch)
        if self._update is None:
            self._update = engine.choose(stages.current, state.method, stages.moving, state.rng, rows, index, self.warn)
        self._update(rows, index)
        state.average()
        state.updates += 1

    def _end_of_epoch(self) -> None:
        """Before the checkpoint: what a kill loses is shown again after a resume."""
        if self.on_epoch and self.state.updates % self.batches.per_epoch == 0:
            with self.stages.plain(), self.state.averaged() as method:
                self.on_epoch(self.state.updates // self.batches.per_epoch, method)

    def _finish(self) -> None:
        with self.stages.plain(), self.state.averaged() as method:
            method.finish(self.batches.rows)

    def _save(self) -> None:
        if self.folder:
            with self.stages.plain():
                self.state.save(self.folder)

    # --- what is reported -----------------------------------------------------------------------------------------

    def _row(self, epoch: int, weights_too: bool) -> dict[str, Any]:
        method = self.state.method
        numbers = health.fetch({**method.scalars(), **health.gradient_norms(method)})
        row = {"step": self.state.updates, "epoch": epoch, **numbers}
        if weights_too and method.generator.autoregressive:
            with self.stages.plain():
                row |= health.active_units(method, self.batches.rows)
        return row

    def _inspect(self, row: dict[str, Any], weights_too: bool) -> None:
        """Log the row, stop where learning has diverged, and warn once of everything else that is not healthy."""
        checks, judged = self.state.method.checks(), {**row, "batch": self.batches.batch}
        trouble = next((words for check in checks if check.fatal and (words := check.test(judged))), None)
        if trouble is None and weights_too:
            trouble = health.exploded(health.largest_weights(self.state.method))
        trouble = trouble or health.not_finite(row, list(self.stages.moving))
        self.note(**{k: v for k, v in row.items() if not (isinstance(v, float) and not math.isfinite(v))})
        if trouble:
            self.note(warning=f"diverged: {trouble}")
            run, saved = self.folder, ""
            if run and (good := checkpoint.saved_updates(run.checkpoints)):
                saved = f"; the last good checkpoint is update {good[-1]} in {run.path}"
            raise Diverged(f"diverged at update {self.state.updates}: {trouble}{saved}")
        self._warn_of(judged, checks)

    def _warn_of(self, row: dict[str, Any], checks: Sequence[Check]) -> None:
        """Each warning is given once."""
        said = {check.name: words for check in checks if not check.fatal and (words := check.test(row))}
        said |= {f"no_gradient_{name}": words for name, words in self._without_gradient(row).items()}
        for name in [name for name in said if name not in self.warned]:
            self.warned.add(name)
            self.warn(said[name])

    def _without_gradient(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Of the networks that move now. A stage's coefficients may weigh a part of the loss by 0 for a while, and so
        hold a network without its optimiser being told; nothing is said then."""
        stage = self.state.config.stage_at(self.state.updates - 1)
        if stage and stage.coefficients:
            return {}
        optimizers = self.stages.current.optimizers
        return health.without_gradient(row, {name: optimizers[name].rate for name in self.stages.moving})

    def warn(self, words: str) -> None:
        """To the person, and in the log, where the report looks for it."""
        self.note(warning=words)
        self.reporter.say(f"warning at update {self.state.updates}: {words}")

    def note(self, **row: Any) -> None:
        """A row of the log, where there is one."""
        if self.log:
            self.log.row({"step": self.state.updates, **row})

    def _say_all_is_done(self) -> None:
        if self.state.updates:
            more = "to go on, raise training.updates (--set training.updates=...)"
            self.reporter.say(f"all {self.total} updates are made; {more}")

    def _how_to_go_on(self) -> str:
        if self.folder is None:
            return "; nothing was saved, since no run folder was given"
        if self.state.method.user_generator or self.state.config.data.name == HANDED_IN:
            return f"; saved in {self.folder.path}. Go on with the same call of lebm.train and resume=True"
        where = f" --data-dir {shlex.quote(str(self.data_dir))}" if self.data_dir else ""
        return f"; saved. Go on with: lebm train {shlex.quote(str(self.folder.path))} --resume{where}"


class _Clock:
    """Seconds of learning, in all and since the last row."""

    def __init__(self, state: TrainingState) -> None:
        self.state, self.zero = state, time.monotonic() - state.seconds
        self.marked = (state.seconds, state.updates)

    def read(self) -> dict[str, float]:
        """How fast learning goes, and how long it has taken; the state takes the latter along."""
        (then, before), now, updates = self.marked, time.monotonic() - self.zero, self.state.updates
        self.marked, self.state.seconds = (now, updates), now
        return {"updates_per_second": (updates - before) / max(now - then, 1e-9), "seconds": round(now, 3)}


def _note(row: Mapping[str, Any]) -> str:
    """A row beside the progress bar."""
    formats = {"mse": "mse {:.4f}", "log_px": "log p(x|z) {:.1f}", "z_share": "z explains {:.1%}", "gap": "gap {:+.3f}"}
    shown = [key for key in formats if key in row and (key != "log_px" or "mse" not in row)]
    return " ".join([*(formats[key].format(row[key]) for key in shown), f"{row['updates_per_second']:.1f} updates/s"])


@contextmanager
def stop_on_signals() -> Iterator[dict[str, int]]:
    """Ctrl-C and SIGTERM set a flag that the loop reads after the update in hand. A second Ctrl-C stops at once."""
    flag: dict[str, int] = {}

    def note(signum: int, frame: Any) -> None:
        if flag:
            raise KeyboardInterrupt
        flag["signum"] = signum

    # Outside the main thread the caller's signals stay as they are.
    signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    previous = {s: signal.signal(s, note) for s in signals}
    try:
        yield flag
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler)

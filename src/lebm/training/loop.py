"""The loop around `update`: batch, update, log, checkpoint. It resumes bit for bit, and stops where it diverges."""

from __future__ import annotations

import math
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lebm.core.errors import Diverged, Interrupted
from lebm.core.progress import SILENT, Reporter
from lebm.core.progress import Update as Show
from lebm.data import HANDED_IN, Batches
from lebm.method import Method
from lebm.run import Run
from lebm.training import checkpoint, engine, health
from lebm.training.log import Log
from lebm.training.stages import Stages
from lebm.training.state import TrainingState


class Loop:
    """Updates until the configured number, the time limit, a signal or divergence. A good checkpoint always remains."""

    def __init__(
        self,
        state: TrainingState,
        stages: Stages,
        batches: Batches,
        run: Run | None = None,
        *,
        max_seconds: float | None = None,
        reporter: Reporter = SILENT,
        data_dir: str | Path | None = None,
        on_epoch: Callable[[int, Method], None] | None = None,
    ) -> None:
        self.state, self.stages, self.batches, self.folder = state, stages, batches, run
        self.max_seconds, self.reporter, self.data_dir, self.on_epoch = max_seconds, reporter, data_dir, on_epoch
        self.config, self.total = state.config.training, state.config.training.updates
        self.log = Log(run.path, state.updates) if run else None
        self.warned: set[str] = set()
        self._update: engine.Update | None = None

    def run(self) -> None:
        state = self.state
        try:
            if state.updates >= self.total:
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
        clock = _Clock(state)
        self._note_stages()
        while state.updates < self.total:
            epoch = self.batches.epoch(state.updates)
            self._update_once(epoch)
            late = self.max_seconds is not None and clock.passed() > self.max_seconds
            last = late or bool(stop) or state.updates == self.total
            checkpoint_now = last or state.updates % config.checkpoint_every == 0
            if checkpoint_now or state.updates % config.log_every == 0:
                row = self._row(epoch, checkpoint_now)
                row |= clock.read()  # now that the row's numbers have waited for the device
                self._inspect(row, checkpoint_now)
                show(state.updates, self.total, note=_note(row))
            state.method.between_updates(state.updates)  # after the log, which is of what this update used
            self._end_of_epoch()
            if checkpoint_now:
                if state.updates == self.total:
                    self._finish()
                self._save()
            if last:
                break

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
        method = self.state.method
        checks, judged = method.checks(), {**row, "batch": self.batches.batch}
        fatal = (check.test(judged) for check in checks if check.fatal)
        trouble = next((words for words in fatal if words), None)
        if trouble is None and weights_too:
            trouble = health.exploded(health.largest_weights(method))
        if self.log:
            self.log.row({k: v for k, v in row.items() if not (isinstance(v, float) and not math.isfinite(v))})
        if trouble:
            self._stop(trouble)
        for check in checks:
            if check.name not in self.warned and not check.fatal and (words := check.test(judged)):
                self.warned.add(check.name)
                self.warn(words)

    def _stop(self, trouble: str) -> None:
        if self.log:
            self.log.row({"step": self.state.updates, "warning": f"diverged: {trouble}"})
        good = checkpoint.saved_updates(self.folder.checkpoints) if self.folder else []
        saved = f"; the last good checkpoint is update {good[-1]} in {self.folder.path}" if self.folder and good else ""
        raise Diverged(f"diverged at update {self.state.updates}: {trouble}{saved}")

    def warn(self, words: str) -> None:
        """To the person, and in the log, where the report looks for it."""
        if self.log:
            self.log.row({"step": self.state.updates, "warning": words})
        self.reporter.say(f"warning at update {self.state.updates}: {words}")

    def _note_stages(self) -> None:
        stages = self.config.stages
        if stages and stages[-1].until >= self.total > self.state.updates:
            self.reporter.say(
                f"note: training.stages last to update {stages[-1].until} and this run ends after {self.total}: "
                "the plain configuration is never learned with"
            )

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
        self.state, self.before, self.begin = state, state.seconds, time.monotonic()
        self.marked = (self.begin, state.updates)

    def passed(self) -> float:
        return time.monotonic() - self.begin

    def read(self) -> dict[str, float]:
        """How fast learning goes, and how long it has taken; the state takes the latter along."""
        now, (then, updates) = time.monotonic(), self.marked
        self.marked = (now, self.state.updates)
        self.state.seconds = self.before + now - self.begin
        speed = (self.state.updates - updates) / max(now - then, 1e-9)
        return {"updates_per_second": speed, "seconds": round(self.state.seconds, 3)}


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

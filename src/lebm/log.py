"""What a run says while it works: log.jsonl, TensorBoard files beside it, and a progress bar with an estimate."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

MAX_LINE = 1 << 20


class Log:
    """Appends rows to log.jsonl and the same numbers to TensorBoard; cuts off what came after the step resumed from."""

    def __init__(self, run: Path, resumed_at: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import: only where a run is written

        path = run / "log.jsonl"
        kept = [row for row in read(path) if isinstance(row.get("step"), int) and row["step"] <= resumed_at]
        temporary = path.with_name(".tmp-log.jsonl")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
        temporary.replace(path)
        self._file = open(path, "a", encoding="utf-8")
        self._board = SummaryWriter(str(run), purge_step=resumed_at + 1 if resumed_at else None)

    def row(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float):
                self._board.add_scalar(key, value, row["step"])

    def close(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:  # on a full disk each of these may fail; the other still closes
            try:
                self._file.close()
            finally:
                self._board.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a log.jsonl; a last line cut short by a kill is left out."""
    rows = []
    if path.is_file():
        with open(path, encoding="utf-8", errors="replace") as f:
            while line := f.readline(MAX_LINE):
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    rows.append(row)
    return rows


def started_from(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Whose networks the run of a log began with, after how many updates in all; None where it began with random ones."""
    for row in reversed(rows):  # of two starts, the first of which was killed at once, the one that it went on from
        start = row.get("start")
        if isinstance(start, dict) and isinstance(start.get("experiment"), str) and isinstance(start.get("updates"), int):
            return {key: start[key] for key in ("experiment", "updates")}
    return None


@contextmanager
def progress_bar(console: Console | None, what: str) -> Iterator[Any]:
    """Yields update(done, total, note=""): a bar with elapsed and remaining time on a terminal, now and then a line in a file."""
    if console is None:
        yield lambda done, total, note="": None
        return
    if not console.is_terminal:
        yield _Lines(console, what)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=False) as bar:
        task = bar.add_task(what, total=None, note="")
        try:
            yield lambda done, total, note="": bar.update(task, completed=done, total=total, **({"note": note} if note else {}))
        finally:
            bar.update(task, visible=bar.tasks[0].total is not None)  # over before it could count anything: nothing to show


class _Lines:
    """Progress where the output is no terminal: a line every 30 seconds, and one at the end."""

    def __init__(self, console: Console, what: str, every: float = 30) -> None:
        self.console, self.what, self.every = console, what, every
        self.started = self.last = time.monotonic()
        self.first: int | None = None

    def __call__(self, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        first = self.first = done if self.first is None else self.first
        if done < total and now - self.last < self.every:
            return
        self.last = now
        left = (now - self.started) * (total - done) / (done - first) if done > first else 0
        estimate = f", about {left:.0f} s left" if left else ""
        self.console.print(f"{self.what} {done}/{total}{estimate}  {note}".rstrip(), soft_wrap=True, markup=False, highlight=False)

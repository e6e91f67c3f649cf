"""What long work reports while it runs. The base class is silent; the command line has one that shows bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

Progress = Callable[[int, int], None]  # called with (done, total)


class Update(Protocol):
    def __call__(self, done: int, total: int, note: str = "") -> None: ...


def ignore(done: int, total: int, note: str = "") -> None:
    """An update that nobody watches."""


class Reporter:
    """Where messages and progress go; this one is silent."""

    def say(self, words: str) -> None:
        """Show one line to a person."""

    @contextmanager
    def progress(self, what: str) -> Iterator[Update]:
        """A context that gives `update(done, total, note="")` for work called `what`."""
        yield ignore


SILENT = Reporter()

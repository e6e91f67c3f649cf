"""What the commands share: options, messages, progress, and how tables and files go out.

Only typer is imported here. rich, torch and the package's rooms are imported where they are used, so that `lebm --help`
and a mistyped preset answer at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from lebm.core.errors import UserError
from lebm.core.progress import Reporter, Update

if TYPE_CHECKING:
    from rich.console import Console

    from lebm.method import Method
    from lebm.sampler import SamplerSpec

HELP = "The latent space energy-based prior model: learn, sample, reconstruct, score."
app = typer.Typer(help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


Device = StrEnum("Device", ["auto", "cpu", "cuda"])
Split = StrEnum("Split", ["train", "test", "validation"])
Precision = StrEnum("Precision", ["float32", "float16", "bfloat16"])

PRIOR_STARTS, POSTERIOR_STARTS = "noise, flow, replay", "noise, encoder"
Text = str | None
Count = int | None
Where = Path | None
Several = list[Path] | None


def target(option: str, words: str, *endings: str) -> Any:
    """An option that names a file to write, which is checked before the work."""

    def check(path: Where) -> Where:
        if path is not None:
            check_target(option, path, *endings)
        return path

    return Option(option, help=words, callback=check)


RunArg = Annotated[Path, Argument(metavar="RUN", help="A run folder or a model.safetensors file.")]
FolderArg = Annotated[Path, Argument(metavar="RUN", help="A run folder.")]
Inputs = Annotated[Several, Option("--input", "-i", help="Images, a folder, or one .npy/.npz file; or text files.")]
# So that --input takes what a shell makes of *.png; and sentences for a text model.
More = Annotated[list[str] | None, Argument(metavar="[SENTENCE]...", help="Sentences in quotes, for a text model.")]
Beam = Annotated[Count, Option(min=0, max=100, help="Text: search by a beam so wide; 1 takes the likeliest words.")]
Compute = Annotated[Device, Option(help="Where to compute.")]
DataDir = Annotated[Where, Option(help="The data folder; otherwise the environment variable LEBM_DATA.")]
PriorStart = Annotated[Text, Option("--start", metavar="NAME", help=f"Where chains start: {PRIOR_STARTS}.")]
PosteriorStart = Annotated[Text, Option("--start", metavar="NAME", help=f"Where chains start: {POSTERIOR_STARTS}.")]
PriorSteps = Annotated[Count, Option("--steps", min=0, help="Steps; default K0; 0 from noise shows the base p_0.")]
PosteriorSteps = Annotated[Count, Option("--steps", min=0, help="Langevin steps; default K1.")]
Result = Annotated[Where, target("--result", "Also write the result to this file, e.g. results/NAME.json.", ".json")]
Settings = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Change one value; may be repeated.")]
Seed = Annotated[int, Option(min=0, max=2**63 - 1, help="Seed of the noise.")]


# --- messages ---------------------------------------------------------------------------------------------------------


def stderr() -> Console:
    """Where progress and messages go; results go to files and to standard output."""
    from rich.console import Console

    return Console(stderr=True)


def say(words: str) -> None:
    """A line on standard error as it is: paths unbroken, brackets untouched, no `:train:` turned into a picture."""
    stderr().print(words, soft_wrap=True, markup=False, highlight=False, emoji=False)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output; its first column is never broken."""
    from rich.console import Console
    from rich.table import Column, Table

    first, *rest = head
    table = Table(Column(first, no_wrap=True), *rest)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def print_metrics(summary: dict[str, Any]) -> None:
    rows = []
    for key, value in summary["metrics"].items():
        for name, number in value.items() if isinstance(value, dict) else [("", value)]:
            if number is not None:  # what could not be measured has no row
                rows.append([f"{key} {name}".strip(), f"{number:.4f}"])
    print_table(["metric", "value"], rows)


class Terminal(Reporter):
    """Messages on standard error; progress as a bar with an estimate, or as lines where that is no terminal."""

    def say(self, words: str) -> None:
        say(words)

    @contextmanager
    def progress(self, what: str) -> Iterator[Update]:
        console = stderr()
        if not console.is_terminal:
            yield Lines(what)
            return
        from rich import progress as bars

        times = bars.TimeElapsedColumn(), "left", bars.TimeRemainingColumn()
        shown = "{task.description}", bars.BarColumn(), bars.MofNCompleteColumn(), *times, "{task.fields[note]}"
        with bars.Progress(*shown, console=console) as bar:
            task = bar.add_task(what, total=None, note="")

            def update(done: int, total: int, note: str = "") -> None:
                fields: dict[str, Any] = {"note": note} if note else {}
                bar.update(task, completed=done, total=total, **fields)

            try:
                yield update
            finally:  # what was over before it could count anything has nothing to show
                bar.update(task, visible=bar.tasks[0].total is not None)


class Lines:
    """Progress where the output is no terminal: a line every 30 seconds, and one at the end."""

    def __init__(self, what: str) -> None:
        self.what, self.first = what, -1
        self.started = self.last = time.monotonic()

    def __call__(self, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        if self.first < 0:
            self.first = done
        if done == total or now - self.last >= 30:
            left = (now - self.started) * (total - done) / (done - self.first) if done > self.first else 0
            estimate = f", about {left:.0f} s left" if left else ""
            say(f"{self.what} {done}/{total}{estimate}  {note}".rstrip())
            self.last = now


REPORTER = Terminal()


# --- targets ----------------------------------------------------------------------------------------------------------


def check_target(option: str, path: Path, *endings: str) -> None:
    """Raise before the work rather than after it: for a wrong ending, or a place where nothing can be written."""
    if endings and path.suffix.lower() not in endings:
        raise UserError(f"{option} {path} ends in {path.suffix or 'nothing'}; it must end in {' or '.join(endings)}")
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder; give a file")
    above = next(p for p in path.absolute().parents if p.exists())  # missing folders are made
    if not (above.is_dir() and os.access(above, os.W_OK)):
        what = "not writable" if above.is_dir() else "a file"
        raise UserError(f"{option} {path} cannot be written: {above} is {what}")


def write_result(path: Path | None, summary: dict[str, Any]) -> None:
    from lebm.measure import result

    if path is not None:
        result.write(path, summary)


# --- models -----------------------------------------------------------------------------------------------------------


def resources(device: Device, data_dir: Where) -> dict[str, Any]:
    """Where to compute, where the data lies and where messages go, as functions that work for long take them."""
    return {"device": device.value, "data_dir": data_dir, "reporter": REPORTER}


def load_model(run: Path, device: Device) -> Method:
    from lebm.core.device import pick_device
    from lebm.run import load

    return load(run, pick_device(device.value))


def how_drawn(method: Method, spec: SamplerSpec, samples: int = 1) -> str:
    """How z was drawn, where that is neither usual for the run nor for the paper."""
    return "" if is_usual(method, spec) else f"; z: {spec.in_words(samples)}"


def is_usual(method: Method, spec: SamplerSpec) -> bool:
    """Whether a sampler is the run's own and starts as the paper's."""
    return spec.start == "noise" and spec.base == "N(0, I)" and spec == method.choose(spec.target)

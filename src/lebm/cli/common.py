"""What the commands share: options, messages, and how numbers and files go out."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from lebm import checkpoint, results
from lebm.errors import UserError
from lebm.methods.ways import WAYS

app = typer.Typer(
    help="The latent space energy-based prior model: learn, sample, reconstruct, score.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
console = Console(stderr=True)  # progress and messages; results go to files and to standard output
out = Console()


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Split(StrEnum):
    train = "train"
    test = "test"
    validation = "validation"


class Precision(StrEnum):
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


RunArg = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder or a model.safetensors file.")]
FolderArg = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
InputOpt = Annotated[
    list[Path] | None, typer.Option("--input", "-i", help="Image files, a folder, or one .npy/.npz file; of a text model, text files.")
]
# So that --input takes what a shell makes of *.png; and sentences for a text model.
MoreArg = Annotated[list[str] | None, typer.Argument(metavar="[SENTENCE]...", help="Sentences in quotes, for a text model.")]
BeamOpt = Annotated[int, typer.Option(min=0, max=100, help="Text: search the likeliest sentence by a beam so wide; 1 takes the likeliest words.")]
DeviceOpt = Annotated[Device, typer.Option(help="Where to compute.")]
DataOpt = Annotated[Path | None, typer.Option(help="The data folder; otherwise the environment variable LEBM_DATA.")]
PriorByOpt = Annotated[str | None, typer.Option("--by", metavar="WAY", help=f"How to draw z: {', '.join(WAYS['prior'])}; default the run's own way.")]
PosteriorByOpt = Annotated[
    str | None, typer.Option("--by", metavar="WAY", help=f"How to draw z: {', '.join(WAYS['posterior'])}; default the run's own way.")
]
ResultOpt = Annotated[Path | None, typer.Option(help="Also write the result to this file, e.g. results/NAME.json.")]
SettingsOpt = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value of the configuration; may be repeated.")]
SeedOpt = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the noise.")]


def say(words: str) -> None:
    """A line for people on standard error, as it is: paths unbroken, brackets untouched, no `:train:` turned into a picture."""
    console.print(words, soft_wrap=True, markup=False, highlight=False, emoji=False)


def check_target(option: str, path: Path, *endings: str) -> None:
    """Said before the work rather than after it: a wrong ending, or a place where nothing can be written."""
    if path.suffix.lower() not in endings:
        raise UserError(f"{option} {path} ends in {path.suffix or 'nothing'}; it must end in {' or '.join(endings)}")
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder; give a file")
    above = next(p for p in path.absolute().parents if p.exists())  # missing folders are made
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise UserError(f"{option} {path} cannot be written: {above} is {'not writable' if above.is_dir() else 'a file'}")


def check_result(path: Path | None) -> None:
    if path is not None:
        check_target("--result", path, ".json")


def write_result(path: Path | None, summary: dict[str, Any]) -> None:
    if path is not None:
        results.write(path, summary)


def save_csv(to: Path, head: list[str], rows: Iterable[Any]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    checkpoint.write_atomic(to, text.getvalue())


def save_npz(path: Path, **arrays: Any) -> None:
    def write(temporary: Path) -> None:
        with open(temporary, "wb") as f:
            np.savez_compressed(f, **arrays)

    checkpoint.write_with(path, write)


def print_metrics(summary: dict[str, Any]) -> None:
    table = Table("metric", "value")
    for key, value in summary["metrics"].items():
        for name, number in value.items() if isinstance(value, dict) else [("", value)]:
            table.add_row(f"{key} {name}".strip(), "none" if number is None else f"{number:.4f}")
    out.print(table)

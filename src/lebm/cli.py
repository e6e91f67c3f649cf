"""The command line. Commands are small functions; nothing imports this module."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from lebm import checkpoint, figures, results
from lebm.config import preset_names, resolve
from lebm.data import DATASETS, data_root, read_inputs
from lebm.errors import Diverged, Interrupted, UserError
from lebm.evaluate import evaluate as evaluate_run
from lebm.generators.image import to_pixels
from lebm.log import progress_bar
from lebm.model import LatentEBM, load
from lebm.runs import default_folder
from lebm.training import as_floats, pick_device
from lebm.training import train as train_model
from lebm.version import __version__

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


RunArg = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder or a model.safetensors file.")]
InputOpt = Annotated[list[Path], typer.Option("--input", "-i", help="Image files, a folder, or one .npy/.npz file; may be repeated.")]
DeviceOpt = Annotated[Device, typer.Option(help="Where to compute.")]
DataOpt = Annotated[Path | None, typer.Option(help="The data folder; otherwise the environment variable LEBM_DATA.")]
SeedOpt = Annotated[int, typer.Option(min=0, help="Seed of the noise.")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        print(f"lebm {__version__}")
        raise typer.Exit


@app.command()
def train(
    source: Annotated[
        str, typer.Argument(metavar="PRESET_OR_YAML", help="A preset (see `lebm presets`), a YAML file, or a run folder to go on with.")
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value of the configuration; may be repeated.")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="The run folder; default runs/EXPERIMENT.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint of the run folder.")] = False,
    max_seconds: Annotated[float | None, typer.Option(min=0, help="Stop, saved, after so many seconds.")] = None,
    device: DeviceOpt = Device.auto,
    seed: Annotated[int | None, typer.Option(min=0, help="The run's seed; the same as --set seed=N.")] = None,
    data_dir: DataOpt = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and the model's size, then stop.")] = False,
) -> None:
    """Learn a model by Algorithm 1 of the paper."""
    config = resolve(source, [*(settings or []), *([f"seed={seed}"] if seed is not None else [])])
    if dry_run:
        print(config.to_yaml(), end="")
        model = LatentEBM(config)
        counts = {name: sum(p.numel() for p in net.parameters()) for name, net in (("prior", model.prior), ("generator", model.generator))}
        console.print(f"parameters: prior {counts['prior']:,}, generator {counts['generator']:,}; device {pick_device(device.value)}")
        return
    if run is None:
        run = Path(source) if resume and Path(source).is_dir() else default_folder(config.experiment)
    console.print(Syntax(config.to_yaml(), "yaml", background_color="default"))
    console.print(f"run folder: {run}")
    train_model(config, run=run, resume=resume, max_seconds=max_seconds, device=device.value, data_dir=data_dir, console=console)
    console.print(f"done. Look at it: lebm evaluate {run}   or   lebm sample {run} -n 64 --out samples.png")


@app.command()
def demo(
    run: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/demo"),
    device: DeviceOpt = Device.cpu,
) -> None:
    """Train on the embedded 8x8 digits and make a report: the whole method in a few minutes on a CPU."""
    console.print("Learning a latent energy-based prior on scikit-learn's 8x8 digits: about a minute on two cores.")
    config = resolve("digits")
    train_model(config, run=run, resume=run.exists(), device=device.value, console=console)
    summary = evaluate_run(run, device=device.value, console=console)
    _print_metrics(summary)
    m = summary["metrics"]
    out.print(
        f"Samples from the learned prior lie {m['frechet_gaussian'] / m['frechet']:.1f} times closer to the data than samples "
        "from N(0, I) through the same generator: this is what the energy-based prior buys."
    )
    print(f"report: {(run / 'report.html').resolve()}")


@app.command()
def sample(
    run: RunArg,
    to: Annotated[Path, typer.Option("--out", help="FILE.png (a grid) or FILE.npz (floats in [-1, 1] under `x`).")],
    n: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 64,
    steps: Annotated[int | None, typer.Option(min=0, help="Langevin steps; default the training's K0. 0 shows N(0, I).")] = None,
    seed: SeedOpt = 0,
    device: DeviceOpt = Device.auto,
) -> None:
    """Draw from the learned prior and generate."""
    _check_ending(to, ".png", ".npz")
    model = load(run, pick_device(device.value))
    with progress_bar(console, "sampling") as update:
        x = model.sample(n, seed, steps, update)
    if to.suffix == ".png":
        figures.save(figures.grid(to_pixels(x)), to)
    else:
        _save_npz(to, x=x.numpy())
    console.print(f"{n} samples in {to}")


@app.command()
def reconstruct(
    run: RunArg,
    inputs: InputOpt,
    to: Annotated[Path, typer.Option("--out", help="FILE.png (pairs) or FILE.npz (`x_hat`, `z`, `mse`).")],
    steps: Annotated[int | None, typer.Option(min=0, help="Langevin steps; default the training's K1.")] = None,
    seed: SeedOpt = 0,
    device: DeviceOpt = Device.auto,
) -> None:
    """Infer z for every image and generate it again."""
    _check_ending(to, ".png", ".npz")
    model, rows, _ = _model_and_inputs(run, inputs, device)
    x = as_floats(rows)
    with progress_bar(console, "inferring") as update:
        z = model.infer(x, seed, steps, progress=update)
    x_hat = model.decode(z).cpu()
    mse = (x - x_hat).square().flatten(1).mean(1)
    if to.suffix == ".png":
        figures.save(figures.pairs(to_pixels(x), to_pixels(x_hat)), to)
    else:
        _save_npz(to, x_hat=x_hat.numpy(), z=z.numpy(), mse=mse.numpy())
    console.print(f"{len(x)} reconstructions in {to}; mean squared error {float(mse.mean()):.4f} per pixel in [-1, 1]")


@app.command()
def score(
    run: RunArg,
    inputs: InputOpt,
    to: Annotated[Path, typer.Option("--out", help="scores.csv: index, file, score.")],
    sort: Annotated[bool, typer.Option("--sort", help="Most anomalous first, instead of input order.")] = False,
    steps: Annotated[int | None, typer.Option(min=0, help="Langevin steps; default the training's K1.")] = None,
    seed: SeedOpt = 0,
    device: DeviceOpt = Device.auto,
) -> None:
    """Score every image: minus the unnormalised log-posterior at an inferred z; higher is more anomalous."""
    _check_ending(to, ".csv")
    model, rows, names = _model_and_inputs(run, inputs, device)
    with progress_bar(console, "scoring") as update:
        scores = model.anomaly_score(as_floats(rows), seed, steps, update).tolist()
    table = sorted(enumerate(scores), key=lambda row: -row[1]) if sort else list(enumerate(scores))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["index", "file", "score"])
    writer.writerows([i, names[i], f"{value:.6g}"] for i, value in table)
    checkpoint.write_atomic(to, text.getvalue())
    console.print(f"{len(scores)} scores in {to}")


@app.command()
def evaluate(
    run: RunArg,
    metrics: Annotated[str | None, typer.Option(help="Comma-separated; default all that fit the run.")] = None,
    samples: Annotated[int, typer.Option(min=2, help="How many to draw for a Fréchet distance.")] = 10_000,
    seed: SeedOpt = 0,
    device: DeviceOpt = Device.auto,
    data_dir: DataOpt = None,
    result: Annotated[Path | None, typer.Option(help="Also write the result to this file, e.g. results/NAME.json.")] = None,
) -> None:
    """Measure a run: metrics.json, figures and report.html in its folder."""
    chosen = tuple(m.strip() for m in metrics.split(",") if m.strip()) if metrics else None
    summary = evaluate_run(run, chosen, samples=samples, seed=seed, device=device.value, data_dir=data_dir, console=console)
    if result is not None:
        results.write(result, summary)
    _print_metrics(summary)
    print(f"report: {(run / 'report.html').resolve()}")


@app.command()
def presets(name: Annotated[str | None, typer.Argument(help="Show this one resolved, as YAML.")] = None) -> None:
    """List the presets, or show one."""
    if name is not None:
        print(resolve(name).to_yaml(), end="")
        return
    table = Table("preset", "data", "image", "nz", "prior", "K0", "K1", "updates")
    for p in preset_names():
        c = resolve(p)
        g, prior = c.generator, c.prior
        kind = "N(0, I)" if prior.kind == "gaussian" else f"{prior.width} x {prior.depth}"
        table.add_row(
            p,
            c.data.name,
            f"{g.size}x{g.size}x{g.channels}",
            str(c.nz),
            kind,
            str(c.chains.prior.steps),
            str(c.chains.posterior.steps),
            f"{c.training.steps:,}",
        )
    out.print(table)


@app.command()
def data(data_dir: DataOpt = None) -> None:
    """Say for every known data set where it was found, or how to get it."""
    folder = data_root(data_dir)
    out.print(f"data folder: {escape(str(folder))}" if folder else "no data folder: set LEBM_DATA or give --data-dir")
    table = Table("data set", "found", "how to get it")
    for name, dataset in DATASETS.items():
        found = dataset.find(folder)
        table.add_row(name, escape(str(found)) if found else "no", "" if found else escape(dataset.how))
    out.print(table)


# --- helpers ------------------------------------------------------------------------------------------------------


def _check_ending(path: Path, *endings: str) -> None:
    if path.suffix not in endings:
        raise UserError(f"--out {path} ends in {path.suffix or 'nothing'}; it must end in {' or '.join(endings)}")


def _model_and_inputs(run: Path, inputs: list[Path], device: Device) -> tuple[LatentEBM, torch.Tensor, list[str]]:
    model = load(run, pick_device(device.value))
    rows, names = read_inputs(inputs, model.generator.shape)  # type: ignore[arg-type]
    return model, rows, names


def _save_npz(path: Path, **arrays: Any) -> None:
    checkpoint.write_with(path, lambda temporary: np.savez_compressed(temporary, **arrays))


def _print_metrics(summary: dict[str, Any]) -> None:
    table = Table("metric", "value")
    for key, value in summary["metrics"].items():
        table.add_row(key, f"{value:.4f}")
    out.print(table)


def _run(command: Callable[[], Any]) -> int:
    """Every way a command can end, as an exit code; a user's mistake is one sentence, not a traceback."""
    try:
        command()
        return 0
    except (UserError, Diverged, Interrupted) as e:
        console.print(f"[bold red]{'error' if isinstance(e, UserError) else 'stopped'}:[/] {escape(str(e))}", soft_wrap=True)
        return e.exit_code
    except KeyboardInterrupt:
        console.print("stopped; nothing was being trained, so there is nothing to save", soft_wrap=True)
        return 130
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")
        return 0
    except OSError as e:
        where = f" ({e.filename})" if e.filename else ""
        console.print(
            f"[bold red]error:[/] the system said: {escape(e.strerror or str(e))}{escape(where)}; free space or permissions there, then try again (a run goes on with --resume)",
            soft_wrap=True,
        )
        return 2


def main() -> None:
    code = 0

    def command() -> None:
        nonlocal code
        code = app(standalone_mode=False) or 0

    try:
        sys.exit(_run(command) or code)
    except Exception as e:  # typer's usage errors
        show = getattr(e, "show", None)
        if show is None:
            raise
        show()
        sys.exit(getattr(e, "exit_code", 2))

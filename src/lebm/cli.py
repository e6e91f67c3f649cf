"""The command line. Commands are small functions; nothing imports this module."""

from __future__ import annotations

import csv
import errno
import io
import os
import shlex
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Column, Table

from lebm import analysis, checkpoint, compare, figures, report, results, sentences
from lebm.analysis import chains as chain_pictures
from lebm.analysis import diagnostics, longrun, paths
from lebm.anomaly import SCORES, Scorer
from lebm.anomaly import mnist as protocol
from lebm.bench import bench as run_bench
from lebm.config import BASES, preset_names, resolve
from lebm.data import DATASETS, data_root, download, read_inputs
from lebm.data import load as load_data
from lebm.detector import Detector
from lebm.errors import Diverged, Interrupted, UserError
from lebm.evaluate import evaluate as evaluate_run
from lebm.evaluate import evaluate_all as evaluate_runs
from lebm.explore import Lab, Server
from lebm.generators.image import ImageGenerator, as_floats, to_pixels
from lebm.generators.text import check_decoding
from lebm.log import progress_bar
from lebm.methods.ways import WAYS
from lebm.metrics import inception
from lebm.model import LatentEBM, load
from lebm.model import export as export_model
from lebm.runs import check_run, default_folder, latest_folder
from lebm.training import HANDED_IN, fitting_threads, pick_device, stop_on_signals
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
SHEET = 64  # images on the sheet of `lebm score`


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
        counts = (f"{name} {sum(p.numel() for p in net.parameters()):,}" for name, net in model.networks().items())
        say(f"parameters: {', '.join(counts)}; device {pick_device(device.value)}")
        return
    if run is None:
        here = Path(source) / "config.yaml"
        run = (Path(source) if here.is_file() else latest_folder(config.experiment)) if resume else default_folder(config.experiment)
    check_run(run, config, resume)
    console.print(Syntax(config.to_yaml(), "yaml", background_color="default"))
    say(f"run folder: {run}")
    train_model(config, run=run, resume=resume, max_seconds=max_seconds, device=device.value, data_dir=data_dir, console=console)
    where = shlex.quote(str(run))
    more = "-n 20" if config.generator.kind == "text" else "-n 64 --out samples.png"
    say(f"look at it: lebm evaluate {where}   or   lebm sample {where} {more}")


@app.command()
def demo(
    run: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/demo"),
    device: DeviceOpt = Device.cpu,
) -> None:
    """Train on the embedded 8x8 digits and make a report: the whole method in a few minutes on a CPU."""
    say("Learning a latent energy-based prior on scikit-learn's 8x8 digits: about a minute on two cores.")
    config = resolve("digits")
    train_model(config, run=run, resume=run.exists(), device=device.value, console=console)
    summary = evaluate_run(run, device=device.value, console=console)
    _print_metrics(summary)
    analysis.complete(analysis.Subject(run, device.value, console=console))
    report.write(run)
    m = summary["metrics"]
    print(
        f"Samples from the learned prior lie {m['frechet_gaussian'] / m['frechet']:.1f} times closer to the data than samples "
        "from N(0, I) through the same generator: this is what the energy-based prior buys."
    )
    print(f"report: {(run / 'report.html').resolve()}")


@app.command()
def sample(
    run: RunArg,
    to: Annotated[
        Path | None, typer.Option("--out", help="FILE.png (a grid) or FILE.npz (floats in [-1, 1] under `x`); text: FILE.txt, default the terminal.")
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 64,
    temperature: Annotated[float, typer.Option(help="Text: below 1 the words are likelier than the model's; 1 is a draw from it.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Text: choose among the likeliest words of so much probability.")] = 1.0,
    beam: BeamOpt = 0,
    steps: Annotated[int | None, typer.Option(min=0, help="Langevin steps; default the training's K0. With --by langevin, 0 shows N(0, I).")] = None,
    by: PriorByOpt = None,
    seed: SeedOpt = 0,
    device: DeviceOpt = Device.auto,
) -> None:
    """Draw from the learned prior and generate: images into a file, sentences onto the terminal."""
    model = _model_for(run, device, to, ".txt")
    if to is None or to.suffix.lower() == ".txt":
        check_decoding(temperature, top_p, beam)
        with progress_bar(console, "sampling") as update:
            lines = sentences.sample(model, n, seed, steps, update, by, temperature=temperature, top_p=top_p, beam=beam)
        _put_lines(lines, to)
        say(f"{n} sentences{f' in {to}' if to else ''}{_drawn(model, 'prior', by, steps)}")
        return
    with progress_bar(console, "sampling") as update:
        x = model.sample(n, seed, steps, update, by)
    if to.suffix.lower() == ".png":
        figures.save(figures.grid(to_pixels(x)), to)
    else:
        _save_npz(to, x=x.numpy())
    say(f"{n} samples in {to}{_drawn(model, 'prior', by, steps)}")


@app.command()
def reconstruct(
    run: RunArg,
    inputs: InputOpt = None,
    to: Annotated[
        Path | None, typer.Option("--out", help="FILE.png (pairs) or FILE.npz (`x_hat`, `z`, `mse`); text: FILE.csv, default the terminal.")
    ] = None,
    beam: BeamOpt = 0,
    steps: Annotated[int | None, typer.Option(min=0, help="Langevin steps; default the training's K1.")] = None,
    by: PosteriorByOpt = None,
    seed: SeedOpt = 0,
    device: DeviceOpt = Device.auto,
    more: MoreArg = None,
) -> None:
    """Infer z for every image or sentence and generate it again."""
    _check_inputs(inputs, more)
    model = _model_for(run, device, to, ".csv")
    if to is None or to.suffix.lower() == ".csv":
        _reconstruct_text(model, _sentences(model, inputs, more), to, steps, by, seed, beam)
        return
    x = as_floats(_images(model, inputs, more)[0])
    with progress_bar(console, "inferring") as update:
        z = model.infer(x, seed, steps, progress=update, by=by)
    x_hat = model.decode(z).cpu()
    mse = (x - x_hat).square().flatten(1).mean(1)
    if to.suffix.lower() == ".png":
        figures.save(figures.pairs(to_pixels(x), to_pixels(x_hat)), to)
    else:
        _save_npz(to, x_hat=x_hat.numpy(), z=z.numpy(), mse=mse.numpy())
    say(f"{len(x)} reconstructions in {to}; mean squared error {float(mse.mean()):.4f} per pixel in [-1, 1]{_drawn(model, 'posterior', by, steps)}")


@app.command()
def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, a model.safetensors file, or a file that Detector.save wrote.")],
    to: Annotated[Path, typer.Option("--out", help="scores.csv: index, file, score. Of images also scores-strangest.png.")],
    inputs: InputOpt = None,
    sort: Annotated[bool, typer.Option("--sort", help="Most anomalous first, instead of input order.")] = False,
    name: Annotated[str | None, typer.Option("--score", metavar="NAME", help=f"{', '.join(SCORES)} or combined; default the run's own.")] = None,
    normal: Annotated[list[Path] | None, typer.Option(help="Normal images that `combined` is fitted to; default the training data.")] = None,
    steps: Annotated[int | None, typer.Option(min=0, help="Langevin steps of the score `joint`; default the training's K1.")] = None,
    by: PosteriorByOpt = None,
    seed: SeedOpt = 0,
    device: DeviceOpt = Device.auto,
    data_dir: DataOpt = None,
    more: MoreArg = None,
) -> None:
    """Score every image or sentence, higher is more anomalous: a CSV, and of images a sheet of the most anomalous ones."""
    _check_target("--out", to, ".csv")
    _check_inputs(inputs, more)
    scorer = _scorer(run, name, seed, device)
    model = scorer.model
    if scorer.name != "joint" and (steps is not None or by is not None):
        raise UserError(f"--steps and --by go with the score joint, and this is {scorer.name}; leave them out, or add --score joint")
    if model.config.generator.kind == "text":
        found = _sentences(model, inputs, more)
        rows, names = found.x, found.names
    else:
        rows, names = _images(model, inputs, more)
    if scorer.name == "combined" and scorer.mixture is None:
        scorer.fit(_normal_rows(model, normal, data_dir))
    x = as_floats(rows)
    with progress_bar(console, "scoring") as update:
        scores = (model.anomaly_score(x, seed, steps, update, by) if scorer.name == "joint" else scorer(x, update)).tolist()
    ranked = sorted(enumerate(scores), key=lambda row: -row[1])
    _save_csv(to, ["index", "file", "score"], ([i, names[i], f"{value:.9g}"] for i, value in (ranked if sort else enumerate(scores))))
    sheet = ""
    if isinstance(model.generator, ImageGenerator):
        path = to.with_name(f"{to.stem}-strangest.png")
        figures.save(figures.grid(to_pixels(x[[i for i, _ in ranked[:SHEET]]])), path)
        sheet = f", the most anomalous images in {path}"
    drawn = _drawn(model, "posterior", by, steps) if scorer.name == "joint" else ""
    say(f"{len(scores)} scores ({scorer.name}) in {to}{sheet}{drawn}")


@app.command()
def anomaly(
    digits: Annotated[str, typer.Option(help="Which labels are the anomaly in turn, comma-separated.")] = ",".join(map(str, protocol.DIGITS)),
    preset: Annotated[
        str, typer.Option(metavar="PRESET_OR_YAML", help="mnist-anomaly, mnist-anomaly-paper, or a configuration of yours.")
    ] = "mnist-anomaly",
    seeds: Annotated[str, typer.Option(help="Seeds of the training, comma-separated; the split is always the same.")] = "1",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value of the configuration; may be repeated.")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="The folder of the runs; default runs/EXPERIMENT. What is there already goes on.")] = None,
    neighbours: Annotated[bool, typer.Option("--neighbours", help="Learn nothing: score by the distance to the nearest training image.")] = False,
    device: DeviceOpt = Device.auto,
    data_dir: DataOpt = None,
    result: Annotated[Path | None, typer.Option(help="Also write the result to this file, e.g. results/NAME.json.")] = None,
) -> None:
    """The paper's anomaly detection: train without one digit, find it among the others; each digit in turn."""
    if result is not None:
        _check_target("--result", result, ".json")
    config = resolve(preset, settings or [])
    labels = _numbers("--digits", digits)
    if neighbours:
        summary = protocol.neighbours(config, labels, device=device.value, data_dir=data_dir, console=console)
    else:
        folder = run or Path("runs") / config.experiment
        several = _numbers("--seeds", seeds)
        summary = protocol.experiment(config, labels, several, folder, device=device.value, data_dir=data_dir, console=console, say=say)
    if result is not None:
        results.write(result, summary)
    _print_auprc(summary)


@app.command()
def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="A run folder; several are seeds of one experiment.")],
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: frechet, mse, fid, fid_gaussian, fid_reconstruction, likelihood, speed; of text fppl, rppl, nll, real_ppl, fppl_gaussian. Default: what fits the run."
        ),
    ] = None,
    samples: Annotated[int | None, typer.Option(min=2, help="How many to draw; default 50,000 for the FID, 10,000 otherwise.")] = None,
    split: Annotated[Split, typer.Option(help="What the FID compares with. `validation` is for choosing settings: no test images.")] = Split.train,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many test images for mse; default all.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the noise; default 0, and 1 for --split validation.")] = None,
    prior_by: Annotated[str | None, typer.Option(metavar="WAY", help="Draw samples in another way than the run's own; see `lebm sample`.")] = None,
    posterior_by: Annotated[str | None, typer.Option(metavar="WAY", help="Infer in another way than the run's own; see `lebm reconstruct`.")] = None,
    beside: Annotated[bool, typer.Option("--beside", help="Several runs are different experiments: set them side by side.")] = False,
    device: DeviceOpt = Device.auto,
    data_dir: DataOpt = None,
    result: Annotated[Path | None, typer.Option(help="Also write the result to this file, e.g. results/NAME.json.")] = None,
) -> None:
    """Measure a run: metrics.json, figures and report.html in its folder. Of several runs, the mean too."""
    if result is not None:
        _check_target("--result", result, ".json")
    chosen = tuple(m.strip() for m in metrics.split(",") if m.strip()) if metrics else None
    options = {"samples": samples, "split": split.value, "limit": limit, "seed": seed, "device": device.value, "data_dir": data_dir}
    summary = evaluate_runs(runs, chosen, beside, prior_by=prior_by, posterior_by=posterior_by, console=console, **options)
    if result is not None:
        results.write(result, summary)
    _print_metrics(summary)
    if split is not Split.validation:
        for run in runs:
            print(f"report: {(run / 'report.html').resolve()}")


@app.command()
def export(
    run: RunArg,
    to: Annotated[Path, typer.Option("--out", help="FILE.safetensors")],
    precision: Annotated[Precision, typer.Option(help="Of the weights in the file.")] = Precision.float16,
) -> None:
    """Write a trained model alone as one small file: for `lebm sample`, `reconstruct`, `score` and `lebm.load` elsewhere."""
    _check_target("--out", to, ".safetensors")
    export_model(run, to, precision.value)
    say(f"{to}: {to.stat().st_size / 2**20:.1f} MiB")


@app.command()
def chains(
    run: FolderArg,
    steps: Annotated[int, typer.Option(min=1, help="Langevin steps; 2500 is the paper's long-run test.")] = chain_pictures.STEPS,
    every: Annotated[int | None, typer.Option(min=1, help="Show the images after every so many steps; default a tenth of --steps.")] = None,
    rows: Annotated[int, typer.Option(min=1, max=chain_pictures.WATCHED, help="How many chains to show.")] = chain_pictures.ROWS,
    samples: Annotated[
        int | None, typer.Option(min=0, help="Samples for the Fréchet distance at K0 and at --steps; default 10,000 from 1,000 steps on, else none.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="fid (Inception) or frechet (pixels); default fid for photographs where the network is.")] = None,
    seed: SeedOpt = 0,
    device: DeviceOpt = Device.auto,
    data_dir: DataOpt = None,
    result: Annotated[Path | None, typer.Option(help="Also write the distances to this file, e.g. results/NAME.json.")] = None,
) -> None:
    """Chains from N(0, I) to the learned prior, with their images and energy on the way: figure, animation, data."""
    if result is not None:
        _check_target("--result", result, ".json")
    subject = analysis.Subject(run, device.value, data_dir, console)
    with fitting_threads(subject.model):
        found = chain_pictures.draw(subject, steps, every, rows, seed)
        subject.keep("chains", found)
        for k, lines in zip(found["steps"], found.get("sentences", []), strict=False):
            print(f"step {k}\n" + "\n".join(f"    {line}" for line in lines))
        for name in ("figures/chains.png", *(() if "sentences" in found else ("figures/chains.webp",)), "chains.npz"):
            say(f"{run / name}")
        if samples if samples is not None else steps >= 1000 and "sentences" not in found:
            summary = longrun.measure(subject, steps, samples or 10_000, metric, seed)
            subject.keep("long_run", {"metrics": summary["metrics"], "protocol": summary["protocol"]["long_run"]})
            if result is not None:
                results.write(result, summary)
            _print_metrics(summary)
            print(longrun.words(summary))
    report.write(run)


@app.command()
def diagnose(run: FolderArg, seed: SeedOpt = 0, device: DeviceOpt = Device.auto, data_dir: DataOpt = None) -> None:
    """Say whether the prior chains are steady, drifting, frozen or oversaturated, with the numbers behind it."""
    subject = analysis.Subject(run, device.value, data_dir, console)
    with fitting_threads(subject.model):
        found = diagnostics.diagnose(subject, seed)
    subject.keep("diagnostics", found)
    print(f"{found['verdict']}: {found['words']}")
    table = Table("statistic of f along the chains", "value")
    for name, value in found["statistics"].items():
        table.add_row(name, f"{value:g}")
    z = found["log_z"]
    table.add_row("log Z, estimate", f"{z['value']:.3f} ± {z['error']:.3f}")
    out.print(table)
    print(f"report: {report.write(run).resolve()}")


@app.command()
def interpolate(
    run: RunArg,
    inputs: InputOpt = None,
    to: Annotated[
        Path | None, typer.Option("--out", help="FILE.png (a row a pair) or FILE.npz (`x`, `z`); text: FILE.txt, default the terminal.")
    ] = None,
    beam: BeamOpt = 0,
    points: Annotated[int, typer.Option(min=2, help="Points of a path, its ends included.")] = 9,
    steps: Annotated[int | None, typer.Option(min=0, help="Langevin steps of the inference; default the training's K1.")] = None,
    seed: SeedOpt = 0,
    device: DeviceOpt = Device.auto,
    more: MoreArg = None,
) -> None:
    """Walk in z between images, or sentences: from the first to the second, the third to the fourth, and so on."""
    _check_inputs(inputs, more)
    model = _model_for(run, device, to, ".txt")
    if to is None or to.suffix.lower() == ".txt":
        ends = _sentences(model, inputs, more).x
        if len(ends) < 2:
            raise UserError(f"{len(ends)} sentence is given; a path needs two ends")
        ends = ends[: len(ends) // 2 * 2]
        lines = sentences.interpolate(model, ends[0::2], ends[1::2], points, seed, steps, beam)
        _put_lines("\n\n".join("\n".join(path) for path in lines).split("\n"), to)
        return
    rows, _ = _images(model, inputs, more)
    if len(rows) < 2:
        raise UserError(f"{len(rows)} image is given; a path needs two ends")
    x = as_floats(rows[: len(rows) // 2 * 2])
    z, path = paths.interpolate(model, x[0::2], x[1::2], points, seed, steps)
    if to.suffix.lower() == ".png":
        figures.save(paths.path_sheet(x[0::2], x[1::2], path), to)
    else:
        _save_npz(to, x=path.numpy(), z=z.numpy())
    say(f"{len(path)} path{'s' * (len(path) > 1)} of {points} points in {to}")


@app.command()
def neighbours(
    run: FolderArg,
    n: Annotated[int, typer.Option("-n", min=1, max=64, help="How many samples to show.")] = paths.COUNT,
    seed: SeedOpt = 0,
    device: DeviceOpt = Device.auto,
    data_dir: DataOpt = None,
) -> None:
    """Samples beside their nearest training images: does the model copy?"""
    subject = analysis.Subject(run, device.value, data_dir, console)
    found = paths.find_neighbours(subject, n, seed)
    subject.keep("neighbours", found)
    print(paths.words(found))
    say(f"{run / 'figures' / 'neighbours.png'}")


@app.command("report")
def report_(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="A run folder; several are compared side by side.")],
    to: Annotated[Path | None, typer.Option("--out", help="FILE.html; default report.html in the run folder, comparison.html for several.")] = None,
    compute: Annotated[bool, typer.Option(help="Draw the chains, diagnostics and neighbours that the folder lacks; needs model and data.")] = True,
    device: DeviceOpt = Device.auto,
    data_dir: DataOpt = None,
) -> None:
    """One self-contained page about a run, or about several side by side."""
    if to is not None:
        _check_target("--out", to, ".html")
    for subject in [analysis.Subject(run, device.value, data_dir, console) for run in runs] if compute else []:
        for note in analysis.complete(subject):
            say(f"left out, {note}")
    path = report.write(runs[0], to) if len(runs) == 1 else report.compare(runs, to or Path("comparison.html"))
    print(f"report: {path.resolve()}")


@app.command()
def explore(
    run: FolderArg,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 0,
    open_page: Annotated[bool, typer.Option("--open", help="Also open the page in a browser.")] = False,
    device: DeviceOpt = Device.auto,
    data_dir: DataOpt = None,
) -> None:
    """A page on this machine to play with the model: chains, directions in z, your own pictures. Ctrl-C ends it."""
    subject = analysis.Subject(run, device.value, data_dir)
    subject.refuse_text("these pages")
    say("looking for the strongest directions in z ...")
    with fitting_threads(subject.model), Server(Lab(subject), port) as server, stop_on_signals() as stop:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"open {server.address}", flush=True)
        say("the address holds a secret and works on this machine only; Ctrl-C ends it")
        threading.Thread(target=server.lab.reference, daemon=True).start()  # ready when the first picture comes
        if open_page:
            webbrowser.open(server.address)
        while not stop:
            time.sleep(0.1)
        server.shutdown()


@app.command()
def fid(
    a: Annotated[str, typer.Argument(metavar="IMAGES", help="NAME:train, NAME:test, a folder of pictures, a .npy or .npz file.")],
    b: Annotated[str | None, typer.Argument(metavar="IMAGES", help="The same; without it the statistics of the first are computed and kept.")] = None,
    device: DeviceOpt = Device.auto,
    data_dir: DataOpt = None,
    result: Annotated[Path | None, typer.Option(help="Also write the result to this file, e.g. results/NAME.json.")] = None,
) -> None:
    """The Fréchet Inception distance between two sets of images."""
    if result is not None:
        _check_target("--result", result, ".json")
    summary, kept = compare.fid(a, b, device=device.value, data_dir=data_dir, console=console)
    if result is not None:
        results.write(result, summary)
    for one, path in zip(summary["data"].values(), kept, strict=True):
        say(f"{one['name']}: {one['images']} images{f', statistics kept in {path}' if path else ''}")
    if b is not None:
        print(f"fid {summary['metrics']['fid']:.4f}")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(download.NAMES)}.")],
    data_dir: DataOpt = None,
) -> None:
    """Download a data set's official files, or the Inception network of the FID, into the data folder."""
    place, fetched = download.fetch(name, data_root(data_dir), lambda what: progress_bar(console, what))
    print(f"{name}: {'fetched into' if fetched else 'already in'} {place}")


@app.command()
def bench(
    preset: Annotated[list[str] | None, typer.Option(help="Which to measure; may be repeated. Default svhn on CUDA, digits on a CPU.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value of the configuration; may be repeated.")
    ] = None,
    device: DeviceOpt = Device.auto,
    sweep: Annotated[bool, typer.Option(help="Also vary the batch and both chains' lengths, for the first preset.")] = True,
    to: Annotated[Path | None, typer.Option("--out", help="The result file; default results/bench-DEVICE.json.")] = None,
) -> None:
    """Time a learning iteration beside the paper's listing and the hardware's floor."""
    chosen = preset or (["svhn"] if pick_device(device.value).type == "cuda" else ["digits"])
    run_bench(chosen, device.value, to, sweep, settings or [], out)


@app.command()
def presets(name: Annotated[str | None, typer.Argument(help="Show this one resolved, as YAML.")] = None) -> None:
    """List the presets, or show one."""
    if name is not None:
        print(resolve(name).to_yaml(), end="")
        return
    table = Table(Column("preset", no_wrap=True), "data", "x", "nz", "prior", "K0", "K1", "updates")
    for p in preset_names():
        c = resolve(p)
        prior = c.prior
        base = BASES[prior.base]
        kind = base if prior.kind == "gaussian" else f"{prior.width} x {prior.depth}"
        table.add_row(
            p,
            c.data.name,
            c.generator.shown(),
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
    print(f"data folder: {folder}" if folder else "no data folder: set LEBM_DATA or give --data-dir")
    for name, dataset in DATASETS.items():
        found = dataset.find(folder)
        print(f"{name}: found in {found}" if found else f"{name}: not found\n    {dataset.how}")
        print(f"    {dataset.description}. Licence: {dataset.licence}")
    network = folder / inception.FILE if folder else None
    print(
        f"inception: found in {network}"
        if network and network.is_file()
        else f"inception: not found\n    `lebm fetch inception`, or {download.INCEPTION_HOW}"
    )
    print("    the network behind the FID. Licence: Apache 2.0")


# --- helpers ------------------------------------------------------------------------------------------------------


def say(words: str) -> None:
    """A line for people on standard error, as it is: paths unbroken, brackets untouched, no `:train:` turned into a picture."""
    console.print(words, soft_wrap=True, markup=False, highlight=False, emoji=False)


def _check_target(option: str, path: Path, *endings: str) -> None:
    """Said before the work rather than after it: a wrong ending, or a place where nothing can be written."""
    if path.suffix.lower() not in endings:
        raise UserError(f"{option} {path} ends in {path.suffix or 'nothing'}; it must end in {' or '.join(endings)}")
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder; give a file")
    above = next(p for p in path.absolute().parents if p.exists())  # missing folders are made
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise UserError(f"{option} {path} cannot be written: {above} is {'not writable' if above.is_dir() else 'a file'}")


def _check_inputs(inputs: list[Path] | None, more: list[str] | None) -> None:
    if not inputs and not more:
        raise UserError("no input is given; name images or a text file with --input, or for a text model give sentences in quotes")


def _images(model: LatentEBM, inputs: list[Path] | None, more: list[str] | None) -> tuple[torch.Tensor, list[str]]:
    return read_inputs([*(inputs or []), *map(Path, more or [])], model.generator.shape)  # type: ignore[arg-type]


def _sentences(model: LatentEBM, inputs: list[Path] | None, more: list[str] | None) -> sentences.Sentences:
    found = sentences.take(model, inputs or [], more or [])
    for note in found.notes:
        say(f"note: {note}")
    return found


def _model_for(run: Path, device: Device, to: Path | None, text: str) -> LatentEBM:
    """The model, after --out was checked: images go into .png or .npz, text into a file with the ending `text` or to the terminal."""
    images = (".png", ".npz")
    if to is not None:
        _check_target("--out", to, *images, text)
    model = load(run, pick_device(device.value))
    is_text = model.config.generator.kind == "text"
    if to is None and not is_text:
        raise UserError(f"a model of images needs --out; give a file that ends in {' or '.join(images)}")
    fitting = (text,) if is_text else images
    if to is not None and to.suffix.lower() not in fitting:
        raise UserError(f"--out {to} does not fit a model of {'text' if is_text else 'images'}; it must end in {' or '.join(fitting)}")
    return model


def _put_lines(lines: list[str], to: Path | None) -> None:
    if to is None:
        print("\n".join(lines))
    else:
        checkpoint.write_atomic(to, "\n".join(lines) + "\n")


def _reconstruct_text(model: LatentEBM, found: sentences.Sentences, to: Path | None, steps: int | None, by: str | None, seed: int, beam: int) -> None:
    with progress_bar(console, "inferring") as update:
        z = model.infer(found.x, seed, steps, progress=update, by=by)
    x_hat, nll = sentences.decode(model, z, beam), model.nll(found.x, z)
    if to is None:
        for a, b in zip(found.text, x_hat, strict=True):
            print(f"{a}\n    {b}")
    else:
        _save_csv(
            to, ["name", "sentence", "reconstruction", "nll"], zip(found.names, found.text, x_hat, (f"{v:.9g}" for v in nll.tolist()), strict=True)
        )
    say(
        f"{len(x_hat)} reconstructions{f' in {to}' if to else ''}; -log p(x|z) {float(nll.mean()):.2f} nats a sentence{_drawn(model, 'posterior', by, steps)}"
    )


def _save_csv(to: Path, head: list[str], rows: Iterable[Any]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    checkpoint.write_atomic(to, text.getvalue())


def _scorer(path: Path, name: str | None, seed: int, device: Device) -> Scorer:
    """Of a run, or of a saved detector, which is fitted already."""
    if path.is_file() and "detector" in checkpoint.read_meta(path):
        scorer = Detector.load(path, device.value).scorer_
        if name not in (None, scorer.name):
            raise UserError(f"the detector in {path} scores by {scorer.name}, not by {name}; leave --score out")
        if not isinstance(scorer.model.generator, ImageGenerator):
            raise UserError(f"the detector in {path} is one for tables; score rows with lebm.Detector.load(...).decision_function")
        return scorer
    return Scorer(load(path, pick_device(device.value)), name, seed)


def _normal_rows(model: LatentEBM, normal: list[Path] | None, data_dir: Path | None) -> torch.Tensor:
    """What a combined score is fitted to: the images given, or the run's training rows."""
    if not isinstance(model.generator, ImageGenerator):
        raise UserError("the score combined is for images here; choose another with --score")
    if normal:
        return as_floats(read_inputs(normal, model.generator.shape)[0])
    if model.config.data.name == HANDED_IN:
        raise UserError("the score combined is fitted to normal images, and those of this run were handed in; name some with --normal")
    splits = load_data(model.config.with_values(**{"data.limit": None}), data_root(data_dir))
    return as_floats(protocol.normal_rows(model.config, splits))


def _drawn(model: LatentEBM, kind: str, by: str | None, steps: int | None) -> str:
    """How z was drawn, where that is not the paper's way."""
    d = model.drawing(kind, by, steps)
    return "" if d.by == "langevin" else f"; z by {d.by} ({WAYS[kind][d.by]}{f', {d.chain.steps} steps' if d.chain.steps else ''})"


def _save_npz(path: Path, **arrays: Any) -> None:
    def write(temporary: Path) -> None:
        with open(temporary, "wb") as f:
            np.savez_compressed(f, **arrays)

    checkpoint.write_with(path, write)


def _numbers(option: str, text: str) -> list[int]:
    """1,4,5 -> [1, 4, 5]."""
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts or not all(p.isdecimal() for p in parts) or len(set(parts)) < len(parts):
        raise UserError(f"{option} is {text!r}; give different whole numbers with commas between, such as 1,4,5")
    return [int(p) for p in parts]


def _print_auprc(summary: dict[str, Any]) -> None:
    metrics = summary["metrics"]
    table = Table("anomaly", "AUPRC", "chance", "with a fifth of the anomalies", "AUROC")
    for digit in metrics["auprc"]:
        cells = []
        for m in (metrics[name][digit] for name in ("auprc", "auprc_fifth", "auroc")):
            cells.append(f"{m['mean']:.3f}" + ("" if m["spread"] is None else f" ± {m['spread']:.3f}"))
        table.add_row(digit, cells[0], f"{metrics['chance'][digit]:.3f}", *cells[1:])
    out.print(table)


def _print_metrics(summary: dict[str, Any]) -> None:
    table = Table("metric", "value")
    for key, value in summary["metrics"].items():
        for name, number in value.items() if isinstance(value, dict) else [("", value)]:
            table.add_row(f"{key} {name}".strip(), "none" if number is None else f"{number:.4f}")
    out.print(table)


def _run(command: Callable[[], Any]) -> int:
    """Every way a command can end, as an exit code; a user's mistake is one sentence, not a traceback."""
    try:
        command()
        sys.stdout.flush()
        return 0
    except (UserError, Diverged, Interrupted) as e:
        say(f"error: {e}" if isinstance(e, UserError) else str(e))
        return e.exit_code
    except KeyboardInterrupt:
        say("stopped at once; a run goes on from its last checkpoint with --resume")
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MemoryError, RuntimeError) as e:
        if not isinstance(e, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(e):
            raise
        say("error: the memory does not suffice; lower training.batch or generator.ngf, or give fewer images at a time")
        return 2
    except OSError as e:
        full = e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "free some space, then try again (a run goes on with --resume)" if full else "check the path and its permissions"
        say(f"error: {e.strerror or e}{f' ({e.filename})' if e.filename else ''}; {advice}")
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

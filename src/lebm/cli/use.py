"""Commands that use a learned model: draw, reconstruct, score, interpolate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from lebm import checkpoint, figures, sentences
from lebm.analysis import paths
from lebm.anomaly import SCORES, Scorer
from lebm.anomaly import mnist as protocol
from lebm.cli.common import (
    BeamOpt,
    DataOpt,
    Device,
    DeviceOpt,
    InputOpt,
    MoreArg,
    PosteriorByOpt,
    PriorByOpt,
    RunArg,
    SeedOpt,
    app,
    check_target,
    console,
    save_csv,
    save_npz,
    say,
)
from lebm.data import data_root, read_inputs
from lebm.data import load as load_data
from lebm.detector import Detector
from lebm.errors import UserError
from lebm.generators.image import ImageGenerator, as_floats, to_pixels
from lebm.generators.text import check_decoding
from lebm.log import progress_bar
from lebm.methods.ways import ALONE, steps_in_words
from lebm.model import LatentEBM, load
from lebm.runs import HANDED_IN
from lebm.training import pick_device

SHEET = 64  # images on the sheet of `lebm score`
MOST_SHOWN = 10_000  # images in one picture


@app.command()
def sample(
    run: RunArg,
    to: Annotated[
        Path | None, typer.Option("--out", help="FILE.png (a grid) or FILE.npz (floats in [-1, 1] under `x`); text: FILE.txt, default the terminal.")
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, max=10**7, help="How many.")] = 64,
    temperature: Annotated[float, typer.Option(help="Text: below 1 the words are likelier than the model's; 1 is a draw from it.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Text: choose among the likeliest words of so much probability.")] = 1.0,
    beam: BeamOpt = 0,
    steps: Annotated[
        int | None,
        typer.Option(min=0, help="Langevin steps; default the training's K0. With --by langevin, 0 shows p_0: N(0, I), or what the run fitted."),
    ] = None,
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
        say(f"{n} sentences{f' in {to}' if to else ''}{_drawn(model, 'prior', by, steps, n)}")
        return
    if (temperature, top_p, beam) != (1.0, 1.0, 0):
        raise UserError("--temperature, --top-p and --beam are for models of text, and this is one of images; leave them out")
    if to.suffix.lower() == ".png" and n > MOST_SHOWN:
        raise UserError(f"-n is {n}, too many for one picture; give at most {MOST_SHOWN}, or --out FILE.npz")
    with progress_bar(console, "sampling") as update:
        x = model.sample(n, seed, steps, update, by)
    if to.suffix.lower() == ".png":
        figures.save(figures.grid(to_pixels(x)), to)
    else:
        save_npz(to, x=x.numpy())
    say(f"{n} samples in {to}{_drawn(model, 'prior', by, steps, n)}")


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
    check_inputs(inputs, more)
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
        save_npz(to, x_hat=x_hat.numpy(), z=z.numpy(), mse=mse.numpy())
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
    check_target("--out", to, ".csv")
    check_inputs(inputs, more)
    scorer = _scorer(run, name, seed, device)
    model = scorer.model
    if scorer.name != "joint" and (steps is not None or by is not None):
        raise UserError(f"--steps and --by go with the score joint, and this is {scorer.name}; leave them out, or add --score joint")
    if normal and (scorer.name != "combined" or scorer.mixture is not None):
        raise UserError(
            f"--normal goes with the score combined of a run, and this is {scorer.name}{' of a fitted detector' * (scorer.mixture is not None)}; leave it out"
        )
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
    save_csv(to, ["index", "file", "score"], ([i, names[i], f"{value:.9g}"] for i, value in (ranked if sort else enumerate(scores))))
    sheet = ""
    if isinstance(model.generator, ImageGenerator):
        path = to.with_name(f"{to.stem}-strangest.png")
        figures.save(figures.grid(to_pixels(x[[i for i, _ in ranked[:SHEET]]])), path)
        sheet = f", the most anomalous images in {path}"
    say(f"{len(scores)} scores ({scorer.name}) in {to}{sheet}{_judged(scorer, by, steps)}")


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
    by: PosteriorByOpt = None,
    seed: SeedOpt = 0,
    device: DeviceOpt = Device.auto,
    more: MoreArg = None,
) -> None:
    """Walk in z between images, or sentences: from the first to the second, the third to the fourth, and so on."""
    check_inputs(inputs, more)
    model = _model_for(run, device, to, ".txt")
    if to is None or to.suffix.lower() == ".txt":
        ends = _sentences(model, inputs, more).x
        if len(ends) < 2:
            raise UserError(f"{len(ends)} sentence is given; a path needs two ends")
        ends = ends[: len(ends) // 2 * 2]
        lines = sentences.interpolate(model, ends[0::2], ends[1::2], points, seed, steps, by, beam)
        _put_lines("\n\n".join("\n".join(path) for path in lines).split("\n"), to)
        say(_paths(len(lines), points, to) + _drawn(model, "posterior", by, steps))
        return
    rows, _ = _images(model, inputs, more)
    if len(rows) < 2:
        raise UserError(f"{len(rows)} image is given; a path needs two ends")
    x = as_floats(rows[: len(rows) // 2 * 2])
    z, path = paths.interpolate(model, x[0::2], x[1::2], points, seed, steps, by)
    if to.suffix.lower() == ".png":
        figures.save(paths.path_sheet(x[0::2], x[1::2], path), to)
    else:
        save_npz(to, x=path.numpy(), z=z.numpy())
    say(_paths(len(path), points, to) + _drawn(model, "posterior", by, steps))


# --- helpers ------------------------------------------------------------------------------------------------------


def check_inputs(inputs: list[Path] | None, more: list[str] | None) -> None:
    if not inputs and not more:
        raise UserError("no input is given; name images or a text file with --input, or for a text model give sentences in quotes")


def _images(model: LatentEBM, inputs: list[Path] | None, more: list[str] | None) -> tuple[torch.Tensor, list[str]]:
    return read_inputs([*(inputs or []), *map(Path, more or [])], model.images())


def _sentences(model: LatentEBM, inputs: list[Path] | None, more: list[str] | None) -> sentences.Sentences:
    found = sentences.take(model, inputs or [], more or [])
    for note in found.notes:
        say(f"note: {note}")
    return found


def _model_for(run: Path, device: Device, to: Path | None, text: str) -> LatentEBM:
    """The model, after --out was checked: images go into .png or .npz, text into a file with the ending `text` or to the terminal."""
    images = (".png", ".npz")
    if to is not None:
        check_target("--out", to, *images, text)
    model = load(run, pick_device(device.value))
    is_text = model.config.generator.kind == "text"
    if to is None and not is_text:
        raise UserError(f"this model needs --out; give a file that ends in {' or '.join(images)}")
    fitting = (text,) if is_text else images
    if to is not None and to.suffix.lower() not in fitting:
        raise UserError(f"--out {to} does not fit a model of {'text' if is_text else 'images'}; it must end in {' or '.join(fitting)}")
    if to is not None and to.suffix.lower() == ".png":
        model.images()  # a picture of a table's rows is refused before the work
    return model


def _paths(n: int, points: int, to: Path | None) -> str:
    return f"{n} path{'s' * (n > 1)} of {points} points{f' in {to}' if to else ''}"


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
        save_csv(
            to, ["name", "sentence", "reconstruction", "nll"], zip(found.names, found.text, x_hat, (f"{v:.9g}" for v in nll.tolist()), strict=True)
        )
    say(
        f"{len(x_hat)} reconstructions{f' in {to}' if to else ''}; -log p(x|z) {float(nll.mean()):.2f} nats a sentence{_drawn(model, 'posterior', by, steps)}"
    )


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


def _drawn(model: LatentEBM, kind: str, by: str | None, steps: int | None, samples: int = 1) -> str:
    """How z was drawn, where the way, its steps or p_0 are not the paper's and the run's own."""
    d, own = model.drawing(kind, by, steps), model.drawing(kind)
    if d.by == own.by == "langevin" and d.chain == own.chain and d.base == "N(0, I)":
        return ""
    said = d.protocol(samples)
    how = said["z"] if d.by in ALONE else f"{said['z']}, {steps_in_words(said['chain_steps'])}"
    return f"; z by {d.by} ({how})"


def _judged(scorer: Scorer, by: str | None, steps: int | None) -> str:
    """The same of the z at which rows were scored."""
    if scorer.name == "likelihood":
        return "; z by importance weights around long posterior chains"
    return "; z is the encoder's mean" if scorer.at_mean else _drawn(scorer.model, "posterior", by, steps)

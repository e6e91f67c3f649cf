"""Commands that use a learned model: sample, reconstruct, score, interpolate, export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from lebm.cli import common
from lebm.cli.common import Device, Precision, Several, Where, app, say, target
from lebm.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from lebm.detect.scores import Scorer
    from lebm.method import Method
    from lebm.modalities import Inputs, Modality

SHEET = 64  # images on the sheet of `lebm score`
MOST_SHOWN = 10_000  # images in one picture
SCORES = "joint, chains, error, likelihood, prior, combined"


@app.command()
def sample(
    run: common.RunArg,
    to: Annotated[Where, Option("--out", help="FILE.png, a grid, or FILE.npz; text: FILE.txt or terminal.")] = None,
    n: Annotated[int, Option("-n", min=1, max=10**7, help="How many.")] = 64,
    temperature: Annotated[float | None, Option(help="Text: below 1 likelier words than the model's.")] = None,
    top_p: Annotated[float | None, Option(help="Text: choose among the likeliest words of this probability.")] = None,
    beam: common.Beam = None,
    steps: common.PriorSteps = None,
    start: common.PriorStart = None,
    seed: common.Seed = 0,
    device: common.Compute = Device.auto,
) -> None:
    """Draw from the learned prior and generate: images into a file, sentences onto the terminal."""
    from lebm.generators.text import check_decoding

    method, modality, options = _open(run, device, "sample", to, temperature=temperature, top_p=top_p, beam=beam)
    check_decoding(**{"temperature": 1.0, "top_p": 1.0, "beam": 0, **options})
    if to is not None and to.suffix.lower() == ".png" and n > MOST_SHOWN:
        raise UserError(f"-n is {n}, too many for one picture; give at most {MOST_SHOWN}, or --out FILE.npz")
    spec = method.choose("prior", start, steps)
    with common.REPORTER.progress("sampling") as update:
        x = method.sample(n, seed, spec, progress=update, **options)
    modality.write_samples(to, x, method.generator)
    say(f"{n} {modality.noun}{'s' * (n > 1)}{_in(to)}{common.how_drawn(method, spec, n)}")


@app.command()
def reconstruct(
    run: common.RunArg,
    inputs: common.Inputs = None,
    to: Annotated[Where, Option("--out", help="FILE.png, pairs, or FILE.npz; text: FILE.csv or terminal.")] = None,
    beam: common.Beam = None,
    steps: common.PosteriorSteps = None,
    start: common.PosteriorStart = None,
    seed: common.Seed = 0,
    device: common.Compute = Device.auto,
    more: common.More = None,
) -> None:
    """Infer z for every image or sentence and generate it again."""
    asked = _asked(inputs, more)
    method, modality, options = _open(run, device, "reconstruct", to, beam=beam)
    spec, given = method.choose("posterior", start, steps), _read(modality, method, asked)
    with common.REPORTER.progress("inferring") as update:
        z = method.encode(given.rows, seed, spec, progress=update)
    x_hat, log_px = method.decode(z, **options).cpu(), -method.nll(given.rows, z)
    quality = modality.write_reconstructions(to, given, x_hat, z, log_px, method.generator)
    say(f"{len(z)} reconstructions{_in(to)}; {quality}{common.how_drawn(method, spec)}")


@app.command()
def score(
    run: Annotated[Path, Argument(metavar="RUN", help="A run, a model file, or what Detector.save wrote.")],
    to: Annotated[Path, target("--out", "FILE.csv: index, file, score. Of images also FILE-strangest.png.", ".csv")],
    inputs: common.Inputs = None,
    sort: Annotated[bool, Option("--sort", help="Most anomalous first, instead of input order.")] = False,
    name: Annotated[str | None, Option("--score", metavar="NAME", help=f"One of {SCORES}.")] = None,
    normal: Annotated[Several, Option(help="What `combined` is fitted to; default training data.")] = None,
    steps: common.PosteriorSteps = None,
    start: common.PosteriorStart = None,
    seed: common.Seed = 0,
    device: common.Compute = Device.auto,
    data_dir: common.DataDir = None,
    more: common.More = None,
) -> None:
    """Score every image or sentence, higher is more anomalous: a CSV, and of images a sheet of the strangest."""
    from lebm import modalities
    from lebm.core.files import save_csv
    from lebm.core.pixels import as_floats

    asked = _asked(inputs, more)
    scorer = _scorer(run, name, seed, device)
    method, modality = scorer.method, modalities.of(scorer.method.generator.modality)
    if scorer.name != "joint" and (steps is not None or start is not None):
        raise UserError(
            f"--steps and --start go with the score joint, not with {scorer.name}; leave them out, or use --score joint"
        )
    unfitted = scorer.name == "combined" and scorer.density is None
    if normal and not unfitted:
        fitted = " of a fitted detector" if scorer.density is not None else ""
        raise UserError(
            f"--normal goes with the score combined of a run, and this is {scorer.name}{fitted}; leave it out"
        )
    given = _read(modality, method, asked)
    if unfitted:
        scorer.fit(_normal_rows(method, modality, normal, data_dir))
    x, spec = as_floats(given.rows), method.choose("posterior", start, steps)
    with common.REPORTER.progress("scoring") as update:
        joint = scorer.name == "joint"
        scores = (method.anomaly_score(x, seed, spec, progress=update) if joint else scorer(x, update)).tolist()
    ranked = sorted(range(len(scores)), key=lambda i: -scores[i])
    lines = ([i, given.names[i], f"{scores[i]:.9g}"] for i in (ranked if sort else range(len(scores))))
    save_csv(to, ["index", "file", "score"], lines)
    sheet = ""
    if modality.pictures:
        path = to.with_name(f"{to.stem}-strangest.png")
        modality.write_samples(path, x[ranked[:SHEET]], method.generator)
        sheet = f", the most anomalous images in {path}"
    say(f"{len(scores)} scores ({_score_in_words(scorer)}) in {to}{sheet}{_judged_at(scorer, spec)}")


@app.command()
def interpolate(
    run: common.RunArg,
    inputs: common.Inputs = None,
    to: Annotated[Where, Option("--out", help="FILE.png, a row a pair, or FILE.npz; text: FILE.txt.")] = None,
    beam: common.Beam = None,
    points: Annotated[int, Option(min=2, max=1000, help="Points of a path, its ends included.")] = 9,
    steps: common.PosteriorSteps = None,
    start: common.PosteriorStart = None,
    seed: common.Seed = 0,
    device: common.Compute = Device.auto,
    more: common.More = None,
) -> None:
    """Paths in z between images or sentences: from the first to the second, the third to the fourth, and so on."""
    from lebm.core.pixels import as_floats
    from lebm.measure import paths

    asked = _asked(inputs, more)
    method, modality, options = _open(run, device, "interpolate", to, beam=beam)
    spec, rows = method.choose("posterior", start, steps), _read(modality, method, asked).rows
    if len(rows) < 2:
        raise UserError(f"{len(rows)} {modality.noun} is given; a path needs two ends")
    x = as_floats(rows[: len(rows) // 2 * 2])
    ends = x[0::2], x[1::2]
    z, path = paths.interpolate(method, *ends, points, seed, spec, **options)
    modality.write_paths(to, ends, path, z, method.generator)
    say(f"{len(path)} path{'s' * (len(path) > 1)} of {points} points{_in(to)}{common.how_drawn(method, spec)}")


@app.command()
def export(
    run: common.RunArg,
    to: Annotated[Path, target("--out", "FILE.safetensors", ".safetensors")],
    precision: Annotated[Precision, Option(help="Of the weights in the file.")] = Precision.float16,
) -> None:
    """Write a trained model alone as one small file, which every command that takes a model reads."""
    from lebm.run import export as export_model

    export_model(run, to, precision.value)
    say(f"{to}: {to.stat().st_size / 2**20:.1f} MiB")


# --- helpers ----------------------------------------------------------------------------------------------------------


def _open(
    run: Path, device: Device, verb: str, to: Path | None, **given: Any
) -> tuple[Method, Modality, dict[str, Any]]:
    """The model, the modality of its rows and the options that were given, after --out and these were checked."""
    from lebm import modalities

    if to is not None:
        endings = dict.fromkeys(e for m in modalities.MODALITIES.values() for e in m.endings[verb])
        common.check_target("--out", to, *endings)
    method = common.load_model(run, device)
    modality = modalities.of(method.generator.modality)
    modality.check_target(verb, to)
    options = {name: value for name, value in given.items() if value is not None}
    modality.check_options(**options)
    return method, modality, options


def _asked(inputs: Several, more: list[str] | None) -> list[str | Path]:
    asked: list[str | Path] = [*(inputs or []), *(more or [])]
    if not asked:
        raise UserError(
            "no input is given; name images or a text file with --input, or for a text model give sentences in quotes"
        )
    return asked


def _read(modality: Modality, method: Method, asked: list[str | Path]) -> Inputs:
    given = modality.read_inputs(asked, method.generator)
    for note in given.notes:
        say(f"note: {note}")
    return given


def _in(to: Path | None) -> str:
    return f" in {to}" if to else ""


def _scorer(path: Path, name: str | None, seed: int, device: Device) -> Scorer:
    """Of a run, or of a saved detector, which is fitted already."""
    from lebm.core.tensors import read_meta
    from lebm.detect.scores import Scorer

    if not (path.is_file() and "detector" in read_meta(path)):
        return Scorer(common.load_model(path, device), name, seed)
    from lebm.detect.detector import Detector

    scorer = Detector.load(path, device.value).scorer_
    if name not in (None, scorer.name):
        raise UserError(f"the detector in {path} scores by {scorer.name}, not by {name}; leave --score out")
    if scorer.method.generator.modality == "table":
        raise UserError(
            f"the detector in {path} is one for tables, whose rows it standardises; "
            "score them with lebm.Detector.load(...).decision_function"
        )
    return scorer


def _normal_rows(method: Method, modality: Modality, normal: Several, data_dir: Where) -> Tensor:
    """What a combined score is fitted to: the rows given, or the run's training rows."""
    from lebm.core.pixels import as_floats
    from lebm.data import HANDED_IN, data_root
    from lebm.data import load as load_data
    from lebm.detect.experiment import normal_rows

    if normal:
        return as_floats(modality.read_inputs(normal, method.generator).rows)
    if method.config.data.name == HANDED_IN:
        raise UserError(
            "the score combined is fitted to normal rows, and those of this run were handed in; name some with --normal"
        )
    splits = load_data(method.config.with_values(**{"data.limit": None}), data_root(data_dir))
    return as_floats(normal_rows(method.config, splits))


def _score_in_words(scorer: Scorer) -> str:
    """The name of a score; `joint` is that of LatentEBM, for which another method has its own."""
    from lebm.latent_ebm import LatentEBM
    from lebm.method import Method

    method = scorer.method
    if scorer.name != "joint" or isinstance(method, LatentEBM):
        return scorer.name
    default = type(method).anomaly is Method.anomaly
    return f"{'-log p(x|z), ' if default else ''}the score of {type(method).__name__}"


def _judged_at(scorer: Scorer, spec: Any) -> str:
    """How the z was drawn at which rows were scored."""
    if scorer.name == "likelihood":
        return "; z: importance weights around long posterior chains"
    return "; z: the encoder's mean" if scorer.at_mean else common.how_drawn(scorer.method, spec)

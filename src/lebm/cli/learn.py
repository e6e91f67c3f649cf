"""Commands that learn and measure: train, demo, evaluate, anomaly."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from lebm.cli import common
from lebm.cli.common import POSTERIOR_STARTS, PRIOR_STARTS, Count, Device, Split, Text, Where, app, say
from lebm.core.errors import UserError

if TYPE_CHECKING:
    from lebm.config import Config


@app.command()
def train(
    source: Annotated[str, Argument(metavar="PRESET_OR_YAML", help="A preset (`lebm presets`), a YAML file or a run.")],
    settings: common.Settings = None,
    run: Annotated[Where, Option(help="The run folder; default runs/NAME.")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on from the last checkpoint of the run folder.")] = False,
    max_seconds: Annotated[float | None, Option(min=0, help="Stop, saved, after so many seconds.")] = None,
    device: common.Compute = Device.auto,
    seed: Annotated[Count, Option(min=0, help="The run's seed; the same as --set seed=N.")] = None,
    data_dir: common.DataDir = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print configuration and the model's size, then stop.")] = False,
    verbose: Annotated[bool, Option("--verbose", "-v", help="Print all the configuration, not only changes.")] = False,
) -> None:
    """Learn a model."""
    from lebm.config import resolve

    config = resolve(source, [*(settings or []), *([f"seed={seed}"] if seed is not None else [])])
    known = (Path(source) / "config.yaml").is_file()
    if known and not resume and run is None and not settings and seed is None:
        raise UserError(
            f"{source} is a run; add --resume to go on with it, or give another --run to learn the same again"
        )
    from lebm.data import check as check_data

    check_data(config)
    if dry_run:
        _dry_run(config, device)
        return
    from lebm.run import check_run, default_folder, latest_folder
    from lebm.training.train import train as train_model

    if run is None:
        run = (Path(source) if known else latest_folder(config.name)) if resume else default_folder(config.name)
    check_run(run, config, resume)
    _show(config, verbose)
    say(f"run folder: {run}")
    train_model(config, run=run, resume=resume, max_seconds=max_seconds, **common.resources(device, data_dir))
    from lebm import modalities

    named = shlex.quote(str(run))
    more = modalities.of(config.generator.MODALITY).sample_example()
    say(f"look at it: lebm evaluate {named}   or   lebm sample {named} {more}")


def _dry_run(config: Config, device: Device) -> None:
    from lebm.config import check_learning
    from lebm.config.build import build
    from lebm.core.device import pick_device

    check_learning(config)
    print(config.to_yaml(), end="")
    sizes = {name: sum(p.numel() for p in net.parameters()) for name, net in build(config).networks().items()}
    counts = ", ".join(f"{name} {n:,}" for name, n in sizes.items())
    say(f"parameters: {counts}; device {pick_device(device.value)}")


def _show(config: Config, verbose: bool) -> None:
    """What differs from the preset, or all of the configuration."""
    from lebm.config import differences

    if verbose:
        from rich.syntax import Syntax

        common.stderr().print(Syntax(config.to_yaml(), "yaml", background_color="default"))
        return
    base = f"the preset {config.based_on}" if config.based_on else "the defaults"
    changed = differences(config)
    say(f"configuration: {base}{', with' if changed else ''}")
    for key, (before, after) in changed.items():
        say(f"    {key}: {_value(after)} instead of {_value(before)}")


def _value(value: Any) -> str:
    """As in YAML, cut where it is long."""
    text = "null" if value is None else str(value).replace("'", "")
    return text if len(text) <= 60 else text[:57] + "..."


@app.command()
def demo(
    run: Annotated[Path, Option(help="The run folder.")] = Path("runs/demo"),
    device: common.Compute = Device.cpu,
) -> None:
    """Train on the embedded 8x8 digits and make a report: the whole method in a few minutes on a CPU."""
    from lebm.config import resolve
    from lebm.measure import analysis
    from lebm.measure.evaluate import evaluate as evaluate_run
    from lebm.show import report
    from lebm.training.train import train as train_model

    say("Learning a latent energy-based prior on scikit-learn's 8x8 digits: about a minute on two cores.")
    train_model(resolve("digits"), run=run, resume=run.exists(), device=device.value, reporter=common.REPORTER)
    summary = evaluate_run(run, device=device.value, reporter=common.REPORTER)
    common.print_metrics(summary)
    analysis.complete(analysis.Subject(run, device.value, reporter=common.REPORTER))
    page, m = report.write(run), summary["metrics"]
    print(
        f"Samples from the learned prior lie {m['frechet_gaussian'] / m['frechet']:.1f} times closer to the data than "
        "samples from N(0, I) through the same generator: this is what the energy-based prior buys."
    )
    print(f"report: {page.resolve()}")


@app.command()
def evaluate(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="A run folder; several are seeds of one configuration.")],
    metrics: Annotated[Text, Option(help="Comma-separated names from `lebm metrics`; default what fits.")] = None,
    samples: Annotated[Count, Option(min=2, help="How many to draw; default 50,000 for FID, else 10,000.")] = None,
    split: Annotated[Split, Option(help="What the FID compares with; `validation` uses no test images.")] = Split.train,
    limit: Annotated[Count, Option(min=1, help="Only so many test images for mse; default all.")] = None,
    seed: Annotated[Count, Option(min=0, help="Seed of the noise; default 0, and 1 for `validation`.")] = None,
    prior_start: Annotated[Text, Option(metavar="NAME", help=f"Start of prior chains: {PRIOR_STARTS}.")] = None,
    prior_steps: Annotated[Count, Option(min=0, help="Langevin steps of prior chains.")] = None,
    posterior_start: Annotated[Text, Option(metavar="NAME", help=f"Start of inference: {POSTERIOR_STARTS}.")] = None,
    posterior_steps: Annotated[Count, Option(min=0, help="Langevin steps of the inference.")] = None,
    beside: Annotated[bool, Option("--beside", help="Set runs that differ beyond the seed side by side.")] = False,
    device: common.Compute = Device.auto,
    data_dir: common.DataDir = None,
    result: common.Result = None,
) -> None:
    """Measure a run: metrics.json, figures and report.html in its folder. Of several runs, the mean too."""
    from lebm.measure.evaluate import evaluate_all

    chosen = [m.strip() for m in metrics.split(",") if m.strip()] if metrics else None
    samplers = {"prior": (prior_start, prior_steps), "posterior": (posterior_start, posterior_steps)}
    how = {"samples": samples, "split": split.value, "limit": limit, "seed": seed}
    summary = evaluate_all(runs, chosen, beside, **samplers, **how, **common.resources(device, data_dir))
    common.write_result(result, summary)
    common.print_metrics(summary)
    if split is not Split.validation:
        for run in runs:
            print(f"report: {(run / 'report.html').resolve()}")


@app.command()
def anomaly(
    digits: Annotated[Text, Option(help="Labels that are the anomaly in turn; default 1,4,5,7,9.")] = None,
    preset: Annotated[str, Option(metavar="PRESET_OR_YAML", help="Or mnist/anomaly-paper.")] = "mnist/anomaly",
    seeds: Annotated[str, Option(help="Seeds of the training, with commas; the split is always the same.")] = "1",
    settings: common.Settings = None,
    run: Annotated[Where, Option(help="The folder of the runs; default runs/NAME. What it holds goes on.")] = None,
    neighbours: Annotated[bool, Option("--neighbours", help="Score by the nearest training image instead.")] = False,
    device: common.Compute = Device.auto,
    data_dir: common.DataDir = None,
    result: common.Result = None,
) -> None:
    """The paper's anomaly detection: train without one digit, detect it among the others; each digit in turn."""
    from lebm.config import resolve

    config = resolve(preset, settings or [])
    from lebm.detect import experiment

    labels = experiment.CLASSES if digits is None else _numbers("--digits", digits)
    options = common.resources(device, data_dir)
    if neighbours:
        summary = experiment.nearest_neighbours(config, labels, **options)
    else:
        several = _numbers("--seeds", seeds)
        summary = experiment.experiment(config, labels, several, run or Path("runs") / config.name, **options)
    common.write_result(result, summary)
    _print_auprc(summary)


def _numbers(option: str, text: str) -> list[int]:
    """1,4,5 -> [1, 4, 5]."""
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts or not all(p.isdecimal() for p in parts) or len(set(parts)) < len(parts):
        raise UserError(f"{option} is {text!r}; give different whole numbers with commas between, such as 1,4,5")
    return [int(p) for p in parts]


def _print_auprc(summary: dict[str, Any]) -> None:
    metrics, rows = summary["metrics"], []
    for label, chance in metrics["chance"].items():
        cells = []
        for m in (metrics[name][label] for name in ("auprc", "auprc_fifth", "auroc")):
            cells.append(f"{m['mean']:.3f}" + ("" if m["spread"] is None else f" ± {m['spread']:.3f}"))
        rows.append([label, cells[0], f"{chance:.3f}", *cells[1:]])
    common.print_table(["anomaly", "AUPRC", "chance", "with a fifth of the anomalies", "AUROC"], rows)

"""Commands that learn and measure."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.syntax import Syntax
from rich.table import Table

from lebm import analysis, report
from lebm.anomaly import mnist as protocol
from lebm.bench import bench as run_bench
from lebm.cli.common import (
    DataOpt,
    Device,
    DeviceOpt,
    Precision,
    ResultOpt,
    RunArg,
    SettingsOpt,
    Split,
    app,
    check_result,
    check_target,
    console,
    out,
    print_metrics,
    say,
    write_result,
)
from lebm.config import check_learning, resolve
from lebm.data import check as check_data
from lebm.errors import UserError
from lebm.evaluate import evaluate as evaluate_run
from lebm.evaluate import evaluate_all as evaluate_runs
from lebm.model import LatentEBM
from lebm.model import export as export_model
from lebm.runs import check_run, default_folder, latest_folder
from lebm.training import pick_device
from lebm.training import train as train_model


@app.command()
def train(
    source: Annotated[
        str, typer.Argument(metavar="PRESET_OR_YAML", help="A preset (see `lebm presets`), a YAML file, or a run folder to go on with.")
    ],
    settings: SettingsOpt = None,
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
    known = (Path(source) / "config.yaml").is_file()
    if known and not resume and run is None and not settings and seed is None:
        raise UserError(f"{source} is a run; add --resume to go on with it, or name another folder with --run to learn the same again")
    check_data(config)
    if dry_run:
        check_learning(config)
        print(config.to_yaml(), end="")
        model = LatentEBM(config)
        counts = (f"{name} {sum(p.numel() for p in net.parameters()):,}" for name, net in model.networks().items())
        say(f"parameters: {', '.join(counts)}; device {pick_device(device.value)}")
        return
    if run is None:
        run = (Path(source) if known else latest_folder(config.experiment)) if resume else default_folder(config.experiment)
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
    print_metrics(summary)
    analysis.complete(analysis.Subject(run, device.value, console=console))
    report.write(run)
    m = summary["metrics"]
    print(
        f"Samples from the learned prior lie {m['frechet_gaussian'] / m['frechet']:.1f} times closer to the data than samples "
        "from N(0, I) through the same generator: this is what the energy-based prior buys."
    )
    print(f"report: {(run / 'report.html').resolve()}")


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
    result: ResultOpt = None,
) -> None:
    """Measure a run: metrics.json, figures and report.html in its folder. Of several runs, the mean too."""
    check_result(result)
    chosen = tuple(m.strip() for m in metrics.split(",") if m.strip()) if metrics else None
    options = {"samples": samples, "split": split.value, "limit": limit, "seed": seed, "device": device.value, "data_dir": data_dir}
    summary = evaluate_runs(runs, chosen, beside, prior_by=prior_by, posterior_by=posterior_by, console=console, **options)
    write_result(result, summary)
    print_metrics(summary)
    if split is not Split.validation:
        for run in runs:
            print(f"report: {(run / 'report.html').resolve()}")


@app.command()
def anomaly(
    digits: Annotated[str, typer.Option(help="Which labels are the anomaly in turn, comma-separated.")] = ",".join(map(str, protocol.DIGITS)),
    preset: Annotated[
        str, typer.Option(metavar="PRESET_OR_YAML", help="mnist-anomaly, mnist-anomaly-paper, or a configuration of yours.")
    ] = "mnist-anomaly",
    seeds: Annotated[str, typer.Option(help="Seeds of the training, comma-separated; the split is always the same.")] = "1",
    settings: SettingsOpt = None,
    run: Annotated[Path | None, typer.Option(help="The folder of the runs; default runs/EXPERIMENT. What is there already goes on.")] = None,
    neighbours: Annotated[bool, typer.Option("--neighbours", help="Learn nothing: score by the distance to the nearest training image.")] = False,
    device: DeviceOpt = Device.auto,
    data_dir: DataOpt = None,
    result: ResultOpt = None,
) -> None:
    """The paper's anomaly detection: train without one digit, find it among the others; each digit in turn."""
    check_result(result)
    config = resolve(preset, settings or [])
    labels = _numbers("--digits", digits)
    if neighbours:
        summary = protocol.neighbours(config, labels, device=device.value, data_dir=data_dir, console=console)
    else:
        folder = run or Path("runs") / config.experiment
        several = _numbers("--seeds", seeds)
        summary = protocol.experiment(config, labels, several, folder, device=device.value, data_dir=data_dir, console=console, say=say)
    write_result(result, summary)
    _print_auprc(summary)


@app.command()
def export(
    run: RunArg,
    to: Annotated[Path, typer.Option("--out", help="FILE.safetensors")],
    precision: Annotated[Precision, typer.Option(help="Of the weights in the file.")] = Precision.float16,
) -> None:
    """Write a trained model alone as one small file: for `lebm sample`, `reconstruct`, `score` and `lebm.load` elsewhere."""
    check_target("--out", to, ".safetensors")
    export_model(run, to, precision.value)
    say(f"{to}: {to.stat().st_size / 2**20:.1f} MiB")


@app.command()
def bench(
    preset: Annotated[list[str] | None, typer.Option(help="Which to measure; may be repeated. Default svhn on CUDA, digits on a CPU.")] = None,
    settings: SettingsOpt = None,
    device: DeviceOpt = Device.auto,
    sweep: Annotated[bool, typer.Option(help="Also vary the batch and both chains' lengths, for the first preset.")] = True,
    to: Annotated[Path | None, typer.Option("--out", help="The result file; default results/bench-DEVICE.json.")] = None,
) -> None:
    """Time a learning iteration beside the paper's listing and the hardware's floor."""
    chosen = preset or (["svhn"] if pick_device(device.value).type == "cuda" else ["digits"])
    run_bench(chosen, device.value, to, sweep, settings or [], out)


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

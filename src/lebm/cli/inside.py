"""Commands that look inside a run: chains, diagnose, neighbours, report, explore; and fid, of any two image sets."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lebm.cli import common
from lebm.cli.common import Count, Device, Text, Where, app, say, target
from lebm.core.errors import UserError

LONG = 1000  # steps from which on `lebm chains` measures distances
SAMPLES = 10_000


@app.command()
def chains(
    run: common.FolderArg,
    steps: Annotated[int, Option(min=1, help="Langevin steps; 2500 is the paper's long-run test.")] = 100,
    every: Annotated[Count, Option(min=1, help="Show every so many steps; default a tenth of --steps.")] = None,
    rows: Annotated[int, Option(min=1, max=200, help="How many chains to show.")] = 8,
    samples: Annotated[Count, Option(min=0, help="For distances; default 10,000 from 1,000 steps on.")] = None,
    metric: Annotated[Text, Option(help="fid (Inception) or frechet (pixels); default what fits.")] = None,
    seed: common.Seed = 0,
    device: common.Compute = Device.auto,
    data_dir: common.DataDir = None,
    result: common.Result = None,
) -> None:
    """Chains of the learned prior, started as the run starts them: images, energies, an animation and the data."""
    if metric not in (None, "fid", "frechet"):
        raise UserError(f"--metric is {metric!r}; it must be fid or frechet")
    wanted = steps >= LONG if samples is None else samples > 0
    if result is not None and not wanted:
        raise UserError(
            f"--result holds distances, and after {steps} steps none is measured; "
            "add --samples 10000, or take 1,000 steps and more"
        )
    from lebm.measure import analysis, longrun
    from lebm.show import report

    subject = analysis.Subject(run, device.value, data_dir, common.REPORTER)
    measured = wanted and (samples is not None or subject.modality.pictures)
    if measured:
        longrun.check(subject, steps)
    with subject.threads():
        part = analysis.chains(subject, steps, every, rows, seed)
        subject.write("chains", part)
        own = subject.method.choose("prior")
        if not common.is_usual(subject.method, own):
            say(f"note: the chains start like those of the run's samples, whose z are drawn thus: {own.in_words()}")
        for k, lines in zip(part["steps"], part.get("sentences", []), strict=False):
            print(f"step {k}\n" + "\n".join(f"    {line}" for line in lines))
        for name in ("figures/chains.png", "figures/chains.webp", "chains.npz"):
            if (run / name).is_file() and not (name.endswith("webp") and "sentences" in part):
                say(f"{run / name}")
        if measured:
            summary = longrun.measure(subject, steps, samples or SAMPLES, metric, seed)
            if (drawn := summary["protocol"]["long_run"]["samples"]) < (samples or SAMPLES):
                say(
                    f"note: the distances are of {drawn} samples, as many as this run has replayed chains: "
                    "more of them would run for longer than the others"
                )
            common.print_metrics(summary)
            print(longrun.in_words(summary))
            subject.write("long_run", {"metrics": summary["metrics"], "protocol": summary["protocol"]["long_run"]})
            common.write_result(result, summary)
    report.write(run)


@app.command()
def diagnose(
    run: common.FolderArg, seed: common.Seed = 0, device: common.Compute = Device.auto, data_dir: common.DataDir = None
) -> None:
    """Say whether the prior chains are steady, drifting, frozen or oversaturated, with the numbers behind it."""
    from lebm.measure import analysis
    from lebm.show import report

    subject = analysis.Subject(run, device.value, data_dir, common.REPORTER)
    with subject.threads():
        part = analysis.diagnose(subject, seed)
    subject.write("diagnostics", part)
    print(f"{part['verdict']}: {part['words']}")
    z, rows = part["log_z"], [[name, f"{value:g}"] for name, value in part["statistics"].items()]
    estimate = ["log Z, estimate", f"{z['value']:.3f} ± {z['error']:.3f}"]
    common.print_table(["statistic of f along the chains", "value"], [*rows, estimate])
    print(f"report: {report.write(run).resolve()}")


@app.command()
def neighbours(
    run: common.FolderArg,
    n: Annotated[int, Option("-n", min=1, max=64, help="How many samples to show.")] = 8,
    seed: common.Seed = 0,
    device: common.Compute = Device.auto,
    data_dir: common.DataDir = None,
) -> None:
    """Samples beside their nearest training images: does the model copy?"""
    from lebm.measure import analysis
    from lebm.measure.neighbours import in_words

    subject = analysis.Subject(run, device.value, data_dir, common.REPORTER)
    part = analysis.find_neighbours(subject, n, seed)
    subject.write("neighbours", part)
    print(in_words(part))
    say(f"{run / 'figures' / 'neighbours.png'}")


@app.command("report")
def report_(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="A run folder; several are compared side by side.")],
    to: Annotated[Where, target("--out", "FILE.html; default in the run folder, or comparison.html.", ".html")] = None,
    compute: Annotated[bool, Option(help="Draw what the folder lacks; needs model and data.")] = True,
    device: common.Compute = Device.auto,
    data_dir: common.DataDir = None,
) -> None:
    """One self-contained page about a run, or about several side by side."""
    from lebm.measure import analysis
    from lebm.run import Run
    from lebm.show import report

    for run in runs:
        if not Run(run).exists():
            raise UserError(f"{run} is not a run folder; give the folder that training wrote, with its config.yaml")
    for subject in [analysis.Subject(run, device.value, data_dir, common.REPORTER) for run in runs] if compute else []:
        for note in analysis.complete(subject):
            say(f"left out, {note}")
    path = report.write(runs[0], to) if len(runs) == 1 else report.compare(runs, to or Path("comparison.html"))
    print(f"report: {path.resolve()}")


@app.command()
def explore(
    run: common.FolderArg,
    port: Annotated[int, Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 0,
    open_page: Annotated[bool, Option("--open", help="Also open the page in a browser.")] = False,
    device: common.Compute = Device.auto,
    data_dir: common.DataDir = None,
) -> None:
    """A page on this machine to play with the model: chains, directions in z, your own pictures. Ctrl-C ends it."""
    import webbrowser

    from lebm.measure.analysis import Subject
    from lebm.show.explorer.lab import Lab
    from lebm.show.explorer.server import Server
    from lebm.training.loop import stop_on_signals

    subject = Subject(run, device.value, data_dir)
    subject.images_only("these pages")
    say("looking for the strongest directions in z ...")
    with subject.threads(), Server(Lab(subject), port) as server, stop_on_signals() as stop:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"open {server.address}", flush=True)
        say("the address holds a secret and works on this machine only; Ctrl-C ends it")
        # The reference scores are then ready when the first picture comes.
        threading.Thread(target=server.lab.reference, daemon=True).start()
        if open_page:
            webbrowser.open(server.address)
        while not stop:
            time.sleep(0.1)
        server.shutdown()


@app.command()
def fid(
    a: Annotated[str, Argument(metavar="IMAGES", help="NAME:train, NAME:test, a folder, a .npy or .npz file.")],
    b: Annotated[Text, Argument(metavar="IMAGES", help="The same; without it statistics are stored.")] = None,
    device: common.Compute = Device.auto,
    data_dir: common.DataDir = None,
    result: common.Result = None,
) -> None:
    """The Fréchet Inception distance between two sets of images."""
    from lebm.measure import compare

    summary, paths = compare.fid(a, b, device=device.value, data_dir=data_dir, reporter=common.REPORTER)
    common.write_result(result, summary)
    for one, path in zip(summary["data"].values(), paths, strict=True):
        say(f"{one['name']}: {one['images']} images{f', statistics stored in {path}' if path else ''}")
    if b is not None:
        print(f"fid {summary['metrics']['fid']:.4f}")

"""Commands that look inside a run, and at what is there: pictures, pages, presets, data."""

from __future__ import annotations

import threading
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from lebm import analysis, compare, report
from lebm.analysis import chains as chain_pictures
from lebm.analysis import diagnostics, longrun, paths
from lebm.cli.common import (
    DataOpt,
    Device,
    DeviceOpt,
    FolderArg,
    ResultOpt,
    SeedOpt,
    app,
    check_result,
    check_target,
    console,
    out,
    print_metrics,
    say,
    write_result,
)
from lebm.config import BASES, preset_names, resolve
from lebm.data import DATASETS, data_root, download
from lebm.errors import UserError
from lebm.explore import Lab, Server
from lebm.log import progress_bar
from lebm.loop import stop_on_signals
from lebm.metrics import inception
from lebm.training import fitting_threads


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
    """Chains of the learned prior from where the run's own start, with their images and energy on the way: figure, animation, data."""
    measured = steps >= 1000 if samples is None else samples > 0
    if metric not in (None, "fid", "frechet"):
        raise UserError(f"--metric is {metric!r}; it must be fid or frechet")
    check_result(result)
    if result is not None and not measured:
        raise UserError(f"--result holds distances, and after {steps} steps none is measured; add --samples 10000, or take 1,000 steps and more")
    subject = analysis.Subject(run, device.value, data_dir, console)
    measured = measured and bool(samples or not subject.of_text)
    if measured:
        longrun.check(subject, steps)
    with fitting_threads(subject.model):
        found = chain_pictures.draw(subject, steps, every, rows, seed)
        subject.keep("chains", found)
        if begun := chain_pictures.begun(found["start"], found["trained"]):
            say(begun.strip())
        for k, lines in zip(found["steps"], found.get("sentences", []), strict=False):
            print(f"step {k}\n" + "\n".join(f"    {line}" for line in lines))
        for name in ("figures/chains.png", *(() if "sentences" in found else ("figures/chains.webp",)), "chains.npz"):
            say(f"{run / name}")
        if measured:
            summary = longrun.measure(subject, steps, samples or 10_000, metric, seed)
            if (drawn := summary["protocol"]["long_run"]["samples"]) < (samples or 10_000):
                say(
                    f"note: the distances are of {drawn} samples, as many as this run keeps chains: more of them would run for longer than the others"
                )
            subject.keep("long_run", {"metrics": summary["metrics"], "protocol": summary["protocol"]["long_run"]})
            write_result(result, summary)
            print_metrics(summary)
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
        check_target("--out", to, ".html")
    for run in runs:
        if not (run / "config.yaml").is_file():
            raise UserError(f"{run} is not a run folder; give the folder that training wrote, with its config.yaml")
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
    subject.images_only("these pages")
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
    result: ResultOpt = None,
) -> None:
    """The Fréchet Inception distance between two sets of images."""
    check_result(result)
    summary, kept = compare.fid(a, b, device=device.value, data_dir=data_dir, console=console)
    write_result(result, summary)
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

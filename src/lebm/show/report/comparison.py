"""Several runs on one page: numbers side by side, samples, curves in shared charts, and where the settings differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lebm.show import charts
from lebm.show.charts import COLOURS, Chart, Series
from lebm.show.report import svg
from lebm.show.report.folder import Folder, number_of
from lebm.show.templates import is_number, render

Folders = dict[str, Folder]  # by the names under which the page shows them


def body(folders: Sequence[Folder]) -> str:
    runs = dict(zip(distinct(folders), folders, strict=True))
    names = dict.fromkeys(name for f in folders for name in f.numbers)
    return render(
        "report/comparison.html",
        draw=svg.draw,
        runs=runs,
        numbers=[(number_of(name), cells(runs, name)) for name in names],
        verdicts=[f.part("diagnostics").get("verdict") for f in folders],
        energy=energy(runs),
        curves=charts.training({name: f.rows for name, f in runs.items()}, unit(folders)),
        settings=settings(folders),
    )


def unit(folders: Sequence[Folder]) -> str:
    """What the rows of all runs consist of."""
    units = {f.modality.unit for f in folders}
    return units.pop() if len(units) == 1 else "number"


def distinct(folders: Sequence[Folder]) -> list[str]:
    """The folders' names, with as many of their parents' as tells them apart."""
    paths = [f.run.path.resolve() for f in folders]
    for depth in range(1, 6):
        names = ["/".join(p.parts[-depth:]) for p in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{n} ({i + 1})" for i, n in enumerate(names)]


def cells(runs: Folders, name: str) -> list[tuple[Any, bool, str]]:
    """One number of every run, whether it is the best, and how z was drawn where the runs differ in that."""
    values = [(f.metrics.get(name), f.sampled(name)) for f in runs.values()]
    alike = len({how for value, how in values if value is not None}) == 1
    there = [float(value) for value, _ in values if is_number(value)]
    lower, best = number_of(name).lower_is_better, None
    if lower is not None and len(there) > 1 and comparable(runs, name, alike):
        best = min(there) if lower else max(there)
    return [(value, best is not None and value == best, "" if alike else how) for value, how in values]


def comparable(runs: Folders, name: str, alike: bool) -> bool:
    """Whether there can be a best: on one data set, with z drawn alike or as each run learned to draw it."""
    if len({f.config.get("data.name") for f in runs.values()}) > 1:
        return False
    drawn = [(f, measured[0]) for f in runs.values() if (measured := f.sampler(name))]
    return alike or all((f.start(s.target), f.chain(s.target)) == (s.start, s.steps > 0) for f, s in drawn)


def energy(runs: Folders) -> Chart | None:
    profiles = {name: f.part("diagnostics").get("profile") for name, f in runs.items()}
    series = [
        Series(name, p["step"], [v - p["middle"][-1] for v in p["middle"]], i % COLOURS)
        for i, (name, p) in enumerate(profiles.items())
        if p
    ]
    title, x, y = "Energy along the chains", "Langevin step", "energy above its end"
    return Chart(title, series, x, y, zero=True) if series else None


def settings(folders: Sequence[Folder]) -> list[tuple[str, list[Any]]]:
    """The keys in which the configurations differ, with the value of every run."""
    keys = dict.fromkeys(key for f in folders for key in f.config)
    rows = [(key, [f.config.get(key) for f in folders]) for key in keys]
    return [(key, values) for key, values in rows if len({repr(v) for v in values}) > 1]

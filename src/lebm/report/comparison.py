"""Several runs on one page: numbers side by side, samples, training curves in one chart, and where the settings differ."""

from __future__ import annotations

from collections.abc import Sequence

from lebm import figures
from lebm.config import flatten
from lebm.report.charts import Series, lines
from lebm.report.folder import Folder
from lebm.report.sections import METRICS, last_step, note, panel_chart, picture, section, short, text
from lebm.report.ways import sampled

LOWER_IS_BETTER = {"frechet": "prior", "fid": "prior", "mse": "posterior", "mse_100": "posterior", "bits_per_dim": ""}  # and which z it is of


def body(folders: Sequence[Folder]) -> str:
    names = distinct(folders)
    parts = (header(folders, names), numbers(folders, names), samples(folders, names), energy(folders, names), curves(folders, names))
    return "\n".join([*parts, settings(folders, names)])


def distinct(folders: Sequence[Folder]) -> list[str]:
    """The folders' names, longer where they are the same."""
    depth, paths = 1, [f.path.resolve() for f in folders]
    while depth < 6:
        names = ["/".join(p.parts[-depth:]) for p in paths]
        if len(set(names)) == len(names):
            return names
        depth += 1
    return [f"{n} ({i + 1})" for i, n in enumerate(names)]


def header(folders: Sequence[Folder], names: Sequence[str]) -> str:
    return f"""<header>
<p class="eyebrow">Comparison</p>
<h1>{len(folders)} runs side by side</h1>
<p class="lead">{", ".join(text(n) for n in names)}</p>
</header>"""


def numbers(folders: Sequence[Folder], names: Sequence[str]) -> str:
    keys = list(dict.fromkeys(key for f in folders for key in f.metrics if not key.endswith("_error")))
    one_set = len({f.setting("data.name") for f in folders}) == 1  # numbers on different data have no best
    rows = [_row("updates", "", [f.result.get("steps") or last_step(f) for f in folders], False)]
    for key in keys:
        ways, fair = drawn(folders, key)
        title, words = METRICS.get(key, (key, ""))
        rows.append(_row(title, words, [f.metrics.get(key) for f in folders], one_set and fair and key in LOWER_IS_BETTER, ways))
    verdicts = [f.part("diagnostics").get("verdict") for f in folders]
    if any(verdicts):
        rows.append(_row("chains", "steady, drifting, frozen or oversaturated", verdicts, False))
    head = "".join(f'<th scope="col" class="number">{text(n)}</th>' for n in names)
    table = f'<table><thead><tr><th scope="col">Metric</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return section("summary", "Numbers", f'<div class="card scroll">{table}</div>')


def drawn(folders: Sequence[Folder], key: str) -> tuple[list[str | None], bool]:
    """By which ways the z of a number were drawn, a run each and nothing where all took the same; and whether there can be a best: by different
    ways only where each run took its own."""
    kind = LOWER_IS_BETTER.get(key)
    owns = [(f.setting(f"draw.{kind}") or "langevin") if kind else None for f in folders]
    ways = [f.measured_by(key) or own for f, own in zip(folders, owns, strict=True)]  # a file from before it was named: the run's own
    there = [(way, own) for f, way, own in zip(folders, ways, owns, strict=True) if key in f.metrics]
    if len({way for way, _ in there}) == 1:
        return [], True
    return [way if key in f.metrics else None for f, way in zip(folders, ways, strict=True)], all(way == own for way, own in there)


def _row(title: str, words: str, values: Sequence[object], lower: bool, ways: Sequence[str | None] = ()) -> str:
    """A number a run; with `ways` each says how its z was drawn."""
    found = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    best = min(found) if lower and len(found) > 1 else None
    notes = [f"<small>z by {text(by)}</small>" if by else "" for by in ways] or [""] * len(values)
    shown = [f"<mark>{text(v)}</mark>" if best is not None and v == best else text(v) for v in values]
    cells = "".join(f'<td class="number">{v}{note}</td>' for v, note in zip(shown, notes, strict=True))
    return f'<tr><th scope="row">{text(title)}{f"<small>{words}</small>" if words else ""}</th>{cells}</tr>'


def samples(folders: Sequence[Folder], names: Sequence[str]) -> str:
    cards = ""
    for folder, name in zip(folders, names, strict=True):
        image = folder.picture("samples")
        how = sampled(folder.drawn("samples")).removeprefix(", ")
        cards += picture(image, f"Samples of {name}", text(name), how, "") if image else note(f"{text(name)} has no samples yet: evaluate it.")
    return section("samples", "Samples", f'<div class="runs">{cards}</div>')


def energy(folders: Sequence[Folder], names: Sequence[str]) -> str:
    found = [(f.part("diagnostics").get("profile"), n) for f, n in zip(folders, names, strict=True)]
    series = [Series(n, p["step"], [v - p["middle"][-1] for v in p["middle"]], i % 6) for i, (p, n) in enumerate(found) if p]
    if not series:
        return ""
    words = "<p>The median energy of prior chains above where it ends: f is free up to a constant, so only its shape compares.</p>"
    chart = lines("Energy along the chains", series, "Langevin step", "energy above its end", zero=True)
    return section("energy", "Energy along the chains", f'{words}<div class="single">{chart}</div>')


def curves(folders: Sequence[Folder], names: Sequence[str]) -> str:
    by_run = [({panel.title: found for panel, found in figures.log_curves(f.rows)}, n) for f, n in zip(folders, names, strict=True)]
    charts = []
    for panel in figures.PANELS:
        there = [(found[panel.title], n) for found, n in by_run if panel.title in found]
        if there:
            charts.append(panel_chart(panel, there))
    if not charts:
        return section("curves", "Training", note("No training log with numbers in it."))
    return section("curves", "Training", f'<div class="panels two">{"".join(charts)}</div>')


def settings(folders: Sequence[Folder], names: Sequence[str]) -> str:
    flat = [flatten(f.config) for f in folders]
    keys = [k for k in dict.fromkeys(key for values in flat for key in values) if len({repr(values.get(k)) for values in flat}) > 1]
    if not keys:
        return section("config", "Settings", "<p>All runs have the same configuration.</p>")
    head = "".join(f'<th scope="col" class="number">{text(n)}</th>' for n in names)
    rows = "".join(
        f'<tr><th scope="row">{text(k)}</th>{"".join(f"<td class=differs>{short(v[k]) if isinstance(v.get(k), float) else text(v.get(k))}</td>" for v in flat)}</tr>'
        for k in keys
    )
    table = f'<table><thead><tr><th scope="col">Setting</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return section("config", "Where the settings differ", f'<div class="card scroll">{table}</div>')

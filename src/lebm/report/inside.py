"""The parts of the page that look inside the model, from analysis.json: chains, diagnostics, neighbours, paths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from lebm.methods.ways import STARTS
from lebm.report.charts import Series, lines, scatter
from lebm.report.folder import Folder
from lebm.report.sections import note, picture, section, short, text

GOOD = {"steady": "good"}


def chains(folder: Folder) -> str:
    """A strip of images over a slider: one sheet of frames, of which a window shows one row."""
    found, sheet = folder.part("chains"), folder.picture("chains-frames")
    if found and "sentences" in found:
        return said(folder, found)
    if not found or not sheet:
        return energy(folder)
    steps, rows, (h, w) = [int(k) for k in found["steps"]], int(found["rows"]), map(int, found["tile"])  # numbers, whatever the file holds
    data = {"steps": steps, "energy": found["shown"]}
    numbers = "".join(f"<span>{short(float(e))}</span>" for e in found["shown"][-1])
    player = f"""<div class="card player" data-player="{escape(json.dumps(data))}" style="--rows:{rows};--frames:{len(steps)}">
<div class="window" style="aspect-ratio:{rows * w}/{h}"><img src="{sheet}" alt="Images decoded along {rows} chains from {start(folder, found)} to the learned prior" style="--k:{len(steps) - 1}"></div>
<div class="energies" aria-hidden="true">{numbers}</div>
<div class="controls"><button type="button" data-play>Play</button>
<input type="range" min="0" max="{len(steps) - 1}" value="{len(steps) - 1}" aria-label="Langevin step" aria-valuetext="step {steps[-1]}"/>
<output>step {steps[-1]:,}</output></div></div>"""
    words = f"""<p>{rows} chains start from {start(folder, found)}, at step 0, and walk towards what the learned prior holds probable
(step size {text(found["step_size"])}). Under each image stands its energy −f(z). Drag the slider, or use the arrow keys.</p>"""
    chart = profile_chart("Energy along the chains", found["profile"], found["trained"], "chains")
    return section("chains", "From noise to samples", f'{words}{player}<div class="beside">{chart}<div>{reading(folder)}</div></div>')


def start(folder: Folder, found: Mapping[str, Any]) -> str:
    """Where the chains start: as what was found says (p_0, where that is older than the other ways), or where the run's own do."""
    own = STARTS.get(str(folder.setting("draw.prior")), folder.base)
    return text(found.get("start", folder.base) if found else own)


def said(folder: Folder, found: Mapping[str, Any]) -> str:
    """Chains of a text model: what is said at z, a row a step, for the first few."""
    shown = min(3, int(found["rows"]))
    head = "".join(f'<th scope="col">chain {i + 1}</th>' for i in range(shown))
    rows = "".join(
        f'<tr><th scope="row">step {int(k):,}</th>{"".join(f"<td>{text(s)}</td>" for s in line[:shown])}</tr>'
        for k, line in zip(found["steps"], found["sentences"], strict=True)
    )
    words = f"""<p>Chains start from {start(folder, found)}, at step 0, and walk towards what the learned prior holds probable
(step size {text(found["step_size"])}). Each cell is the likeliest words at z.</p>"""
    table = f'<div class="card"><table><thead><tr><th scope="col">Langevin</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    chart = profile_chart("Energy along the chains", found["profile"], found["trained"], "chains")
    return section("chains", "From noise to samples", f'{words}{table}<div class="beside">{chart}<div>{reading(folder)}</div></div>')


def energy(folder: Folder) -> str:
    """What an evaluation alone leaves behind, where no chains were drawn."""
    image = folder.picture("energy")
    if not image:
        return section("energy", "Energy along a chain", note("No energy profile yet: <code>lebm report RUN</code> draws the chains behind it."))
    chart = picture(image, "Median energy of the prior chains and its spread, against the Langevin step", "", "", "")
    return section("energy", "Energy along a chain", f'<div class="beside">{chart}<div>{reading(folder)}</div></div>')


def reading(folder: Folder) -> str:
    begun = start(folder, folder.part("chains"))
    flat = f"The prior has learned little beyond {begun}" if begun == folder.base else f"The prior's samples are where it starts: {begun}"
    words = f"""<p>The energy should <strong>fall, then level off</strong>: the chains have arrived, and walking on changes nothing.
Still falling at the end? The chains are too short. Flat from the start? {flat}.</p>"""
    run = folder.part("long_run")
    if not run or len(run["metrics"]) != 3:
        return words
    (short_name, d0), (long_name, d1), (_, ratio) = run["metrics"].items()
    word = "passed" if isinstance(ratio, float) and ratio <= run["protocol"]["passes_at"] else "failed"
    kind = "FID" if short_name.startswith("fid") else "Fréchet distance of pixels"
    return f"""{words}<p class="verdict {"good" if word == "passed" else "bad"}"><b>Long-run test {word}</b> {kind} {text(d0)} after
{text(int(short_name.split("_")[1]))} steps, {text(d1)} after {text(int(long_name.split("_")[1]))}: {text(ratio)} times
(chains from {start(folder, run["protocol"])}; up to {text(run["protocol"]["passes_at"])} passes; {text(run["protocol"]["samples"])} samples).</p>"""


def diagnostics(folder: Folder) -> str:
    d = folder.part("diagnostics")
    if not d:
        return section("diagnostics", "Diagnostics", note("No diagnostics yet: <code>lebm report RUN</code> makes them."))
    stats, z, chain = d["statistics"], d["log_z"], d["chain"]
    head = f'<p class="verdict {GOOD.get(d["verdict"], "bad")}"><b>{text(d["verdict"]).capitalize()}</b> {text(d["words"])}</p>'
    facts = [
        ("settled at step", stats["settled_at_step"], f"where the mean energy stays near its end; K₀ is {chain['trained']}"),
        ("split R-hat of f", stats["split_rhat"], "1 where chains agree; above about 1.05 they remember their starts"),
        ("effective sample size", stats["ess"], f"of {stats['draws']:,} values of f after the first {chain['trained']} steps"),
        ("steps for an independent draw", stats["steps_per_independent_draw"], "autocorrelation time of f"),
        (
            "log Z, an estimate",
            f"{z['value']:.2f} ± {z['error']:.2f}",
            f"annealed importance sampling, {z['chains']:,} walkers, {z['ess']:.0f} effective",
        ),
    ]
    tiles = "".join(f"<div><dt>{name}</dt><dd>{text(value)}</dd><small>{text(words)}</small></div>" for name, value, words in facts)
    charts = [
        profile_chart(f"Energy of {chain['chains']} chains, followed far beyond K₀", d["profile"], chain["trained"]),
        lines("Autocorrelation of f", [Series("", range(len(d["autocorrelation"])), d["autocorrelation"])], "lag in Langevin steps", "ρ", zero=True),
        histogram(d["f"], folder.base),
        view(d["view"], folder.base),
        tilt("mean", d["tilt"], "prior_mean", "posterior_mean"),
        tilt("standard deviation", d["tilt"], "prior_spread", "posterior_spread"),
    ]
    return section("diagnostics", "Diagnostics", f'{head}<dl class="tiles">{tiles}</dl><div class="panels two">{"".join(charts)}</div>')


def profile_chart(title: str, p: Mapping[str, Any], trained: int, name: str = "") -> str:
    series = [
        Series("10–90 %", p["step"], (), 0, p["low"], p["high"]),
        Series("25–75 %", p["step"], (), 0, p["lower"], p["upper"]),
        Series("median", p["step"], p["middle"], 0),
    ]
    return lines(title, series, "Langevin step", "energy −f(z)", mark=(trained, f"K₀ = {trained}"), name=name)


def histogram(f: Mapping[str, Any], base: str) -> str:
    middles = [(a + b) / 2 for a, b in zip(f["edges"], f["edges"][1:], strict=False)]
    names = {"base": (base, 3), "prior": ("prior", 1), "posterior": ("posterior", 0)}
    series = [Series(f"{title}, mean {short(f[key]['mean'])}", middles, f[key]["density"], colour) for key, (title, colour) in names.items()]
    return lines("Distribution of f", series, "f(z), in nats", "density")


def view(v: Mapping[str, Any], base: str) -> str:
    kinds = (("base", base, 3), ("posterior", "posterior", 0), ("prior", "prior", 1))
    groups = [Series(title, [p[0] for p in v[key]], [p[1] for p in v[key]], colour) for key, title, colour in kinds]
    first, second = v["explained"]
    return scatter("z, seen from its two strongest directions", groups, f"first component ({first:.0%} of variance)", f"second ({second:.0%})")


def tilt(what: str, t: Mapping[str, Any], prior: str, posterior: str) -> str:
    group = Series("coordinate of z", t[posterior], t[prior], 2)
    return scatter(f"Tilt: {what} of each coordinate of z", [group], "posterior", "prior", diagonal=True)


def neighbours(folder: Folder) -> str:
    found, sheet = folder.part("neighbours"), folder.picture("neighbours")
    if not found or not sheet:
        return ""
    good = found["nearer_than_test"] <= 0.05
    words = f"""<p class="verdict {"good" if good else "bad"}"><b>{"No sign of copying" if good else "Some samples may be copies"}</b>
The median distance to the nearest training image is {text(found["median_sample"])} for samples and {text(found["median_test"])} for test images
(root mean square a pixel, images in [−1, 1]). {found["nearer_than_test"]:.1%} of the samples are nearer to one than 99 % of the test images are.</p>"""
    body = picture(sheet, "Samples, each with its nearest training images to the right", "A sample, then its nearest training images", "", "")
    return section("neighbours", "Nearest training images", f'{words}<div class="single">{body}</div>')


def interpolation(folder: Folder) -> str:
    sheet = folder.picture("interpolation")
    paths = folder.part("interpolation").get("paths")
    if paths:
        lists = "".join(f'<div class="card"><ol>{"".join(f"<li>{text(s)}</li>" for s in path)}</ol></div>' for path in paths)
        words = "<p>The likeliest words at points on the arc from the z of one test sentence to that of another.</p>"
        return section("interpolation", "Paths between sentences", f'{words}<div class="duo">{lists}</div>')
    if not sheet or not folder.part("interpolation"):
        return ""
    words = "<p>Outermost: two test images. Between them what the generator makes of points on the arc from one's z to the other's.</p>"
    body = picture(sheet, "Rows of images that change from one test image to another", "", "", "")
    return section("interpolation", "Paths between images", words + body)

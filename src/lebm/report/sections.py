"""The parts of the page: each a function Folder -> HTML. Every value that comes from a file passes through `text`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from lebm import figures, published, tables
from lebm.config import flatten
from lebm.log import started_from
from lebm.report.charts import Series, lines
from lebm.report.folder import Folder
from lebm.report.ways import inferred, is_gaussian, model_sentence, other_way, sampled, way_of

# metric -> what a reader calls it, and what it says
METRICS: dict[str, tuple[str, str]] = {
    "frechet": ("Fréchet distance", "samples of the model against data; lower is better"),
    "frechet_gaussian": ("Fréchet distance from p₀", "the same generator without the energy; p₀ is N(0, I) unless fitted"),
    "fid": ("FID", "samples of the model against data; lower is better"),
    "fid_gaussian": ("FID from p₀", "the same generator without the energy; p₀ is N(0, I) unless fitted"),
    "fid_reconstruction": ("FID of reconstructions", "training images through inference and generator, instead of samples"),
    "mse": ("Reconstruction error", "mean squared error a pixel on test images; lower is better"),
    "mse_100": ("Reconstruction error, 100 steps", "the same with a longer posterior chain"),
    "iteration_ms": ("Milliseconds an update", "one learning iteration on this device"),
    "infer_ms": ("Milliseconds to infer an image", "without decoding"),
    "infer_chains_ms": ("Milliseconds by chains alone", "from N(0, I), as long as it takes for an equal error"),
    "infer_ratio": ("Times sooner than chains alone", "at equal error"),
    "fppl": ("FPPL", "perplexity of the model's sentences under a language model of real ones; lower is better"),
    "fppl_gaussian": ("FPPL from p₀", "the same generator without the energy; p₀ is N(0, I) unless fitted"),
    "copied": ("Copied sentences", "share of the model's that stand word for word in the training text"),
    "rppl": ("RPPL", "perplexity of real sentences under a language model of the model's; lower is better"),
    "real_ppl": ("Perplexity of real sentences", "under the language model that judges FPPL"),
    "nll_reconstruction": ("NLL, reconstruction", "-log p(x|z) in nats a test sentence, at an inferred z; lower is better"),
    "nll_estimate": ("NLL, an estimate", "-log p(x) in nats a test sentence, by importance sampling; no bound"),
    "active_units": ("Active units of z", "coordinates whose posterior mean varies with the sentence"),
    "z_information": ("What z tells, in nats", "about a sentence, were everything Gaussian"),
    "bits_per_dim": ("Bits per dimension, an estimate", "of test images, from log p(x) by importance sampling; 8-bit levels; lower is better"),
    "log_px": ("log p(x), an estimate", "nats an image, mean over test images; no bound"),
    "log_z": ("log Z, an estimate", "of the prior, by annealed importance sampling; biased low"),
}


def header(folder: Folder) -> str:
    facts = [
        ("steps", folder.result.get("steps") or last_step(folder)),
        ("after those of", began_with(folder)),
        ("latent dimensions", folder.setting("nz")),
        ("seed", folder.setting("seed")),
        ("device", folder.result.get("device")),
        ("learning took", duration(next((row["seconds"] for row in reversed(folder.rows) if "seconds" in row), None))),
        ("code", str(folder.result.get("code") or "")[:12]),
    ]
    chips = "".join(f"<div><dt>{name}</dt><dd>{text(value)}</dd></div>" for name, value in facts if value not in (None, ""))
    return f"""<header>
<p class="eyebrow">Run report</p>
<h1>{text(folder.experiment)}</h1>
<p class="lead">{model_sentence(folder)}</p>
{f'<dl class="facts">{chips}</dl>' if chips else ""}
</header>"""


def summary(folder: Folder) -> str:
    if not folder.metrics:
        return section("summary", "Numbers", note("No metrics yet: evaluate the run and this part fills itself."))
    published = paper(folder)
    shown = {name: value for name, value in folder.metrics.items() if not name.endswith("_error")}
    rows = "".join(metric_row(name, value, folder.metrics.get(f"{name}_error"), published, way_of(folder, name)) for name, value in shown.items())
    extra = '<th scope="col" class="number">The paper</th>' if published else ""
    table = f'<table><thead><tr><th scope="col">Metric</th><th scope="col" class="number">Value</th>{extra}</tr></thead><tbody>{rows}</tbody></table>'
    facts = flatten(folder.result.get("protocol"))
    terms = "".join(f"<div><dt>{text(name.replace('_', ' '))}</dt><dd>{text(value)}</dd></div>" for name, value in facts.items())
    how = f'<details><summary>How this was measured</summary><dl class="terms">{terms}</dl></details>' if terms else ""
    return section("summary", "Numbers", f'<div class="card">{table}</div>{how}')


def samples(folder: Folder) -> str:
    if folder.sentences:
        return text_samples(folder)
    learned, gaussian = folder.picture("samples"), folder.picture("samples-gaussian")
    if not (learned or gaussian):
        return section("samples", "Samples", note("No sample grids yet: evaluate the run to draw them."))
    metric, name = ("fid", "FID") if "fid" in folder.metrics else ("frechet", "Fréchet distance")
    d, d0 = folder.number(metric), folder.number(f"{metric}_gaussian")
    if is_gaussian(folder):  # one prior, one grid: nothing to set beside it
        card = picture(
            learned or gaussian or "",
            "Grid of images sampled from the model",
            "Fixed prior",
            f"z ~ {folder.base}",
            score(name, d if d is not None else d0),
        )
        return section("samples", "Samples", f'<div class="duo">{card}</div>')
    cards = ""
    if learned:
        kind, drawn = "best" if d is not None and d0 is not None and d < d0 else "", folder.drawn("samples")
        value = score(name + other_way(folder, metric, drawn), d)
        how = f"z ~ p<sub>α</sub>(z){sampled(drawn)}"
        cards += picture(learned, "Grid of images sampled from the learned prior", "Learned prior", how, value, kind)
    if gaussian:
        cards += picture(
            gaussian,
            f"Grid of images from {folder.base} through the same generator",
            "No energy" if folder.base != "N(0, I)" else "No learned prior",
            f"z ~ {folder.base}",
            score(name, d0),
        )
    words = f"<p>{why_prior(name, d, d0, folder.base)}</p>" if learned and gaussian else ""
    return section("samples", "Samples", f'{words}<div class="duo">{cards}</div>')


def text_samples(folder: Folder) -> str:
    """What a text model says, beside what it says without the learned prior."""
    fixed = is_gaussian(folder)
    formula = f"z ~ {folder.base}" if fixed else f"z ~ p<sub>α</sub>(z){sampled(folder.drawn('samples'))}"
    cards = quotes("Fixed prior" if fixed else "Learned prior", formula, folder.sentences.get("samples"))
    if not fixed:
        cards += quotes("No learned prior", f"z ~ {folder.base}", folder.sentences.get("samples_gaussian"))
    words = "Sentences drawn word by word from the model, at temperature 1: not chosen, not mended."
    return section("samples", "Samples", f'<p>{words}</p><div class="duo">{cards}</div>')


def quotes(title: str, formula: str, found: Any) -> str:
    lines = "".join(f"<li>{text(s)}</li>" for s in found) if isinstance(found, list) else ""
    return f'<div class="card"><h3>{title} <small>{formula}</small></h3><ul>{lines}</ul></div>' if lines else ""


def text_reconstructions(folder: Folder) -> str:
    pairs = [p for p in folder.sentences.get("reconstructions") or [] if isinstance(p, list) and len(p) == 2]
    rows = "".join(f"<tr><td>{text(a)}</td><td>{text(b)}</td></tr>" for a, b in pairs)
    head = '<thead><tr><th scope="col">Sentence</th><th scope="col">The likeliest words at its z</th></tr></thead>'
    words = f"Sentences the model never saw in learning: {inferred(folder.drawn('reconstructions'))}, the generator says what it read."
    return section("reconstructions", "Test reconstructions", f'<p>{words}</p><div class="card"><table>{head}<tbody>{rows}</tbody></table></div>')


def reconstructions(folder: Folder) -> str:
    if folder.sentences:
        return text_reconstructions(folder)
    image, drawn, mse = folder.picture("reconstructions"), folder.drawn("reconstructions"), folder.number("mse")
    if not image:
        return section("reconstructions", "Test reconstructions", note("No reconstructions yet: evaluate the run to draw them."))
    words = f"Images the model never saw in learning, each above its reconstruction: {inferred(drawn)}, the generator draws it again."
    alt = "Rows of test images, each with its reconstruction beneath"
    value = score(f"Mean squared error a pixel{other_way(folder, 'mse', drawn)}", mse)
    body = picture(image, alt, "Original above, reconstruction beneath", "", value)
    return section("reconstructions", "Test reconstructions", f"<p>{words}</p>{body}")


def curves(folder: Folder) -> str:
    charts = [panel_chart(panel, [(panel_lines, "")]) for panel, panel_lines in figures.log_curves(folder.rows)]
    if not charts and (image := folder.picture("curves")):
        charts = [picture(image, "Training curves", "", "", "")]
    if not charts:
        return section("curves", "Training", note("No training log with numbers in it."))
    words = """f is known only up to a constant, so f_pos and f_neg may <strong>drift together</strong> and mean nothing by it: only their
<strong>gap</strong> informs. It should stay small and near zero, the sign that prior samples and posterior samples look alike to the energy.
A gap that runs away, or gradient norms that climb by orders of magnitude, come before divergence."""
    return section("curves", "Training", f'<p>{words}</p><div class="{"panels two" if len(charts) > 1 else "single"}">{"".join(charts)}</div>')


def panel_chart(panel: figures.Panel, runs: Sequence[tuple[Mapping[str, Any], str]]) -> str:
    """A panel of the training log. Of several runs, (curves, name) each, a line a run and key."""
    series = []
    for i, (found, run) in enumerate(runs):
        for j, (key, label, _) in enumerate(panel.lines):
            if key in found:
                x, low, y, high = figures.thin(*found[key])
                wide = not run and len(x) < len(found[key][0])
                name = f"{run}, {label}" if run and len(panel.lines) > 1 else run or label
                colour = (i * len(panel.lines) + j) if run else j
                series.append(Series(name, x.tolist(), y.tolist(), colour % 6, low.tolist() if wide else None, high.tolist() if wide else None))
    return lines(panel.title, series, "training step", panel.unit, log=panel.log, zero=panel.zero)


def warnings(folder: Folder) -> str:
    found = [(row.get("step"), row["warning"]) for row in folder.rows if row.get("warning")]
    lines = [f"<li>{f'<span>step {text(step)}</span> ' if step is not None else ''}{text(words)}</li>" for step, words in found[-50:]]
    lines += [f"<li>{text(words)}</li>" for words in folder.notes]
    if not lines:
        return ""
    more = f"<p>The last 50 of {len(found)}.</p>" if len(found) > 50 else ""
    return section("warnings", "Warnings", f'{more}<ul class="warnings">{"".join(lines)}</ul>')


def config(folder: Folder) -> str:
    if not folder.config_text.strip():
        return section("config", "Configuration", note("The folder has no config.yaml."))
    body = f'<pre tabindex="0"><code>{text(folder.config_text.rstrip())}</code></pre>'
    return section("config", "Configuration", f"<details><summary>Every value of this run, defaults resolved</summary>{body}</details>")


def again(folder: Folder) -> str:
    commands = []
    if folder.config_text.strip():
        commands.append(("Learn it again from the configuration above:", f"lebm train {shlex.quote(str(folder.path / 'config.yaml'))}"))
    if command := folder.result.get("command"):
        commands.append(("The command behind the numbers on this page:", str(command)))
    if not commands:
        return ""
    shown = "".join(
        f'<p>{label}</p><div class="command"><code>{text(line)}</code><button type="button" data-copy hidden>Copy</button></div>'
        for label, line in commands
    )
    return section("again", "Run it again", shown)


# --- pieces ---------------------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """A value from a file as safe text; numbers in a readable length."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return short(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(text, value))
    return escape(str(value))


def short(value: float) -> str:
    """Four figures: 0.0203, 1.812, 64.57, 12,345."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) < 1e-3 else f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}".rstrip("0").rstrip(".")


def section(name: str, title: str, body: str) -> str:
    return f'<section id="{name}" aria-labelledby="{name}-title">\n<h2 id="{name}-title">{title}</h2>\n{body}\n</section>'


def note(words: str) -> str:
    return f'<p class="note">{words}</p>'


def picture(uri: str, alt: str, title: str, how: str, value: str, kind: str = "") -> str:
    """An image on a card; `title`, `how` and `value` are lines of its caption, already safe."""
    lines: Iterable[str] = (f"<strong>{title}</strong>" if title else "", f"<span>{how}</span>" if how else "", value)
    caption = "".join(line for line in lines if line)
    return f'<figure class="card {kind}"><img src="{uri}" alt="{escape(alt)}">{f"<figcaption>{caption}</figcaption>" if caption else ""}</figure>'


def score(name: str, value: float | None) -> str:
    return "" if value is None else f'<span class="score">{name} <b>{short(value)}</b></span>'


def paper(folder: Folder) -> dict[str, str]:
    """What the paper's Table 1 says of this data set, by the name of our metric."""
    try:
        found = tables.column(folder.result)
    except (KeyError, AttributeError, TypeError):
        return {}
    return dict(zip(("mse_100", "fid"), published.TABLE_1[0].numbers[found], strict=True)) if found else {}


def metric_row(name: str, value: Any, error: Any = None, published: Mapping[str, str] | None = None, way: str = "") -> str:
    title, words = METRICS.get(name, (name, ""))
    small = f"<small>{words}{way}</small>" if words else ""
    spread = f" <small>± {text(error)}</small>" if isinstance(error, int | float) else ""
    cell = f'<td class="{"words" if isinstance(value, str) else "number"}">{text(value)}{spread}</td>'
    beside = f'<td class="number paper">{text(published.get(name, "–"))}</td>' if published else ""
    return f'<tr><th scope="row">{text(title)}{small}</th>{cell}{beside}</tr>'


def why_prior(name: str, d: float | None, d0: float | None, base: str = "N(0, I)") -> str:
    """The sentence under the key picture, true to the numbers whichever way they fall."""
    same = "Both grids come from the same generator; only where z is drawn from differs."
    if d is None or d0 is None or not d > 0:
        return same
    ratio = d0 / d
    if ratio >= 1.02:
        return (
            f"{same} With the learned prior the {name} to the data is <strong>{ratio:.2g} times smaller</strong> ({short(d)} against {short(d0)}): "
            f"{base} also proposes codes that no image has, and the learned energy moves z away from them to where images are."
        )
    return f"{same} Here the learned prior brings no gain yet ({name} {short(d)} against {short(d0)} from {base}): learn longer, or look at the energy below."


def began_with(folder: Folder) -> str | None:
    """Whose networks a run went on with, which `steps` does not count."""
    start = started_from(folder.rows)
    return f"{start['experiment']}, {start['updates']:,}" if start else None


def last_step(folder: Folder) -> int | None:
    steps = [row["step"] for row in folder.rows if isinstance(row.get("step"), int)]
    return max(steps, default=None)


def duration(seconds: Any) -> str | None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds) or seconds < 0:
        return None
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"

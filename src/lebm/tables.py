"""What the result files hold -> tables, each beside the published numbers of lebm.published. What has no result is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lebm.cells import (
    LONG_RUN,
    NOTES,
    SIDE_BY_SIDE,
    base,
    chain_length,
    checkpoint_word,
    column,
    data_label,
    kind,
    length,
    link,
    mark,
    marks,
    measured_by,
    number,
    own_mse,
    seeds,
    table,
    unlike,
    updates,
    way,
)
from lebm.published import (
    ABLATIONS,
    ANOMALY,
    ANOMALY_DIGITS,
    BASELINES,
    COLUMNS,
    KNOWN_FIDS,
    PAPER,
    PAPER_TEXT,
    TABLE_1,
    TABLE_2,
    TEXT_COLUMNS,
)

Results = Mapping[str, Mapping[str, Any]]  # file name without .json -> what it holds
KINDS = {
    "": "the paper's settings",
    "best": "our settings, `-best`",
    "warm": "our settings, `-warm`",
    "gaussian": "N(0, I) as prior, the paper's settings",
}
TEXT_KINDS = {"": "learned prior", "gaussian": "N(0, I) as prior, the same generator and learning"}


def table_1(results: Results, to_results: str, baselines: bool) -> str:
    """The paper, its follow-ups and our rows; MSE is `mse_100`."""
    rows = [[f"{p.method} ({p.source})", *(" / ".join(p.numbers[c]) for c in COLUMNS)] for p in ((*BASELINES, *TABLE_1) if baselines else TABLE_1)]
    ours = {name: r for name, r in results.items() if column(r)}
    found = sorted({kind(r) for r in ours.values()}, key=lambda k: (list(KINDS).index(k) if k in KINDS else len(KINDS), k))
    for k in found:
        cells = []
        for c in COLUMNS:
            here = [(n, r) for n, r in ours.items() if column(r) == c and kind(r) == k]
            cells.append("<br>".join(f"[{own_mse(r)} / {number(r, 'fid', 2)}]({to_results}{n}.json){mark(r)} {length(r)}" for n, r in here) or "-")
        rows.append([f"**lebm**, {KINDS.get(k, k)}", *cells])
    text = table(["MSE / FID, lower is better", *COLUMNS.values()], rows)
    labels = {data_label(r) for r in ours.values()} & set(NOTES)
    return text + "".join(f"\n\n{marks(label)} {label}: {NOTES[label]}." for label in NOTES if label in labels)


def text_column(result: Mapping[str, Any]) -> str | None:
    """Which column of Table 2 a result belongs to."""
    name = (result["data"] or {}).get("name")
    measured = {"fppl", "rppl", "nll_reconstruction"} & set(result["metrics"] or {})
    return name if name in TEXT_COLUMNS and measured and result["experiment"] != SIDE_BY_SIDE else None


def table_2(results: Results, to_results: str, to_docs: str = "") -> str:
    """The paper's rows and ours on text. Empty without a result: its published rows alone say nothing of this package."""
    ours = {name: r for name, r in results.items() if text_column(r)}
    if not ours:
        return ""
    rows = [[f"{method} ({PAPER})", *cells] for method, *cells in TABLE_2]
    kinds = {str(r["experiment"]).removeprefix(text_column(r) or "").strip("-") for r in ours.values()}
    for k in sorted(kinds, key=lambda k: (list(KINDS).index(k) if k in KINDS else len(KINDS), k)):
        here = {c: [(n, r) for n, r in ours.items() if text_column(r) == c and r["experiment"] == (f"{c}-{k}" if k else c)] for c in TEXT_COLUMNS}
        cells = ["<br>".join(text_cell(n, r, to_results) for n, r in here[c]) or "-" for c in TEXT_COLUMNS]
        rows.append([f"**lebm**, {TEXT_KINDS.get(k, k)}", *cells])
    return table(["FPPL / RPPL / NLL, lower is better", *TEXT_COLUMNS.values()], rows) + text_notes(ours, to_docs)


def text_cell(name: str, r: Mapping[str, Any], to_results: str) -> str:
    shown = " / ".join(number(r, key, 2) for key in ("fppl", "rppl", "nll_reconstruction"))
    small = f"real text {number(r, 'real_ppl', 2)}, -log p(x) about {number(r, 'nll_estimate', 2)}"
    if "copied" in r["metrics"]:
        small += f", {100 * r['metrics']['copied']:.1f} % copies"
    return f"[{shown}]({to_results}{name}.json) ({text_label(r)}) <br><sub>{small}</sub>{length(r)}"


def text_label(r: Mapping[str, Any]) -> str:
    """SNLI-37k: the data as a write-up must call it, where it is not the paper's."""
    data = r["data"]
    name, n = str(data["name"]), data.get("train")
    return TEXT_COLUMNS[name] if n == PAPER_TEXT[name] or not isinstance(n, int) else f"{TEXT_COLUMNS[name]}-{n / 1000:.0f}k"


def text_notes(ours: Results, to_docs: str) -> str:
    labels = sorted({(text_label(r), r["data"]["train"]) for r in ours.values() if "-" in text_label(r)})
    said = "".join(f"\n\n{label}: {n:,} training sentences; compare its rows with each other, not with the paper's." for label, n in labels)
    return f"\n\nNLL is `nll_reconstruction`, in nats a sentence: see [protocol.md]({to_docs}protocol.md#text)." + said


def details(results: Results, to_results: str) -> str:
    """A row a result on the paper's sets: what was measured, after how many updates, over how many seeds."""
    head = ["experiment", "data", "FID", "samples", "FID of reconstructions", "mse", "mse_100", "checkpoint", "updates", "seeds", "file"]
    rows = []
    for name, r in results.items():
        if column(r):
            drawn = ((r["protocol"] or {}).get("fid") or {}).get("samples")
            fids = [number(r, "fid", 2), f"{drawn:,}" if isinstance(drawn, int) else "-", number(r, "fid_reconstruction", 2)]
            shown = [*fids, number(r, "mse", 4), number(r, "mse_100", 4)]
            file = link(name, to_results)
            rows.append([f"`{r['experiment']}`", data_label(r), *shown, checkpoint_word(r), updates(r), str(seeds(r)), file])
    return table(head, rows) if rows else ""


def ablation(results: Results, to_results: str) -> str:
    """SVHN with and without the learned prior, beside the paper's ablations."""
    rows = [[f"{what} ({PAPER})", value] for what, value in ABLATIONS]
    before = len(rows)
    for name, r in results.items():
        if column(r) == "svhn":
            file = link(name, to_results)
            if kind(r) in ("", "gaussian"):
                rows.append(
                    [f"**lebm**, {'learned prior' if not kind(r) else 'learned with N(0, I) as prior'}{unlike(r)} ({file})", number(r, "fid", 2)]
                )
            if "fid_gaussian" in r["metrics"]:
                what = f"`{r['experiment']}`, samples from {base(r)} instead of its learned prior"
                rows.append([f"**lebm**, {what} ({file})", number(r, "fid_gaussian", 2)])
    return table(["SVHN", "FID"], rows) if len(rows) > before else ""


def _parts(r: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any], Any, dict[str, Any]]]:
    """Experiment, metrics, config, steps and protocol: of each experiment where a file holds several."""
    keys = ("metrics", "config", "steps", "protocol")
    for e in r["metrics"] if r["experiment"] == SIDE_BY_SIDE else [None]:
        metrics, config, steps, protocol = (r[k] if e is None else r[k][e] for k in keys)
        yield e or r["experiment"], metrics, config, steps, protocol


def side_by_side(results: Results, to_results: str) -> str:
    """Quality and cost of the ways to draw z: experiments that `lebm evaluate --beside` measured together, and others whose speed is known."""
    head = [
        "experiment",
        "posterior",
        "prior",
        "K1",
        "K0",
        "FID",
        "mse",
        "ms an update",
        "ms an image",
        "chains of equal error",
        "updates",
        "device",
        "file",
    ]
    rows = []
    for name, r in results.items():
        for e, metrics, config, steps, protocol in _parts(r):
            if "iteration_ms" not in metrics and r["experiment"] != SIDE_BY_SIDE:
                continue
            one = {"metrics": metrics, "config": config, "protocol": protocol}
            cost = [number(one, "iteration_ms", 2), number(one, "infer_ms", 3), number(one, "infer_ratio", 1)]
            how = protocol.get("speed") or {}
            over = "over " if how.get("chains_mse", 0) > how.get("mse", 0) else ""  # the longest chains were still worse
            times = cost[2] if cost[2] == "-" else f"{over}{cost[2]} times slower"
            timed = how.get("by", measured_by(one, "posterior"))
            cost[1] += f" ({timed})" if timed != measured_by(one, "posterior") else ""
            drawn = [f(one, kind) for f in (way, chain_length) for kind in ("posterior", "prior")]
            quality = [number(one, "fid", 2), number(one, "mse" if metrics.get("mse") is not None else "mse_100", 4)]
            ends = [f"{steps:,}" if isinstance(steps, int) else "-", str(r["device"]), link(name, to_results)]
            rows.append([f"`{e}`", *drawn, *quality, *cost[:2], times, *ends])
    return table(head, rows) if rows else ""


def anomaly(results: Results, to_results: str, baselines: bool) -> str:
    """AUPRC on MNIST, as `lebm anomaly` measured it: published rows, ours, nearest neighbours and chance."""
    named = {"mnist-anomaly-paper": "the paper's way", "mnist-anomaly": "our way", "mnist-neighbours": "nearest training image, pixel distance"}
    own = lambda r: ((r["config"] or {}).get("data") or {}).get("labels", "own") == "own"  # noqa: E731 - clusters are for choosing only
    ours = {name: r for name, r in results.items() if r["experiment"] in named and isinstance(r["metrics"].get("auprc"), dict) and own(r)}
    if not ours:
        return ""
    rows = [[f"{method} ({source})", *numbers] for method, source, numbers in (ANOMALY if baselines else ANOMALY[3:])]
    for name, r in sorted(ours.items(), key=lambda item: list(named).index(item[1]["experiment"])):
        count = len({p["seed"] for p in r["per_seed"] or []})
        seeds = f" <br><sub>{count} seed{'s' * (count > 1)}, {checkpoint_word(r)}</sub>" if count else ""
        label = f"{'' if not count else '**lebm**, '}{named[r['experiment']]}"
        rows.append([f"{label} ({link(name, to_results)}){seeds}", *(_auprc(r["metrics"]["auprc"].get(d)) for d in ANOMALY_DIGITS)])
    chance = {d: value for r in ours.values() for d, value in (r["metrics"].get("chance") or {}).items()}
    rows.append(["chance on our split", *(f"{chance[d]:.3f}".lstrip("0") if d in chance else "-" for d in ANOMALY_DIGITS)])
    return table(["AUPRC, higher is better; the anomaly is", *ANOMALY_DIGITS], rows)


def _auprc(value: Any) -> str:
    if not isinstance(value, Mapping) or not isinstance(value.get("mean"), int | float):
        return "-"
    spread = value.get("spread")
    return f"{value['mean']:.3f}".lstrip("0") + (f" ± {spread:.3f}".replace("0.", ".") if isinstance(spread, int | float) else "")


def long_runs(results: Results, to_results: str) -> str:
    """The distance at K0 and after a chain many times as long."""
    rows = []
    for name, r in results.items():
        if LONG_RUN in r["metrics"]:
            (short, _), (long, _), _ = r["metrics"].items()
            kind, steps = ("FID" if short.startswith("fid") else "Fréchet distance of pixels"), [key.split("_")[1] for key in (short, long)]
            how = r["protocol"]["long_run"]
            shown = [f"{kind} {number(r, key, 2)} after {k} steps" for key, k in zip((short, long), steps, strict=True)]
            file = link(name, to_results)
            rows.append(
                [
                    f"`{r['experiment']}`, an energy over {base(r)}{unlike(r)}",
                    *shown,
                    number(r, LONG_RUN, 2),
                    f"{how['passes_at']:g}",
                    f"{how['samples']:,}",
                    file,
                ]
            )
    return table(["experiment", "at K0", "long run", "ratio", "passes up to", "samples", "file"], rows) if rows else ""


def speed(results: Results, to_results: str) -> str:
    head = [
        "one learning iteration",
        "device",
        "the paper's listing, ms",
        "lebm, ms",
        "times faster",
        "prior chain, times",
        "samples a second",
        "floor, ms",
        "file",
    ]
    benches, rows = {name: r for name, r in results.items() if name.startswith("bench-")}, []
    settled = {(preset, r["device"]) for r in benches.values() for preset in r["config"] or {}}
    for name, r in benches.items():
        for preset, m in r["metrics"].items():
            if preset not in (r["config"] or {}) and (preset, r["device"]) in settled:
                continue  # a timing of settings that were not kept gives way to one whose settings are known
            shown = lambda key, form, m=m: format(m[key], form) if isinstance(m.get(key), int | float) else "-"  # noqa: E731
            floor = shown("floor_ms", ".2f") + (f" ({shown('fraction_of_floor', '.0%')} reached)" if "fraction_of_floor" in m else "")
            times = [
                shown("listing_ms", ".1f"),
                shown("ours_ms", ".2f"),
                shown("ratio", ".1f"),
                shown("prior_ratio", ".1f"),
                shown("images_per_s", ",.0f"),
            ]
            config = (r["config"] or {}).get(preset)
            other = unlike({"experiment": preset, "config": config}) if config else "; its settings were not kept"
            rows.append([f"`{preset}`{other}", str(r["device"]), *times, floor, link(name, to_results)])
    return table(head, rows) if rows else ""


def digits(results: Results, to_results: str) -> str:
    r = results.get("digits")
    if r is None:
        return ""
    drawn = ((r["protocol"] or {}).get("frechet") or {}).get("samples")
    how = f"in pixel space, {drawn:,} samples" if isinstance(drawn, int) else "in pixel space"
    return (
        f"On the embedded digits, on which the paper reports nothing, after {updates(r)}: samples from the learned prior lie at a Fréchet "
        f"distance of {number(r, 'frechet', 1)} ({how}) from the training images, samples from {base(r)} through the same generator at "
        f"{number(r, 'frechet_gaussian', 1)}; test images are reconstructed with a mean squared error of {number(r, 'mse_100', 3)} (100 posterior "
        f"steps, images in [-1, 1]). Such distances are not FIDs. Last checkpoint, {seeds(r)} seed{'s' * (seeds(r) > 1)}: [digits.json]({to_results}digits.json)."
    )


def calibration(results: Results, to_results: str) -> str:
    rows = []
    for name, r in results.items():
        if r["experiment"] == "fid" and {"a", "b"} <= set(r["data"] or {}):
            a, b = (r["data"][key]["name"] for key in "ab")
            rows.append([f"`{a}`, `{b}`", number(r, "fid", 4), KNOWN_FIDS.get((a, b), "-"), link(name, to_results)])
    return table(["between", "FID here", "commonly known", "file"], rows) if rows else ""

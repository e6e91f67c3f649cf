"""Result files -> the tables of docs/results.md, each beside the published numbers. What has no result is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cells import (
    NOTES,
    Result,
    base,
    checkpoint,
    column,
    data_label,
    drawn,
    link,
    mark,
    method,
    mse,
    number,
    sampler,
    seeds,
    small_print,
    table,
    text_column,
    title,
    unlike,
    updates,
)
from published import (
    ABLATIONS,
    ANOMALY,
    ANOMALY_BASELINES,
    ANOMALY_DIGITS,
    BASELINES,
    COLUMNS,
    KNOWN_FIDS,
    PAPER,
    TABLE_1,
    TABLE_2,
    TEXT_COLUMNS,
)

from lebm.measure.result import SIDE_BY_SIDE

Results = Mapping[str, Result]  # the file's name without .json -> what it holds
METHODS = {
    "paper": "the paper's settings",
    "best": "our settings, `best`",
    "warm": "our settings, `warm`",
    "gaussian": "N(0, I) as prior, the paper's settings",
}
TEXT_METHODS = {"paper": "learned prior", "gaussian": "N(0, I) as prior, the same generator and learning"}
ANOMALY_ROWS = {
    "mnist/anomaly-paper": "**lebm**, the paper's settings",
    "mnist/anomaly": "**lebm**, our settings",
    "mnist/neighbours": "nearest training image, pixel distance",
}
SVHN_ROWS = {"paper": "learned prior", "gaussian": "learned with N(0, I) as prior"}


def ordered(methods: Iterable[str], known: Iterable[str]) -> list[str]:
    """Without repetition, the known ones first and in their order."""
    known = list(known)
    return sorted(set(methods), key=lambda m: (known.index(m) if m in known else len(known), m))


def published(rows: Iterable[tuple[str, str, tuple[str, ...]]]) -> list[list[str]]:
    return [[f"{what} ({source})", *numbers] for what, source, numbers in rows]


def images(results: Results) -> str:
    """Table 1, with the follow-ups."""
    ours = {name: r for name, r in results.items() if column(r)}
    rows = published((*BASELINES, *TABLE_1))
    for m in ordered(map(method, ours.values()), METHODS):
        here = {c: [(n, r) for n, r in ours.items() if (column(r), method(r)) == (c, m)] for c in COLUMNS}
        cells = ["<br>".join(image_cell(n, r) for n, r in here[c]) or "-" for c in COLUMNS]
        rows.append([f"**lebm**, {METHODS.get(m, m)}", *cells])
    labels = {data_label(r) for r in ours.values()}
    notes = [f"{mark(label)} {label}: {note}." for label, note in NOTES.items() if label in labels]
    return "\n\n".join([table(["MSE / FID, lower is better", *COLUMNS.values()], rows), *notes])


def image_cell(name: str, r: Result) -> str:
    return link(name, f"{mse(r)} / {number(r, 'fid', 2)}") + f"{mark(data_label(r))} {small_print(r)}"


def text(results: Results) -> str:
    """Table 2. Empty without a result: its published rows alone say nothing of this package."""
    ours = {name: r for name, r in results.items() if text_column(r)}
    if not ours:
        return ""
    rows = published((what, PAPER, numbers) for what, numbers in TABLE_2)
    for m in ordered(map(method, ours.values()), TEXT_METHODS):
        here = {c: [(n, r) for n, r in ours.items() if (text_column(r), method(r)) == (c, m)] for c in TEXT_COLUMNS}
        cells = ["<br>".join(text_cell(n, r) for n, r in here[c]) or "-" for c in TEXT_COLUMNS]
        rows.append([f"**lebm**, {TEXT_METHODS.get(m, m)}", *cells])
    head = [f"{title('fppl')} / {title('rppl')} / NLL, lower is better", *TEXT_COLUMNS.values()]
    labels = sorted({(data_label(r), r["data"].get("train")) for r in ours.values() if "-" in data_label(r)})
    notes = [
        f"{name}: {n:,} training sentences; compare its rows with each other, not with the paper's."
        for name, n in labels
    ]
    return "\n\n".join([table(head, rows), "NLL is `nll_reconstruction`, in nats a sentence.", *notes])


def text_numbers(r: Result) -> str:
    return " / ".join(number(r, key, 2) for key in ("fppl", "rppl", "nll_reconstruction"))


def text_cell(name: str, r: Result) -> str:
    small = f"real text {number(r, 'real_ppl', 2)}, -log p(x) about {number(r, 'nll_estimate', 2)}"
    if "copied" in r["metrics"]:
        small += f", {100 * r['metrics']['copied']:.1f} % copies"
    return f"{link(name, text_numbers(r))} ({data_label(r)}) <br><sub>{small}</sub>{small_print(r)}"


def details(results: Results) -> str:
    """A row a result on the paper's image sets: what was measured, after how many updates, over how many seeds."""
    names = (("fid", 2), ("fid_reconstruction", 2), ("mse", 4), ("mse_100", 4))
    head = ["run", "data", *(title(name) for name, _ in names), "FID samples", "checkpoint", "updates", "seeds", "file"]
    rows = []
    for name, r in results.items():
        if column(r):
            n = ((r["protocol"] or {}).get("fid") or {}).get("samples")
            how = [f"{n:,}" if isinstance(n, int) else "-", checkpoint(r), updates(r), seeds(r).split()[0], link(name)]
            rows.append([f"`{r['name']}`", data_label(r), *(number(r, *each) for each in names), *how])
    return table(head, rows) if rows else ""


def learned_prior(results: Results) -> str:
    """SVHN with and without the learned prior, beside the paper's ablations."""
    ours = []
    for name, r in results.items():
        if column(r) != "svhn":
            continue
        if method(r) in SVHN_ROWS:
            what = f"{SVHN_ROWS[method(r)]}{unlike(r['config'])}"
            ours.append([f"**lebm**, {what} ({link(name)})", number(r, "fid", 2)])
        if "fid_gaussian" in r["metrics"]:
            what = f"`{r['name']}`, samples from {base(r, 'fid_gaussian')} instead of its learned prior"
            ours.append([f"**lebm**, {what} ({link(name)})", number(r, "fid_gaussian", 2)])
    return (
        table(["SVHN", title("fid")], [[f"{what} ({PAPER})", value] for what, value in ABLATIONS] + ours)
        if ours
        else ""
    )


def starts(results: Results) -> str:
    """Quality and cost of the starts of chains: runs measured side by side, and others whose speed is known."""
    rows = []
    for name, r in results.items():
        beside = r["name"] == SIDE_BY_SIDE
        for run in r["metrics"] if beside else [r["name"]]:
            one = {**r, **{k: r[k][run] for k in ("metrics", "config", "updates", "protocol")}} if beside else r
            if beside or "iteration_ms" in one["metrics"]:
                rows.append([f"`{run}`", *start_cells(one), str(r["device"]), link(name)])
    numbers = [title(key) for key in ("fid", "mse", "iteration_ms", "infer_ms")]
    head = ["run", "z of an image", "z of a sample", *numbers, "chains of equal error", "updates", "device", "file"]
    return table(head, rows) if rows else ""


def start_cells(r: Result) -> list[str]:
    how = r["protocol"].get("speed") or {}
    longest = "over " if how.get("chains_mse", 0) > how.get("mse", 0) else ""  # the longest chains were still worse
    ratio = number(r, "infer_ratio", 1)
    timed, inferred = (how.get("sampler") or {}).get("start"), sampler(r, "posterior")
    other = f" ({timed})" if timed and inferred and timed != inferred.start else ""
    error = number(r, "mse" if r["metrics"].get("mse") is not None else "mse_100", 4)
    return [
        drawn(r, "posterior"),
        drawn(r, "prior"),
        number(r, "fid", 2),
        error,
        number(r, "iteration_ms", 2),
        number(r, "infer_ms", 3) + other,
        "-" if ratio == "-" else f"{longest}{ratio} times slower",
        f"{r['updates']:,}" if isinstance(r["updates"], int) else "-",
    ]


def anomaly_results(results: Results) -> dict[str, Result]:
    """What `lebm anomaly` measured with the labels of the data; clusters are for choosing settings only."""
    labels = lambda r: ((r["config"] or {}).get("data") or {}).get("labels", "dataset")  # noqa: E731
    ours = {
        name: r
        for name, r in results.items()
        if r["name"] in ANOMALY_ROWS and isinstance(r["metrics"].get("auprc"), dict) and labels(r) == "dataset"
    }
    return dict(sorted(ours.items(), key=lambda item: list(ANOMALY_ROWS).index(item[1]["name"])))


def anomaly(results: Results) -> str:
    """AUPRC on MNIST: published rows, ours, nearest neighbours and chance."""
    ours = anomaly_results(results)
    if not ours:
        return ""
    rows = published((*ANOMALY_BASELINES, *ANOMALY))
    for name, r in ours.items():
        small = f" <br><sub>{seeds(r)}, {checkpoint(r)}</sub>" if r["per_seed"] else ""
        rows.append([f"{ANOMALY_ROWS[r['name']]} ({link(name)}){small}", *auprc(r)])
    chance = {d: value for r in ours.values() for d, value in (r["metrics"].get("chance") or {}).items()}
    rows.append(["chance on our split", *(short(chance[d]) if d in chance else "-" for d in ANOMALY_DIGITS)])
    return table(["AUPRC, higher is better; the anomaly is", *ANOMALY_DIGITS], rows)


def auprc(r: Result) -> list[str]:
    out = []
    for digit in ANOMALY_DIGITS:
        value = r["metrics"]["auprc"].get(digit) or {}
        mean, spread = value.get("mean"), value.get("spread")
        around = f" ± {short(spread)}" if isinstance(spread, int | float) else ""
        out.append(short(mean) + around if isinstance(mean, int | float) else "-")
    return out


def short(value: float) -> str:
    """Three decimals without the 0 before them."""
    return f"{value:.3f}".lstrip("0")


def long_runs(results: Results) -> str:
    """The distance at K0 and after a chain many times as long."""
    rows = []
    for name, r in results.items():
        if "long_run_ratio" in r["metrics"]:
            how = r["protocol"]["long_run"]
            metric = title("fid") if any(key.startswith("fid") for key in how["steps"]) else title("frechet")
            distances = [f"{metric} {number(r, key, 2)} after {k} steps" for key, k in how["steps"].items()]
            ends = [number(r, "long_run_ratio", 2), f"{how['passes_at']:g}", f"{how['samples']:,}", link(name)]
            rows.append([f"`{r['name']}`, chains from {base(r, 'long_run')}{unlike(r['config'])}", *distances, *ends])
    return table(["run", "at K0", "long run", "ratio", "passes up to", "samples", "file"], rows) if rows else ""


def speed(results: Results) -> str:
    head = ["one learning update", "device", "the paper's listing, ms", "lebm, ms", "times faster", "prior chain, times",
            "samples a second", "floor, ms", "file"]  # fmt: skip
    shown = (
        ("listing_ms", ".1f"),
        ("ours_ms", ".2f"),
        ("ratio", ".1f"),
        ("prior_ratio", ".1f"),
        ("images_per_s", ",.0f"),
    )
    benches, rows = {name: r for name, r in results.items() if name.startswith("bench-")}, []
    known = {(preset, r["device"]) for r in benches.values() for preset in r["config"] or {}}
    for name, r in benches.items():
        for preset, m in r["metrics"].items():
            config = (r["config"] or {}).get(preset)
            if config is None and (preset, r["device"]) in known:
                continue  # a timing without its settings gives way to one that has them
            other = unlike(config) if config else "; its settings are not recorded"
            floor = cell(m, "floor_ms", ".2f")
            floor += f" ({cell(m, 'fraction_of_floor', '.0%')} reached)" if "fraction_of_floor" in m else ""
            rows.append(
                [f"`{preset}`{other}", str(r["device"]), *(cell(m, *each) for each in shown), floor, link(name)]
            )
    return table(head, rows) if rows else ""


def cell(values: Mapping[str, Any], key: str, form: str) -> str:
    return format(values[key], form) if isinstance(values.get(key), int | float) else "-"


def digits(results: Results) -> str:
    r = results.get("digits-paper")
    if r is None:
        return ""
    n = ((r["protocol"] or {}).get("frechet") or {}).get("samples")
    how = f"in pixel space, {n:,} samples" if isinstance(n, int) else "in pixel space"
    return (
        f"The paper reports nothing on the embedded digits. After {updates(r)}, samples from the learned prior lie at a Fréchet "
        f"distance of {number(r, 'frechet', 1)} ({how}) from the training images, and samples from {base(r, 'frechet')} "
        f"through the same generator at {number(r, 'frechet_gaussian', 1)}; test images are reconstructed with a mean squared "
        f"error of {number(r, 'mse_100', 3)} (100 posterior steps, images in [-1, 1]). Such distances are not FIDs. "
        f"Last checkpoint, {seeds(r)}: {link('digits-paper')}."
    )


def calibration(results: Results) -> str:
    rows = []
    for name, r in results.items():
        if r["name"] == "fid" and {"a", "b"} <= set(r["data"] or {}):
            a, b = (r["data"][key]["name"] for key in "ab")
            rows.append([f"`{a}`, `{b}`", number(r, "fid", 4), KNOWN_FIDS.get((a, b), "-"), link(name)])
    return table(["between", "FID here", "commonly known", "file"], rows) if rows else ""

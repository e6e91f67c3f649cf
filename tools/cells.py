"""What one result file says, in the words and numbers of a table's cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from published import COLUMNS, PAPER_SENTENCES, PAPER_UPDATES, TEXT_COLUMNS

from lebm.config import differences, from_dict
from lebm.measure import METRICS
from lebm.measure.result import SIDE_BY_SIDE
from lebm.run import FREE_ON_RESUME
from lebm.sampler import SamplerSpec

Result = Mapping[str, Any]
RECROPPED = "0244d93d46eb266580b1f5ad012f1669b61ddce0f9712d3b421ff6f1d566f524"  # data.sha256 of SVHN cut from Format 1
NOTES = {
    "SVHN, re-cropped from Format 1": "cut again from the full-number images with the published boxes: 98 % of the pixel "
    "values equal the official crops', the largest difference is 5",
    "CelebA-30k, squashed": "30,000 faces (the paper uses 40,000), the whole frame squashed to a square and recompressed: "
    "its FID compares models on this set, not with the paper's",
}
NUMBERS = {number.name: number for metric in METRICS.values() for number in metric.numbers}


def title(name: str) -> str:
    """A number's title, as its metric gives it."""
    return NUMBERS[name].title


# --- which table a result belongs to ----------------------------------------------------------------------------------


def column(r: Result) -> str | None:
    """The column of Table 1; None where it belongs to another table."""
    if r["name"] == SIDE_BY_SIDE or "long_run_ratio" in (r["metrics"] or {}):
        return None
    name = (r["data"] or {}).get("name")
    name = f"celeba{r['config']['generator'].get('size')}" if name == "celeba" else name
    return name if name in COLUMNS else None


def text_column(r: Result) -> str | None:
    """The column of Table 2."""
    name = (r["data"] or {}).get("name")
    measured = {"fppl", "rppl", "nll_reconstruction"} & set(r["metrics"] or {})
    return name if name in TEXT_COLUMNS and measured and r["name"] != SIDE_BY_SIDE else None


def method(r: Result) -> str:
    """svhn/best -> best."""
    return str(r["name"]).partition("/")[2]


def data_label(r: Result) -> str:
    """The data as a write-up must call it."""
    data = r["data"] or {}
    if data.get("sha256") == RECROPPED:
        return "SVHN, re-cropped from Format 1"
    if data.get("name") == "celeba" and data.get("test") == 3000 and data.get("train", 40_000) <= 27_000:
        return "CelebA-30k, squashed"
    name, n = str(data.get("name")), data.get("train")
    if name in TEXT_COLUMNS:
        return TEXT_COLUMNS[name] + ("" if n in (None, PAPER_SENTENCES[name]) else f"-{n / 1000:.0f}k")
    return COLUMNS.get(column(r) or "", name)


def mark(label: str) -> str:
    """The footnote mark of data that are not the paper's."""
    return "\\" + "*" * (list(NOTES).index(label) + 1) if label in NOTES else ""


# --- numbers ----------------------------------------------------------------------------------------------------------


def number(r: Result, name: str, digits: int) -> str:
    """A number with its standard deviation over seeds; "-" where it was not measured."""
    value, spread = (r["metrics"].get(key) for key in (name, f"{name}_spread"))
    if not isinstance(value, int | float):
        return "-"
    return f"{value:.{digits}f}" + (f" ± {spread:.{digits}f}" if isinstance(spread, int | float) else "")


def mse(r: Result) -> str:
    """`mse_100`; where z was not inferred by chains from noise, `mse` with its start."""
    spec = sampler(r, "posterior")
    if spec is None or spec.start == "noise":
        return number(r, "mse_100", 4)
    return f"{number(r, 'mse', 4)} ({spec.start})"


def sampler(r: Result, target: str) -> SamplerSpec | None:
    """How the z behind the MSE or the FID was drawn."""
    protocol = r["protocol"] or {}
    for name in ("mse",) if target == "posterior" else ("fid", "frechet"):
        entry = protocol.get(name) or {}
        if "sampler" in entry:
            spec = SamplerSpec.from_dict(entry["sampler"])
            return replace(spec, steps=next(iter(entry["steps"].values()))) if entry.get("steps") else spec
    return None


def drawn(r: Result, target: str) -> str:
    """The same in words, and with what the run learned where that was another start."""
    spec, learned = sampler(r, target), learned_start(r, target)
    if spec is None:
        return "-"
    return spec.in_words() + (f" (learned with {learned})" if learned != spec.start else "")


def learned_start(r: Result, target: str) -> str:
    """The start that the run learned with."""
    section = ((r["config"] or {}).get("method") or {}).get(f"{target}_start") or {}
    return str(section.get("kind", "noise"))


def base(r: Result, metric: str) -> str:
    """p_0, from which the z of this metric were drawn or its chains started."""
    entry = (r["protocol"] or {}).get(metric) or {}
    return SamplerSpec.from_dict(entry["sampler"]).base if "sampler" in entry else "N(0, I)"


# --- how it was learned -----------------------------------------------------------------------------------------------


def updates(r: Result) -> str:
    count, start = r["updates"], (r["protocol"] or {}).get("start")
    if not isinstance(count, int):
        return "-"
    source = (r["config"] or {}).get("training", {}).get("start_from")
    if source and not start:
        return f"{count:,} updates after those of `{source}`"
    first = f", the first {start['updates']:,} as `{start['name']}`" if start else ""
    count += start["updates"] if start else 0
    share = f", {count / PAPER_UPDATES:.0%} of the paper's" if column(r) and count < PAPER_UPDATES else ""
    return f"{count:,} updates{share}{first}"


def seeds(r: Result) -> str:
    n = len({p.get("seed", i) for i, p in enumerate(r["per_seed"] or [{}])})
    return f"{n} seed{'s' * (n > 1)}"


def small_print(r: Result) -> str:
    """Beside a number: which checkpoint, how many updates and seeds, and what differs from the preset."""
    start = learned_start(r, "posterior")
    also = f", learned with an {start}" if start == "encoder" else ""
    return f"<br><sub>{checkpoint(r)} checkpoint, {updates(r)}, {seeds(r)}{also}{unlike(r['config'])}</sub>"


def unlike(config: Mapping[str, Any] | None) -> str:
    """; KEY VALUE, ...: what a result was learned with, where the preset it stands on says otherwise now."""
    if not config or not config.get("based_on"):
        return ""
    run = from_dict(config)
    unused = {f"optimizers.{name}" for name in run.method.DEFAULT_RATES} - {
        f"optimizers.{n}" for n in run.method.networks()
    }
    free = {*FREE_ON_RESUME, "seed", *unused}
    changed = {key: new for key, (_, new) in differences(run).items() if key not in free}
    if changed.get("training.start_from"):  # where the other run lies is no setting, but that there is none is one
        del changed["training.start_from"]
    words = [f"{key} {new['kind'] if isinstance(new, dict) else new}" for key, new in changed.items()]
    return f"; {', '.join(words)}" if words else ""


def checkpoint(r: Result) -> str:
    return str((r["protocol"] or {}).get("checkpoint", "-"))


# --- markdown ---------------------------------------------------------------------------------------------------------


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def link(name: str, text: str = "") -> str:
    """A link from docs/ to a result file."""
    return f"[{text or f'{name}.json'}](../results/{name}.json)"

"""What a result file says, in the words and numbers of a table's cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lebm.config import BASES, flatten, preset_names, resolve
from lebm.published import COLUMNS, PAPER_UPDATES
from lebm.runs import FREE_ON_RESUME

START = "training.start_from"
SIDE_BY_SIDE = "side-by-side"  # results.side_by_side
LONG_RUN = "long_run_ratio"  # the metric that tells a long-run test from an evaluation
RECROPPED = "0244d93d46eb266580b1f5ad012f1669b61ddce0f9712d3b421ff6f1d566f524"  # data.sha256 of SVHN cut from Format 1 again
NOTES = {
    "SVHN, re-cropped from Format 1": "cut again from the full-number images with the published boxes: 98 % of the pixel values equal the official crops', the largest difference is 5",
    "CelebA-30k, squashed": "30,000 faces (the paper uses 40,000), the whole frame squashed to a square and recompressed: its FID compares models on this set, not with the paper's",
}


def column(result: Mapping[str, Any]) -> str | None:
    """Which column of Table 1 a result belongs to; a long-run test has a table of its own."""
    if LONG_RUN in (result.get("metrics") or {}):
        return None
    config = result["config"] or {}
    if result["experiment"] == SIDE_BY_SIDE:
        return None
    name = (result["data"] or {}).get("name")
    name = f"celeba{config.get('generator', {}).get('size')}" if name == "celeba" else name
    return name if name in COLUMNS else None


def kind(result: Mapping[str, Any]) -> str:
    """svhn-best -> best, svhn -> ""."""
    return str(result["experiment"]).removeprefix(column(result) or "").strip("-")


def data_label(result: Mapping[str, Any]) -> str:
    """The data as a write-up must call it."""
    data = result["data"] or {}
    if data.get("sha256") == RECROPPED:
        return "SVHN, re-cropped from Format 1"
    if data.get("name") == "celeba" and data.get("test") == 3000 and data.get("train", 40_000) <= 27_000:
        return "CelebA-30k, squashed"
    return COLUMNS.get(column(result) or "", str(data.get("name")))


def number(result: Mapping[str, Any], name: str, digits: int) -> str:
    """A metric, with its standard deviation over seeds; "-" where it was not measured."""
    value, spread = (result["metrics"].get(key) for key in (name, f"{name}_spread"))
    if not isinstance(value, int | float):
        return "-"
    return f"{value:.{digits}f}" + (f" ± {spread:.{digits}f}" if isinstance(spread, int | float) else "")


def own_mse(result: Mapping[str, Any]) -> str:
    """`mse_100`; where z was inferred in another way than by chains from N(0, I), `mse` by that way."""
    by = measured_by(result, "posterior")
    return number(result, "mse_100", 4) if by == "langevin" else f"{number(result, 'mse', 4)} ({by})"


MEASURED = {"posterior": ("mse",), "prior": ("fid", "frechet")}  # the metrics of a table that draw z so


def how_measured(result: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The protocol of the numbers whose z are draws from the prior or posterior; empty where none is kept."""
    protocol = result.get("protocol") or {}
    return next((found for name in MEASURED[kind] if (found := protocol.get(name))), {})


def measured_by(result: Mapping[str, Any], kind: str) -> str:
    """By which way z was drawn for the numbers: as their protocol says, or in a file from before it did, the run's own."""
    return str(how_measured(result, kind).get("by") or learned_by(result, kind))


def learned_by(result: Mapping[str, Any], kind: str) -> str:
    """The run's own way to draw z."""
    return str(((result["config"] or {}).get("draw") or {}).get(kind, "langevin"))


def way(result: Mapping[str, Any], kind: str) -> str:
    """By which way the numbers were measured, and if it was another, by which the run learned."""
    by, own = measured_by(result, kind), learned_by(result, kind)
    return by if by == own else f"{by} (learned by {own})"


def chain_length(result: Mapping[str, Any], kind: str) -> str:
    """K0 or K1 behind the numbers; of `mse` and `mse_100` the first that was measured."""
    steps = how_measured(result, kind).get("chain_steps", result["config"]["chains"][kind]["steps"])
    return str(steps[0] if isinstance(steps, list) else steps)


def updates(result: Mapping[str, Any]) -> str:
    steps = result["steps"]
    if not isinstance(steps, int):
        return "-"
    source, start = flatten(result["config"] or {}).get(START), (result["protocol"] or {}).get("start")
    if source and not start:
        return f"{steps:,} updates after those of `{source}`"
    first = f", the first {start['updates']:,} as `{start['experiment']}`" if start else ""
    steps += start["updates"] if start else 0
    far = f", {steps / PAPER_UPDATES:.0%} of the paper's" if column(result) and steps < PAPER_UPDATES else ""
    return f"{steps:,} updates{far}{first}"


def seeds(result: Mapping[str, Any]) -> int:
    return len(result["per_seed"] or [1])


def length(result: Mapping[str, Any]) -> str:
    """In small print beside a number: which checkpoint, how many updates and seeds."""
    count = seeds(result)
    encoder = ", learned with an encoder" if learned_by(result, "posterior") != "langevin" else ""
    return f"<br><sub>{checkpoint_word(result)} checkpoint, {updates(result)}, {count} seed{'s' * (count > 1)}{encoder}{unlike(result)}</sub>"


def unlike(result: Mapping[str, Any]) -> str:
    """; KEY VALUE, ...: where a result was learned with other settings than the preset of its name has now."""
    name, config = str(result["experiment"]).removesuffix("-long-run"), result["config"] or {}
    if name not in preset_names():
        return ""
    draw = config.get("draw") or {}
    idle = [
        part
        for part, used in (("flow", draw.get("prior") in ("flow", "warm")), ("encoder", draw.get("posterior") in ("amortised", "warm")))
        if not used
    ]
    unused = tuple(f"{part}." for part in idle) + tuple(f"learning.{part}_rate" for part in idle)
    was, now = flatten(config), flatten(resolve(name).to_dict())
    if was.get(START) and now[START]:  # where the other run lies is no setting
        was[START] = now[START]
    changed = [f"{k} {was[k]}" for k in now if k in was and was[k] != now[k] and k not in (*FREE_ON_RESUME, "seed") and not k.startswith(unused)]
    return f"; {', '.join(changed)}" if changed else ""


def checkpoint_word(result: Mapping[str, Any]) -> str:
    return str((result["protocol"] or {}).get("checkpoint", "-"))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mark(result: Mapping[str, Any]) -> str:
    return marks(data_label(result))


def marks(label: str) -> str:
    return "\\" + "*" * (list(NOTES).index(label) + 1) if label in NOTES else ""


def base(r: Mapping[str, Any]) -> str:
    """p_0 of a result's run."""
    return BASES.get(r["config"].get("prior", {}).get("base"), "N(0, I)")


def link(name: str, to_results: str) -> str:
    return f"[{name}.json]({to_results}{name}.json)"

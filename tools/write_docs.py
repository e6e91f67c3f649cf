"""results/*.json -> docs/results.md and the results block of README.md: `make results`, in the root of the repository.

With --check nothing is written, and the exit code is 1 where a document differs. No number of ours is typed by hand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tables
from cells import NOTES, column, data_label, mark, method, mse, number, table, text_column, title
from published import ANOMALY, ANOMALY_DIGITS, COLUMNS, TABLE_1, TABLE_2, TEXT_COLUMNS
from tables import METHODS, Results

from lebm.core.errors import UserError
from lebm.core.files import write_atomic
from lebm.measure.result import KEYS

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
SHOWS_ORIGINALS = ("svhn", "cifar10", "mnist", "digits")  # sets whose own pictures may be shown beside reconstructions


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Every result file by name; a file that is none is an error that names it."""
    out = {}
    for path in sorted(folder.glob("*.json")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            raise UserError(f"{path} is not readable as JSON; write it again with `lebm ... --result`") from None
        if not isinstance(values, dict) or set(values) != set(KEYS) or not isinstance(values["metrics"], dict):
            keys = ", ".join(KEYS)
            raise UserError(f"{path} is no result: it must have the keys {keys}; write it with `lebm ... --result`")
        out[path.stem] = values
    return out


# --- README.md --------------------------------------------------------------------------------------------------------


def readme_block(results: Results) -> str:
    """One short table of images, and a line each for anomalies and text."""
    ours = {name: r for name, r in results.items() if column(r)}
    if not ours:
        return "There are no results on the paper's data sets yet."
    parts = [_images(ours), _anomaly(results), _text(results)]
    return "\n\n".join(part for part in parts if part)


def _images(ours: Results) -> str:
    rows = [[f"{what} ({source})", *numbers] for what, source, numbers in TABLE_1]
    for m in tables.ordered(map(method, ours.values()), METHODS):
        if m in METHODS:
            rows.append([f"**lebm**, {METHODS[m]}", *(_cell(ours, c, m) for c in COLUMNS)])
    marks = [f"{mark(label)} {label}" for label in NOTES if label in {data_label(r) for r in ours.values()}]
    where = "Updates, seeds and settings of each number, and more tables: [docs/results.md](docs/results.md)."
    head = ["MSE / FID, lower is better", *COLUMNS.values()]
    return f"{table(head, rows)}\n\n{'; '.join(marks)}{'. ' * bool(marks)}{where}"


def _cell(ours: Results, c: str, m: str) -> str:
    here = [(name, r) for name, r in ours.items() if (column(r), method(r)) == (c, m)]
    return (
        "<br>".join(f"[{mse(r)} / {number(r, 'fid', 2)}](results/{n}.json){mark(data_label(r))}" for n, r in here)
        or "-"
    )


def _anomaly(results: Results) -> str:
    ours = tables.anomaly_results(results)
    if "mnist-anomaly" not in ours:
        return ""
    digits, paper = ", ".join(ANOMALY_DIGITS), ", ".join(ANOMALY[0][2])
    return (
        f"Anomalies on MNIST, AUPRC where the anomaly is {digits}: the paper {paper}; "
        f"**lebm** {', '.join(tables.auprc(ours['mnist-anomaly']))} ([more](docs/results.md#anomaly-detection-on-mnist))."
    )


def _text(results: Results) -> str:
    r = results.get("ptb-paper")
    if r is None or not text_column(r):
        return ""
    paper = dict(TABLE_2)["the paper"][list(TEXT_COLUMNS).index("ptb")]
    return (
        f"Text on {TEXT_COLUMNS['ptb']}, {title('fppl')} / {title('rppl')} / NLL: the paper {paper}; "
        f"**lebm** {tables.text_numbers(r)} ([more](docs/results.md#table-2-text))."
    )


# --- docs/results.md --------------------------------------------------------------------------------------------------


def results_page(results: Results, root: Path) -> str:
    mse_is = (
        "MSE is `mse_100`; where the word encoder stands behind it, it is `mse`, with chains that start from the encoder: see "
        "[protocol.md](protocol.md). Rows without a link are published numbers."
    )
    sections = {
        "Table 1: images": f"{tables.images(results)}\n\n{mse_is}",
        "Table 2: text": tables.text(results),
        "Each result": tables.details(results),
        "What the learned prior buys": tables.learned_prior(results),
        "Starts of chains": tables.starts(results),
        "Anomaly detection on MNIST": tables.anomaly(results),
        "Sentences": sentences(results, root),
        "Pictures": pictures(results, root),
        "Long chains": tables.long_runs(results),
        "Speed": tables.speed(results),
        "Embedded digits": tables.digits(results),
        "Calibration of the FID": tables.calibration(results),
    }
    head = (
        "# Results\n\nWritten by `make results` from the files in `results/`; do not edit. How each number is measured: "
        "[protocol.md](protocol.md)."
    )
    return "\n\n".join([head, *(f"## {name}\n\n{body}" for name, body in sections.items() if body)]) + "\n"


def sentences(results: Results, root: Path) -> str:
    """Samples of text models, where docs/figures has the `samples` of a run's sentences.json: never the originals."""
    parts = []
    for r in results.values():
        path = _figure(root, r, "sentences.json")
        if text_column(r) and path.is_file():
            try:
                values = json.loads(path.read_text(encoding="utf-8"))
                samples, originals = values["samples"][:10], "reconstructions" in values
            except (ValueError, KeyError, TypeError, RecursionError):
                raise UserError(f"{path} is no sentences.json of a run; copy it again") from None
            if originals:
                raise UserError(
                    f"{path} has test sentences beside their reconstructions; take `reconstructions` out first"
                )
            block = "\n".join(map(str, samples)).replace("```", "")
            parts.append(f"The first ten samples of `{r['name']}`, as drawn:\n\n```text\n{block}\n```")
    return "\n\n".join(parts)


def pictures(results: Results, root: Path) -> str:
    """Grids that are in docs/figures; originals only where they may be shown."""
    parts = []
    for r in results.values():
        samples, pairs = _figure(root, r, "samples.png"), _figure(root, r, "reconstructions.png")
        name = r["name"]
        if column(r) and samples.is_file():
            prior = "its learned prior" if r["config"]["method"]["energy"] else "N(0, I)"
            words = f"*Samples of `{name}` from {prior} ({data_label(r)}).*"
            parts.append(f"![Samples of {name}](figures/{samples.name})\n\n{words}")
        if column(r) and r["data"]["name"] in SHOWS_ORIGINALS and pairs.is_file():
            words = f"*Test images of `{name}`, each above its reconstruction.*"
            parts.append(f"![Reconstructions by {name}](figures/{pairs.name})\n\n{words}")
    return "\n\n".join(parts)


def _figure(root: Path, r: Any, what: str) -> Path:
    return root / "docs" / "figures" / f"{str(r['name']).replace('/', '-')}-{what}"


# --- both -------------------------------------------------------------------------------------------------------------


def documents(root: Path) -> dict[Path, str]:
    """What README.md and docs/results.md must say."""
    results, readme = read_results(root / "results"), root / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UserError(f"{readme} must have the lines {BEGIN} and {END}, once and in this order; run this in the root")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    block = f"{before}{BEGIN}\n{readme_block(results)}\n{END}{after}"
    return {readme: block, root / "docs" / "results.md": results_page(results, root)}


def main(arguments: list[str]) -> int:
    """0: written, or nothing differs; 1: --check and a document differs; 2: a mistake."""
    root, differ = Path.cwd(), []
    if set(arguments) - {"--check"}:
        print(f"error: {' '.join(arguments)} is not understood; the only option is --check", file=sys.stderr)
        return 2
    try:
        for path, text in documents(root).items():
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                differ.append(path)
                if not arguments:
                    write_atomic(path, text)
                print(path.relative_to(root))
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return int(bool(differ and arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

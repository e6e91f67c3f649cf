"""results/*.json -> README.md's block of results and docs/results.md: `make results` (python -m lebm.documents, in the repository's root).

No number of ours is typed by hand: every one comes from a result file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lebm import checkpoint
from lebm.cells import column, data_label
from lebm.errors import UserError
from lebm.results import KEYS
from lebm.tables import (
    Results,
    ablation,
    anomaly,
    calibration,
    details,
    digits,
    long_runs,
    side_by_side,
    speed,
    table_1,
    table_2,
    text_column,
)

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
SHOWS_ORIGINALS = ("svhn", "cifar10", "mnist", "digits")  # sets whose own pictures may be shown beside reconstructions


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Every result file, by name; a file that is none is an error that names it."""
    out = {}
    for path in sorted(folder.glob("*.json")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            raise UserError(f"{path} is not readable as JSON; write it again with `lebm ... --result`") from None
        if not isinstance(values, dict) or set(values) != set(KEYS) or not isinstance(values["metrics"], dict):
            raise UserError(f"{path} is no result: it must have the keys {', '.join(KEYS)}; write it with `lebm ... --result`")
        out[path.stem] = values
    return out


def quoted(results: Results, root: Path) -> str:
    """Samples of text models, where docs/figures/EXPERIMENT-sentences.json lies (`samples` of a run's sentences.json): never the originals."""
    parts = []
    for r in results.values():
        path = root / "docs" / "figures" / f"{r['experiment']}-sentences.json"
        if text_column(r) and path.is_file():
            try:
                kept = json.loads(path.read_text(encoding="utf-8"))
                said, originals = kept["samples"][:10], "reconstructions" in kept
            except (ValueError, KeyError, TypeError, RecursionError):
                raise UserError(f"{path} is no sentences.json of a run; copy it again") from None
            if originals:
                raise UserError(f"{path} has test sentences beside their reconstructions; take `reconstructions` out before it is published")
            parts.append(
                f"The first ten samples of `{r['experiment']}`, as drawn:\n\n```text\n" + "\n".join(map(str, said)).replace("```", "") + "\n```"
            )
    return "\n\n".join(parts)


def pictures(results: Results, root: Path, to_docs: str, everything: bool) -> str:
    """Grids that are there: of the README's, the one with the lowest FID a data set; originals only where they may be shown."""
    shown: dict[str, tuple[float, str]] = {}
    for r in results.values():
        e, c = str(r["experiment"]), column(r)
        if c is None:
            continue
        lines = []
        if (root / "docs" / "figures" / f"{e}-samples.png").is_file():
            prior = "N(0, I)" if r["config"]["prior"]["kind"] == "gaussian" else "its learned prior"
            lines.append(f"![Samples of {e}]({to_docs}figures/{e}-samples.png)\n\n*Samples of `{e}` from {prior} ({data_label(r)}).*")
        if everything and r["data"]["name"] in SHOWS_ORIGINALS and (root / "docs" / "figures" / f"{e}-reconstructions.png").is_file():
            lines.append(
                f"![Reconstructions by {e}]({to_docs}figures/{e}-reconstructions.png)\n\n*Test images of `{e}`, each above its reconstruction.*"
            )
        value = r["metrics"].get("fid")
        rank = float(value) if isinstance(value, int | float) else float("inf")
        key = e if everything else c
        if lines and (key not in shown or rank < shown[key][0]):
            shown[key] = (rank, "\n\n".join(lines))
    return "\n\n".join(text for _, text in shown.values())


def readme_block(results: Results, root: Path) -> str:
    parts = [digits(results, "results/")]
    if any(column(r) for r in results.values()):
        how = "MSE is `mse_100`, or with a way in brackets `mse`, z inferred by that way; the FID is of 50,000 samples against all training images. More, with the baselines: [docs/results.md](docs/results.md)."
        parts += [table_1(results, "results/", baselines=False), how, pictures(results, root, "docs/", everything=False)]
    else:
        parts.append("No results on the paper's data sets yet.")
    if found := anomaly(results, "results/", baselines=False):
        parts.append("Anomaly detection on MNIST ([docs/anomaly.md](docs/anomaly.md)):\n\n" + found)
    if text := table_2(results, "results/", "docs/"):
        parts.append(text)
    if times := speed(results, "results/"):
        parts.append(times)
    return "\n\n".join(p for p in parts if p)


def results_page(results: Results, root: Path) -> str:
    up = "../results/"
    sections = [
        (
            "Table 1: images",
            table_1(results, up, baselines=True)
            + "\n\nMSE is `mse_100`, or with a way in brackets `mse`, z inferred by that way: see [protocol.md](protocol.md). Rows without a link are published numbers.",
        ),
        ("Table 2: text", table_2(results, up)),
        ("Each result", details(results, up)),
        ("What the learned prior buys", ablation(results, up)),
        ("Ways to draw z", side_by_side(results, up)),
        ("Anomaly detection on MNIST", anomaly(results, up, baselines=True)),
        ("Sentences", quoted(results, root)),
        ("Pictures", pictures(results, root, "", everything=True)),
        ("Long chains", long_runs(results, up)),
        ("Speed", speed(results, up)),
        ("Embedded digits", digits(results, up)),
        ("Calibration of the FID", calibration(results, up)),
    ]
    head = (
        "# Results\n\nWritten by `make results` from the files in `results/`; do not edit. How each number is measured: [protocol.md](protocol.md)."
    )
    return "\n\n".join([head, *(f"## {title}\n\n{body}" for title, body in sections if body)]) + "\n"


def documents(root: Path) -> dict[Path, str]:
    """What README.md and docs/results.md must say."""
    results = read_results(root / "results")
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UserError(f"{readme} must have the lines {BEGIN} and {END}, once and in this order; run this in the repository's root")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return {
        readme: f"{before}{BEGIN}\n{readme_block(results, root)}\n{END}{after}",
        root / "docs" / "results.md": results_page(results, root),
    }


def main() -> int:
    try:
        for path, text in documents(Path.cwd()).items():
            checkpoint.write_atomic(path, text)
            print(path.relative_to(Path.cwd()))
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Looking inside a learned model: chains, their diagnostics, paths between images, nearest training images.

What is found out about a run stands in RUN/analysis.json, a part for each question, with the number of updates it was asked at; pictures
are in RUN/figures. `complete` asks what has not been asked of the present weights, and the report shows it all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from lebm import results
from lebm.analysis import chains, diagnostics, paths
from lebm.data import Splits, data_root
from lebm.data import load as load_data
from lebm.errors import CheckpointError, DataError
from lebm.generators import TextGenerator
from lebm.log import progress_bar
from lebm.methods.ways import WAYS
from lebm.model import LatentEBM, load
from lebm.training import fitting_threads, pick_device, refuse_handed_in

FILE = "analysis.json"


class Subject:
    """A run under study: its model, and its data once something asks for it."""

    def __init__(self, run: str | Path, device: str = "auto", data_dir: str | Path | None = None, console: Console | None = None) -> None:
        self.run = Path(run)
        if self.run.is_file():
            raise CheckpointError(f"{self.run} is a file; give the run folder, where what is found is also written")
        self.model: LatentEBM = load(self.run, pick_device(device))
        self.console, self.data_dir = console, data_dir
        self._splits: Splits | None = None

    @property
    def of_text(self) -> bool:
        return isinstance(self.model.generator, TextGenerator)

    def images_only(self, what: str) -> None:
        if (kind := self.model.config.generator.kind) != "image":
            raise DataError(f"{self.run} is a model of kind {kind}; {what} are for images")

    def bar(self, what: str) -> Any:
        return progress_bar(self.console, what)

    @property
    def splits(self) -> Splits:
        """All rows of the run's data set."""
        if self._splits is None:
            refuse_handed_in(self.model.config)
            with self.bar("reading data") as update:
                self._splits = load_data(self.model.config.with_values(**{"data.limit": None}), data_root(self.data_dir), update)
        return self._splits

    def keep(self, part: str, values: dict[str, Any]) -> None:
        """Put a part into analysis.json, beside the others, with the ways by which this run draws z."""
        drawn = {kind: self.model.drawing(kind).protocol() for kind in WAYS}
        results.write(self.run / FILE, {**read(self.run), part: {"updates": self.model.step, "drawn": drawn, **values}})

    def knows(self, part: str) -> bool:
        found = read(self.run).get(part)
        if not isinstance(found, dict) or "updates" not in found or found["updates"] != self.model.step:
            return False
        return "drawn" in found or self.model.config.draw.prior == "langevin"  # without its ways named, it looked at chains from p_0


def read(run: Path) -> dict[str, Any]:
    """What analysis.json holds; a damaged file counts as none."""
    try:
        found = json.loads((run / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


# Adding a part is a function Subject -> what analysis.json keeps of it, and a line here.
PARTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "chains": chains.draw,
    "diagnostics": diagnostics.diagnose,
    "neighbours": paths.find_neighbours,
    "interpolation": paths.draw_interpolation,
}


def complete(subject: Subject) -> list[str]:
    """Ask whatever has not been asked of these weights; what cannot be answered (data that is not here) is said, not raised."""
    notes = []
    with fitting_threads(subject.model):
        for part, ask in PARTS.items():
            if subject.knows(part):
                continue
            try:
                subject.keep(part, ask(subject))
            except DataError as e:
                notes.append(f"{part}: {e}")
    return notes

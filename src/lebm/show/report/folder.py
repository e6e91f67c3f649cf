"""What a run folder holds, read with patience: anything may be missing or damaged, and the page says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lebm.config import flatten
from lebm.config.files import read_yaml
from lebm.core.errors import CheckpointError, DataError, UserError
from lebm.data import HANDED_IN
from lebm.extensions.bases import FlowBase, MixtureBase, WhitenedGaussian
from lebm.measure import METRICS, result
from lebm.measure.metric import Number
from lebm.prior import StandardNormal
from lebm.run import Run
from lebm.sampler import SamplerSpec
from lebm.show import pictures
from lebm.show.report import kinds
from lebm.show.templates import data_uri, is_number

BASES = {"whitened": WhitenedGaussian.name, "mixture": MixtureBase.name, "flow": FlowBase.name}
MIME = {".svg": "image/svg+xml", ".png": "image/png"}
# Every number that a metric gives: what it is, and the metric under whose name a result says how it was measured.
NUMBERS: dict[str, tuple[Number, str]] = {n.name: (n, m.name) for m in METRICS.values() for n in m.numbers}
Drawn = tuple[SamplerSpec, int]


class Folder:
    """A run folder as the templates use it."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise CheckpointError(
                f"{path} is not a run folder; give the folder that training wrote, with its config.yaml and log.jsonl"
            )
        self.run, self.notes = Run(path), list[str]()
        self.config_text = _text(self.run.config_file)
        # Without the limits of a configuration: a page can show what a run could not begin with.
        settings = self._read(lambda: read_yaml(self.run.config_file) if self.run.exists() else {})
        self.config = flatten(settings)
        # What the method and its rows have: other parts of the page are left out.
        self.has_energy, self.modality = kinds.has_energy(settings), kinds.modality(settings)
        self.result = self._read(lambda: self.run.metrics or {})
        self.rows = self.run.rows()
        if damaged := sum(bool(line.strip()) for line in _text(self.run.log_file).splitlines()) - len(self.rows):
            lines, are = ("lines", "are") if damaged > 1 else ("line", "is")
            self.notes.append(f"{damaged} {lines} of log.jsonl could not be read and {are} left out.")
        self.analysis, self.sentences = (result.read(path / f"{name}.json") for name in ("analysis", "sentences"))

    def _read(self, read: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        try:
            return read()
        except UserError as e:
            self.notes.append(f"{e}.")
            return {}

    # --- what was learned -----------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return str(self.result.get("name") or self.config.get("name") or self.run.path.resolve().name)

    @property
    def updates(self) -> Any:
        """Learning updates behind the numbers, or those in the log."""
        steps = [row["step"] for row in self.rows if isinstance(row.get("step"), int)]
        return self.result.get("updates") or max(steps, default=None)

    @property
    def base(self) -> str:
        """p_0, as a page writes it."""
        return BASES.get(str(self.config.get("method.base.kind")), StandardNormal.name)

    @property
    def without_energy(self) -> bool:
        """Whether this is the paper's method whose prior is its base alone."""
        return self.papers_method and not self.has_energy

    @property
    def papers_method(self) -> bool:
        """Whether this is the paper's method, or one of its ablations."""
        return bool(self.config.get("method.kind", kinds.PAPERS) == kinds.PAPERS)

    @property
    def two_priors(self) -> bool:
        """Whether samples from the base are of another prior than the samples of the model."""
        if self.papers_method:
            return self.has_energy
        own, base = (pictures.provenance(self.run.figures, name) for name in ("samples", "samples-gaussian"))
        return bool(own and base and own != base)

    @property
    def handed_in(self) -> bool:
        """Whether the run learned from rows that no folder holds, so that it cannot be evaluated."""
        return bool(self.config.get("data.name") == HANDED_IN)

    def start(self, target: str) -> str:
        return str(self.config.get(f"method.{target}_start.kind", "noise"))

    def chain(self, target: str) -> bool:
        return self.config.get(f"method.{target}_chain.steps") != 0

    # --- numbers --------------------------------------------------------------------------------------------------

    @cached_property
    def metrics(self) -> Mapping[str, Any]:
        return flatten(self.result.get("metrics"))

    @property
    def numbers(self) -> dict[str, Number]:
        """What the metrics that have a value mean, by name; a standard error stands beside its number."""
        there = [name for name, value in self.metrics.items() if value is not None and not name.endswith("_error")]
        return {name: self._of_these_rows(number_of(name)) for name in there}

    def _of_these_rows(self, number: Number) -> Number:
        """What a metric says of images, said of the rows of this run."""
        return replace(number, about=number.about.replace("per pixel", f"per {self.modality.unit}"))

    def number(self, name: str) -> float | None:
        value = self.metrics.get(name)
        return float(value) if is_number(value) else None

    @property
    def protocol(self) -> list[tuple[str, Any]]:
        """How the numbers were measured, with every sampler in words."""
        return [(k.replace("_", " "), v) for k, v in flatten(_worded(self.result.get("protocol"))).items()]

    def sampler(self, name: str) -> Drawn | None:
        """How z was drawn for a number, and how many; None where that means nothing or the result does not say."""
        number, metric = NUMBERS.get(name, (None, ""))
        protocol = self.result.get("protocol")
        how = protocol.get(metric) if isinstance(protocol, Mapping) else None
        if number is None or number.target is None or not isinstance(how, Mapping) or (spec := sampler_of(how)) is None:
            return None
        steps = how.get("steps")  # of a metric with several chain lengths, by the names of its numbers
        if isinstance(steps, Mapping) and isinstance(steps.get(name), int):
            spec = replace(spec, steps=steps[name])
        samples = how.get("samples")
        return spec, samples if isinstance(samples, int) else 1

    def sampled(self, name: str) -> str:
        """The same in words."""
        return _words(self.sampler(name))

    # --- pictures -------------------------------------------------------------------------------------------------

    def picture(self, stem: str) -> str | None:
        """figures/STEM.svg or .png as a data URI."""
        files = [(self.run.figures / f"{stem}{ending}", mime) for ending, mime in MIME.items()]
        return next((data_uri(file.read_bytes(), mime) for file, mime in files if file.is_file()), None)

    def drawn(self, picture: str) -> str:
        """How z was drawn for a picture or for sentences, in words; empty where no record says so."""
        return _words(pictures.provenance(self.run.figures, picture))

    def unlike(self, number: str, picture: str) -> str:
        """Beside a picture: how z was drawn for its number, where that was done otherwise."""
        measured, drawn = self.sampler(number), pictures.provenance(self.run.figures, picture)
        return f", z: {_words(measured)}" if measured and drawn and measured[0] != drawn[0] else ""

    # --- analysis.json --------------------------------------------------------------------------------------------

    def part(self, name: str) -> Mapping[str, Any]:
        """A part of analysis.json; empty where it is missing or about fewer updates than the numbers."""
        part, measured = self.analysis.get(name), self.result.get("updates")
        if not isinstance(part, Mapping):
            return {}
        updates = part.get("updates")
        return {} if isinstance(updates, int) and isinstance(measured, int) and updates < measured else part


def number_of(name: str) -> Number:
    """What a number means; an unknown one has only its name."""
    return NUMBERS[name][0] if name in NUMBERS else Number(name, name, None, "")


def worded(values: Mapping[str, Any]) -> str:
    """How z was drawn for a part of an analysis; empty where it does not say."""
    spec = sampler_of(values)
    return spec.in_words() if spec else ""


def sampler_of(values: Mapping[str, Any]) -> SamplerSpec | None:
    """The sampler that a protocol or a part of an analysis carries."""
    with suppress(KeyError, TypeError, DataError):
        return SamplerSpec.from_dict(values["sampler"])
    return None


def _words(drawn: Drawn | None) -> str:
    return drawn[0].in_words(drawn[1]) if drawn else ""


def _worded(values: Any, samples: Any = 1) -> Any:
    if not isinstance(values, Mapping):
        return values
    with suppress(DataError, TypeError):
        return SamplerSpec.from_dict(values).in_words(samples if isinstance(samples, int) else 1)
    return {key: _worded(value, values.get("samples")) for key, value in values.items()}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

"""What a run folder holds, read with patience: anything may be missing or damaged, and the page says so."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lebm.config import flatten
from lebm.config.files import read_yaml
from lebm.core.errors import CheckpointError, DataError, UserError
from lebm.extensions.bases import FlowBase, MixtureBase, WhitenedGaussian
from lebm.measure import METRICS, result
from lebm.measure.metric import Number
from lebm.prior import StandardNormal
from lebm.run import Run
from lebm.sampler import SamplerSpec
from lebm.show import charts, pictures
from lebm.show.report import svg
from lebm.show.templates import data_uri, duration, is_number

BASES = {"whitened": WhitenedGaussian.name, "mixture": MixtureBase.name, "flow": FlowBase.name}
MIME = {".svg": "image/svg+xml", ".png": "image/png"}
# What the paper's Table 1 says, by data set and the name of our number; CelebA at 64 pixels.
PAPER = {
    "svhn": {"mse_100": "0.008", "fid": "29.44"},
    "cifar10": {"mse_100": "0.020", "fid": "70.15"},
    "celeba": {"mse_100": "0.013", "fid": "37.87"},
}
# Every number that a metric gives: what it is, and the metric under whose name a result says how it was measured.
NUMBERS: dict[str, tuple[Number, str]] = {n.name: (n, m.name) for m in METRICS.values() for n in m.numbers}
STARTS = {  # what a run does otherwise than the paper: target, start, whether steps follow
    ("posterior", "encoder", True): "an encoder proposes where posterior chains start",
    ("posterior", "encoder", False): "an encoder infers z without a chain",
    ("prior", "flow", True): "a flow proposes where prior chains start",
    ("prior", "flow", False): "a flow draws z from the prior without a chain",
    ("prior", "replay", True): "prior chains continue from update to update",
}
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
        self.config = self._read(lambda: flatten(read_yaml(self.run.config_file)) if self.run.exists() else {})
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
    def facts(self) -> list[tuple[str, Any, str]]:
        seconds = next((row["seconds"] for row in reversed(self.rows) if "seconds" in row), None)
        start = self.run.start
        facts = {
            "updates": self.updates,
            "after those of": f"{start['name']}, {start['updates']:,}" if start else None,
            "latent dimensions": self.config.get("nz"),
            "seed": self.config.get("seed"),
            "device": self.result.get("device"),
            "learning took": duration(seconds),
            "code": str(self.result.get("code") or "")[:12],
        }
        return [(name, value, "") for name, value in facts.items() if value not in (None, "")]

    @property
    def method_kind(self) -> str:
        return str(self.config.get("method.kind", "latent-ebm"))

    @property
    def base(self) -> str:
        """p_0, as a page writes it."""
        return BASES.get(str(self.config.get("method.base.kind")), StandardNormal.name)

    @property
    def without_energy(self) -> bool:
        """Whether the prior is its base alone."""
        return self.config.get("method.energy", ...) is None

    def start(self, target: str) -> str:
        return str(self.config.get(f"method.{target}_start.kind", "noise"))

    def chain(self, target: str) -> bool:
        return self.config.get(f"method.{target}_chain.steps") != 0

    @property
    def has_chains(self) -> bool:
        return self.chain("posterior") and (self.without_energy or self.chain("prior"))

    @property
    def starts(self) -> list[str]:
        """What the run does otherwise than the paper where its chains begin."""
        keys = [(target, self.start(target), self.chain(target)) for target in ("posterior", "prior")]
        return [STARTS[key] for key in keys if key in STARTS]

    @property
    def from_noise(self) -> bool:
        return self.start("prior") == "noise"

    @property
    def warnings(self) -> list[tuple[Any, Any]]:
        return [(row.get("step"), row["warning"]) for row in self.rows if row.get("warning")]

    @property
    def commands(self) -> dict[str, str]:
        commands = {}
        if self.config_text.strip():
            file = shlex.quote(str(self.run.config_file))
            commands["Learn it again from the configuration above:"] = f"lebm train {file}"
        if command := self.result.get("command"):
            commands["The command behind the numbers on this page:"] = str(command)
        return commands

    # --- numbers --------------------------------------------------------------------------------------------------

    @cached_property
    def metrics(self) -> Mapping[str, Any]:
        return flatten(self.result.get("metrics"))

    @property
    def numbers(self) -> dict[str, Number]:
        """What the metrics mean, by name; a standard error stands beside its number."""
        return {name: number_of(name) for name in self.metrics if not name.endswith("_error")}

    def number(self, name: str) -> float | None:
        value = self.metrics.get(name)
        return float(value) if is_number(value) else None

    @property
    def distance_name(self) -> str:
        return "fid" if "fid" in self.metrics else "frechet"

    @property
    def distance(self) -> tuple[float | None, float | None, str]:
        """Of samples from the learned prior and from its base to the data, and what this distance is called."""
        name = self.distance_name
        return self.number(name), self.number(f"{name}_gaussian"), number_of(name).title

    @property
    def paper(self) -> Mapping[str, str]:
        """What the paper says of this data set."""
        data, size = self.result.get("data"), self.config.get("generator.size")
        name = data.get("name") if isinstance(data, Mapping) else None
        return {} if name == "celeba" and size not in (None, 64) else PAPER.get(str(name), {})

    @property
    def protocol(self) -> list[tuple[str, Any, str]]:
        """How the numbers were measured, with every sampler in words."""
        return [(k.replace("_", " "), v, "") for k, v in flatten(_worded(self.result.get("protocol"))).items()]

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

    @cached_property
    def panels(self) -> list[str]:
        return [svg.lines(chart) for chart in charts.training({"": self.rows})]

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

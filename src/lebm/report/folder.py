"""What a run folder holds, read with patience: anything may be missing or damaged, and the page says so."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lebm import figures
from lebm.config import BASES, flatten
from lebm.errors import CheckpointError

SENTENCES = "sentences.json"  # what a text model says, written by an evaluation
MIME = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Folder:
    path: Path
    config_text: str
    config: Mapping[str, Any]
    result: Mapping[str, Any]  # the whole of metrics.json
    rows: tuple[Mapping[str, Any], ...]  # of log.jsonl
    notes: tuple[str, ...]  # what could not be read
    analysis: Mapping[str, Any] = field(default_factory=dict)  # of analysis.json
    sentences: Mapping[str, Any] = field(default_factory=dict)  # of sentences.json

    @property
    def experiment(self) -> str:
        return str(self.result.get("experiment") or self.config.get("experiment") or self.path.resolve().name)

    @property
    def metrics(self) -> dict[str, Any]:
        return flatten(self.result.get("metrics"))

    def number(self, *names: str) -> float | None:
        """The first of these metrics that is there as a number."""
        found = (self.metrics.get(name) for name in names)
        return next((float(v) for v in found if isinstance(v, int | float) and not isinstance(v, bool)), None)

    def part(self, name: str) -> Mapping[str, Any]:
        """A part of analysis.json; empty where it is missing or of younger weights than those measured."""
        found, steps = self.analysis.get(name), self.result.get("steps")
        if not isinstance(found, Mapping):
            return {}
        updates = found.get("updates")
        return {} if isinstance(updates, int) and isinstance(steps, int) and updates < steps else found

    def setting(self, dotted: str) -> Any:
        return flatten(self.config).get(dotted)

    def measured_by(self, metric: str) -> str | None:
        """By which way z was drawn for a number; None where its protocol does not say."""
        part = {"mse_100": "mse", "infer_ms": "speed", "nll_reconstruction": "nll"}.get(metric, metric)
        told = flatten(self.result.get("protocol"))
        found = told.get(f"{part}.by", told.get(f"{part}.sentences.by"))
        return None if found is None else str(found)

    def drawn(self, what: str) -> Mapping[str, Any]:
        """How the z of `samples` or `reconstructions` came about, noted in the picture or beside the sentences; older ones have no such note."""
        if not self.sentences:
            return figures.noted(self.path / "figures" / f"{what}.png")
        notes = self.sentences.get("drawn")
        found = notes.get(what) if isinstance(notes, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    @property
    def base(self) -> str:
        """p_0, where prior chains start, as a page writes it."""
        return BASES.get(self.setting("prior.base"), "N(0, I)")

    def picture(self, stem: str) -> str | None:
        """figures/STEM.svg or .png as a data URI."""
        for ending, mime in MIME.items():
            path = self.path / "figures" / f"{stem}{ending}"
            if path.is_file():
                return data_uri(path.read_bytes(), mime)
        return None


def read(path: Path) -> Folder:
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a run folder; give the folder that training wrote, with its config.yaml and log.jsonl")
    notes: list[str] = []
    config_text = _text(path / "config.yaml")
    return Folder(
        path,
        config_text,
        _config(config_text, notes),
        _result(path / "metrics.json", notes),
        _rows(path / "log.jsonl", notes),
        tuple(notes),
        _analysis(path / "analysis.json"),
        _analysis(path / SENTENCES),
    )


def data_uri(data: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _config(text: str, notes: list[str]) -> Mapping[str, Any]:
    try:
        loaded = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        notes.append("config.yaml is not readable as YAML.")
        return {}
    return loaded if isinstance(loaded, Mapping) else {}


def _result(path: Path, notes: list[str]) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        loaded = json.loads(_text(path))
    except (ValueError, RecursionError):
        loaded = None
    if not isinstance(loaded, Mapping):
        notes.append("metrics.json is not readable; evaluate the run again to write it anew.")
        return {}
    return loaded


def _analysis(path: Path) -> Mapping[str, Any]:
    try:
        loaded = json.loads(_text(path) or "{}")
    except (ValueError, RecursionError):
        loaded = None
    return loaded if isinstance(loaded, Mapping) else {}


def _rows(path: Path, notes: list[str]) -> tuple[Mapping[str, Any], ...]:
    rows, damaged = [], 0
    for line in _text(path).splitlines():
        try:
            row = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, Mapping):
            rows.append(row)
        else:
            damaged += 1
    if damaged:
        notes.append(f"{damaged} line{'s' * (damaged > 1)} of log.jsonl could not be read and {'are' if damaged > 1 else 'is'} left out.")
    return tuple(rows)

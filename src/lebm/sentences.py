"""What the commands do with a text model: sentences in, sentences out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lebm.analysis.paths import between
from lebm.data.text import read_sentences
from lebm.errors import DataError
from lebm.model import LatentEBM
from lebm.words import UNKNOWN

Progress = Any


@dataclass(frozen=True)
class Sentences:
    """Sentences to work on, where each came from, and as the model reads them."""

    text: list[str]
    names: list[str]
    x: Tensor
    notes: list[str]


def take(model: LatentEBM, files: Iterable[Path], given: Sequence[str]) -> Sentences:
    """The lines of files, and sentences given as they are (or once more the name of a file)."""
    g, text, names, notes = model.text(), [], [], []
    paths = [*map(Path, files), *(Path(s) for s in given if _is_file(s))]
    for path in paths:
        read = read_sentences(path)
        text += read.sentences
        names += [f"{path.name}:{i + 1}" for i in range(len(read.sentences))]
        if read.empty:
            notes.append(f"{read.empty} empty lines of {path} were left out")
    spoken = [s for s in given if not _is_file(s)]
    text, names = text + spoken, names + [f"sentence {i + 1}" for i in range(len(spoken))]
    if not text:
        raise DataError("no sentence is given; name a text file with --input, one sentence a line, or give sentences in quotes")
    x = model.as_input(text)
    cut = sum(len(s.split()) > g.config.length for s in text)
    strange = int((x == UNKNOWN).sum())
    if cut:
        notes.append(f"{cut} of {len(text)} sentences have more than generator.length = {g.config.length} words and were cut there")
    if strange:
        notes.append(f"{strange} of {sum(len(s.split()) for s in text)} words are unknown to the model and are read as <unk>")
    return Sentences(text, names, x, notes)


def _is_file(given: str) -> bool:
    try:
        return Path(given).is_file()
    except (OSError, ValueError):  # too long for a name, or no name at all
        return False


def sample(model: LatentEBM, n: int, seed: int, steps: int | None, progress: Progress, by: str | None, **how: Any) -> list[str]:
    """n sentences: words drawn at a temperature, or the likeliest ones by a beam."""
    beam = int(how.pop("beam", 0))
    if not beam:
        return model.text().to_text(model.sample_words(n, seed, steps, progress, by, **how))
    return [s for z in model.sample_z(n, seed, steps, progress, by) for s in decode(model, z, beam)]


@torch.no_grad()
def decode(model: LatentEBM, z: Tensor, beam: int = 0) -> list[str]:
    """The likeliest words one after the other, or by a beam."""
    g = model.text()
    return g.to_text(model.decode(z) if beam <= 1 else g.decode(z.to(model.device), beam=beam))


def interpolate(model: LatentEBM, a: Tensor, b: Tensor, points: int, seed: int, steps: int | None, by: str | None, beam: int = 0) -> list[list[str]]:
    """For every pair the sentences along a path in z from the first to the second."""
    z = between(model.infer(a, seed, steps, by=by), model.infer(b, seed, steps, by=by), points)
    text = decode(model, z.flatten(0, 1), beam)
    return [text[i : i + points] for i in range(0, len(text), points)]

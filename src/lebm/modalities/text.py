"""Text: sentences from files or the command line, shown and written as lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from lebm.core.errors import DataError
from lebm.core.files import save_csv, write_atomic
from lebm.core.words import Vocabulary, from_sentences
from lebm.data import SentenceBatches
from lebm.data.text import notes_on, read_sentences
from lebm.generators.base import Generator
from lebm.generators.text import TextGenerator
from lebm.modalities.base import Ends, Given, Inputs, Modality, Target


class Text(Modality):
    noun = "sentence"
    endings: ClassVar = {"sample": (".txt",), "reconstruct": (".csv",), "interpolate": (".txt",)}
    terminal = True
    sample_options = ("temperature", "top_p", "beam")
    unvaried = SentenceBatches

    def read_inputs(self, given: Given, generator: Generator) -> Inputs:
        """The lines of files, and sentences as they are. A Path is a file; a str is one where it names one."""
        g, spoken = _text(generator), [str(one) for one in given if not _is_file(one)]
        texts: list[str] = []
        names: list[str] = []
        notes: list[str] = []
        for path in (Path(one) for one in given if _is_file(one)):
            sentences, empty = read_sentences(path)
            texts += sentences
            names += [f"{path.name}:{i + 1}" for i in range(len(sentences))]
            notes += [f"{empty} empty lines of {path} were left out"] if empty else []
        texts, names = texts + spoken, names + [f"sentence {i + 1}" for i in range(len(spoken))]
        if not texts:
            raise DataError(
                "no sentence is given; name a text file with --input, one sentence a line, or give sentences in quotes"
            )
        rows = g.as_input(texts)
        return Inputs(rows, names, texts, notes + notes_on(texts, Vocabulary(g.facts()["vocabulary"]), g.length))

    def training_rows(self, data: Any, generator: Generator) -> Tensor:
        """A list of sentences, from which the generator takes its vocabulary, or rows of word numbers."""
        if isinstance(data, list | tuple):
            if not all(isinstance(s, str) for s in data):
                raise DataError(f"the data is a {type(data).__name__}; give a list of sentences")
            g = _text(generator)
            g.set_facts({"vocabulary": from_sentences(data, g.capacity).words})
            return g.as_input(data)
        return super().training_rows(data, generator)

    def write_samples(self, path: Target, x: Tensor, generator: Generator, columns: int | None = None) -> None:
        """A sentence a line, in a file or on the terminal."""
        _write(path, self.lines(x, generator))

    def write_reconstructions(
        self, path: Target, inputs: Inputs, x_hat: Tensor, z: Tensor, log_px: Tensor, generator: Generator
    ) -> str:
        """Each sentence with its reconstruction and -log p(x|z) (.csv), or the two on the terminal."""
        texts = self.lines(x_hat, generator)
        if path is None:
            _write(None, [f"{a}\n    {b}" for a, b in zip(inputs.texts, texts, strict=True)])
        else:
            nll = [f"{-value:.9g}" for value in log_px.tolist()]
            rows = zip(inputs.names, inputs.texts, texts, nll, strict=True)
            save_csv(path, ["name", "sentence", "reconstruction", "nll"], rows)
        return f"-log p(x|z) {-float(log_px.mean()):.2f} nats a sentence"

    def write_paths(self, path: Target, ends: Ends, x: Tensor, z: Tensor, generator: Generator) -> None:
        """The sentences along each path, with an empty line between paths."""
        _write(path, "\n\n".join("\n".join(self.lines(one, generator)) for one in x).split("\n"))

    def lines(self, x: Tensor, generator: Generator) -> list[str]:
        return _text(generator).to_text(x)

    def default_metrics(self, generator: Generator, data: str, inception: bool) -> list[str]:
        return ["nll"]

    def variety(self, x: Tensor) -> float:
        """The share of different sentences."""
        return len(x.unique(dim=0)) / len(x)


def _text(generator: Generator) -> TextGenerator:
    if not isinstance(generator, TextGenerator):
        raise DataError(f"the generator is a {type(generator).__name__}; only a TextGenerator has words")
    return generator


def _is_file(given: str | Path) -> bool:
    try:
        return isinstance(given, Path) or Path(given).is_file()
    except (OSError, ValueError):  # too long for a name, or a name that cannot be
        return False


def _write(path: Target, lines: Sequence[str]) -> None:
    if path is None:
        print("\n".join(lines))
    else:
        write_atomic(path, "\n".join(lines) + "\n")

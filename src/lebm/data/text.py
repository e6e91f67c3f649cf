"""Text files, one sentence a line: PTB, SNLI, Yahoo, the user's text, and a small text that needs no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lebm.core import rng
from lebm.core.errors import DataError
from lebm.core.files import GIB, check_regular_size
from lebm.core.progress import Progress
from lebm.core.words import SPECIAL, UNKNOWN, Vocabulary, from_sentences
from lebm.data import text_demo
from lebm.data.splits import Config, Dataset, Splits, first_folder, given_path

MOST_NUMBERS = 1 << 31  # rows x longest sentence: beyond, a text is not held in memory
PARTS = ("train", "valid", "test")


@dataclass
class Lines:
    """The sentences of a file, and how many of its lines were empty."""

    sentences: list[str]
    empty: int = 0


def read_sentences(path: Path, unknown: str = SPECIAL[UNKNOWN]) -> Lines:
    """The lines of a UTF-8 file that contain words; `unknown` is what the file writes for a word that it hides."""
    check_regular_size(path, GIB)
    out = Lines([])
    with path.open("rb") as f:
        for number, raw in enumerate(f, 1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as e:
                raise DataError(
                    f"line {number} of {path} is not UTF-8 (byte {e.start + 1} is 0x{raw[e.start]:02x}); "
                    "save the file as UTF-8, or remove the line"
                ) from None
            words = line.split()
            if words:
                out.sentences.append(" ".join(SPECIAL[UNKNOWN] if w == unknown else w for w in words))
            else:
                out.empty += 1
    return out


def splits(config: Config, parts: Sequence[Sequence[str]], source: str, empty: int = 0) -> Splits:
    """Training, validation and test sentences as numbers, by the vocabulary of the training split.

    What is cut or unknown is counted in `notes`.
    """
    train, validation, test = parts
    if not train or not test:
        missing = "test" if train else "training"
        raise DataError(f"{source} holds no {missing} sentences; give a text with a sentence on every line")
    vocabulary = from_sentences(train, config.generator.vocabulary)
    length = config.generator.length
    notes = [f"{empty} empty lines were left out"] if empty else []
    rows: list[Tensor | None] = []
    for name, lines in zip(("training", "validation", "test"), (train, validation, test), strict=True):
        longest = min(length, max((len(s.split()) for s in lines), default=0)) + 1
        if len(lines) * longest > MOST_NUMBERS:
            raise DataError(
                f"{source} holds {len(lines)} sentences of up to {longest - 1} words, more than fit; "
                "lower generator.length"
            )
        rows.append(vocabulary.rows(lines, length) if lines else None)
        notes += _notes(name, lines, vocabulary, length)
    assert rows[0] is not None and rows[2] is not None
    facts = {"vocabulary": vocabulary.words}
    return Splits(rows[0], rows[2], source=source, validation=rows[1], facts=facts, notes=tuple(notes))


def _notes(name: str, lines: Sequence[str], vocabulary: Vocabulary, length: int) -> list[str]:
    notes = []
    words = [s.split() for s in lines]
    cut = sum(len(w) > length for w in words)
    if cut:
        notes.append(
            f"{cut} of {len(lines)} {name} sentences have more than generator.length = {length} words "
            "and were cut there"
        )
    unknown = sum(w != SPECIAL[UNKNOWN] and vocabulary.index.get(w, UNKNOWN) == UNKNOWN for s in words for w in s)
    if unknown:
        notes.append(
            f"{unknown / sum(map(len, words)):.2%} of the {name} words are not in the vocabulary of "
            f"{len(vocabulary)} and are read as {SPECIAL[UNKNOWN]}"
        )
    return notes


def _read_parts(config: Config, files: Sequence[Path], source: str, unknown: str = SPECIAL[UNKNOWN]) -> Splits:
    parts = [read_sentences(f, unknown) for f in files]
    return splits(config, [p.sentences for p in parts], source, sum(p.empty for p in parts))


# --- the paper's sets: NAME/NAME.{train,valid,test}.txt ---------------------------------------------------------------


def _dataset(name: str, description: str, licence: str, unknown: str = SPECIAL[UNKNOWN]) -> Dataset:
    files = [f"{name}.{part}.txt" for part in PARTS]

    def find(root: Path | None) -> Path | None:
        return first_folder(root, (name,), lambda folder: all((folder / f).is_file() for f in files))

    def load(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
        folder = dataset.place(root)
        return _read_parts(config, [folder / f for f in files], str(folder), unknown)

    how = f"put {', '.join(files)} (one sentence a line, words apart by spaces) into DATA/{name}"
    dataset = Dataset(name, load, find, how, licence, description, kind="text")
    return dataset


PTB = _dataset(
    "ptb",
    "Penn Treebank, 42,068 training, 3,370 validation and 3,761 test sentences in Mikolov's preparation",
    "Linguistic Data Consortium; the text is not redistributed here",
)
SNLI = _dataset(
    "snli",
    "sentences of the SNLI corpus, one a line: the number of training sentences is stated with every result",
    "CC BY-SA 4.0 (Stanford NLI)",
)
YAHOO = _dataset(
    "yahoo",
    "Yahoo answers of at most 200 words, one a line",
    "Yahoo! Answers; the text is not redistributed here",
    unknown="_UNK",
)


# --- the user's text, and the small one -------------------------------------------------------------------------------


def load_text(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """A folder with train.txt, valid.txt and test.txt, or a file that is split here.

    Of a file, data.test_fraction of the sentences are the test split, and as many the validation split.
    """
    path = given_path(
        config, root, "a text file (one sentence a line) or a folder with train.txt, valid.txt and test.txt"
    )
    if path.is_dir():
        files = [path / f"{part}.txt" for part in PARTS]
        for f in files:
            if not f.is_file():
                raise DataError(
                    f"the folder {path} has no {f.name}; it needs train.txt, valid.txt and test.txt, "
                    "or name one file instead"
                )
        return _read_parts(config, files, str(path))
    lines = read_sentences(path)
    n = len(lines.sentences)
    if n < 3:
        raise DataError(f"{path} holds {n} sentences; training, validation and testing need at least three")
    cut = min((n - 1) // 2, max(1, round(n * config.data.test_fraction)))
    order = torch.randperm(n, generator=rng.stream(0, "split")).tolist()
    parts = [[lines.sentences[i] for i in order[a:b]] for a, b in ((2 * cut, n), (cut, 2 * cut), (0, cut))]
    return splits(config, parts, str(path), lines.empty)


def load_demo(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """The sentences of a small grammar, always the same."""
    lines = text_demo.sentences()
    n = len(lines) // 10
    return splits(config, [lines[2 * n :], lines[n : 2 * n], lines[:n]], "lebm.data.text_demo")


TEXT = Dataset(
    "text",
    load_text,
    lambda root: None,  # data.path says where it is
    how="Name your own text with --set data.path=PATH: a UTF-8 file with a sentence on every line, "
    "words apart by spaces.",
    licence="yours",
    description="your own text; data.test_fraction of its sentences are the test split, as many the validation split",
    kind="text",
)
TEXT_DEMO = Dataset(
    "text-demo",
    load_demo,
    lambda root: Path(__file__).parent,
    how="Nothing to fetch: a small grammar writes the sentences.",
    licence="public domain (CC0)",
    description="sentences about a village by the sea: 2,400 training, 300 validation, 300 test",
    kind="text",
)
DATASETS = (PTB, SNLI, YAHOO, TEXT, TEXT_DEMO)

"""Text files, one sentence a line: PTB, SNLI, Yahoo, your own, and a small text that needs no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lebm import rng
from lebm.config import Config, TextGenerator
from lebm.data.demo import sentences as demo_sentences
from lebm.data.splits import GIB, Dataset, Progress, Splits, check_size, first_folder, found
from lebm.errors import ConfigError, DataError
from lebm.words import OWN, UNKNOWN, from_sentences

MOST_NUMBERS = 1 << 31  # rows x longest sentence: beyond, a text is not held in memory
PARTS = ("train", "valid", "test")


@dataclass
class Read:
    """The sentences of a file, and what was not taken as it stands there."""

    sentences: list[str]
    empty: int = 0


def read_sentences(path: Path, unknown: str = OWN[UNKNOWN]) -> Read:
    """The lines of a UTF-8 file with words in them; `unknown` is what the file writes for a word it does not tell."""
    check_size(path, GIB)
    out = Read([])
    with path.open("rb") as f:
        for number, raw in enumerate(f, 1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as e:
                raise DataError(
                    f"line {number} of {path} is not UTF-8 (byte {e.start + 1} is 0x{raw[e.start]:02x}); save the file as UTF-8, or remove the line"
                ) from None
            words = line.split()
            if not words:
                out.empty += 1
            else:
                out.sentences.append(" ".join(OWN[UNKNOWN] if w == unknown else w for w in words))
    return out


def splits(config: Config, train: Sequence[str], valid: Sequence[str], test: Sequence[str], source: str, empty: int = 0) -> Splits:
    """Sentences as numbers, by the vocabulary of the training split. What is cut or left out is counted in `notes`."""
    g = section(config)
    if not train or not test:
        raise DataError(f"{source} holds no {'training' if not train else 'test'} sentences; give a text with a sentence on every line")
    vocabulary = from_sentences(train, g.vocabulary)
    parts = {"training": train, "validation": valid, "test": test}
    notes = [f"{empty} empty lines were left out"] if empty else []
    rows = {}
    for name, lines in parts.items():
        longest = min(g.length, max((len(s.split()) for s in lines), default=0)) + 1
        if len(lines) * longest > MOST_NUMBERS:
            raise DataError(f"{source} holds {len(lines)} sentences of up to {longest - 1} words, more than fit; lower generator.length")
        rows[name] = vocabulary.rows(lines, g.length) if lines else None
        cut = sum(len(s.split()) > g.length for s in lines)
        if cut:
            notes.append(f"{cut} of {len(lines)} {name} sentences have more than generator.length = {g.length} words and were cut there")
        words = sum(len(s.split()) for s in lines)
        strange = sum(w != OWN[UNKNOWN] and vocabulary.index.get(w, UNKNOWN) == UNKNOWN for s in lines for w in s.split())
        if strange:
            notes.append(f"{strange / words:.2%} of the {name} words are not in the vocabulary of {len(vocabulary)} and are read as {OWN[UNKNOWN]}")
    assert rows["training"] is not None and rows["test"] is not None
    return Splits(
        rows["training"], rows["test"], source=source, validation=rows["validation"], facts={"vocabulary": vocabulary.words}, notes=tuple(notes)
    )


def section(config: Config) -> TextGenerator:
    if not isinstance(config.generator, TextGenerator):
        raise ConfigError(f"generator.kind is {config.generator.kind}; text needs generator.kind text")
    return config.generator


# --- the paper's sets: NAME/NAME.{train,valid,test}.txt ---------------------------------------------------------------


def _dataset(name: str, description: str, licence: str, unknown: str = OWN[UNKNOWN]) -> Dataset:
    files = [f"{name}.{part}.txt" for part in PARTS]
    how = f"put {', '.join(files)} (one sentence a line, words apart by spaces) into DATA/{name}"

    def find(root: Path | None) -> Path | None:
        return first_folder(root, (name,), lambda folder: all((folder / f).is_file() for f in files))

    def load(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
        folder = found(name, how, find(root), root)
        return _read_parts(config, [folder / f for f in files], str(folder), unknown)

    return Dataset(name, load, find, how, licence, description, kind="text")


def _read_parts(config: Config, files: list[Path], source: str, unknown: str = OWN[UNKNOWN]) -> Splits:
    train, valid, test = (read_sentences(f, unknown) for f in files)
    return splits(config, train.sentences, valid.sentences, test.sentences, source, train.empty + valid.empty + test.empty)


PTB = _dataset(
    "ptb",
    "Penn Treebank, 42,068 training, 3,370 validation and 3,761 test sentences in Mikolov's preparation",
    "Linguistic Data Consortium; the text is not redistributed here",
)
SNLI = _dataset(
    "snli", "sentences of the SNLI corpus, one a line: the number of training sentences is stated with every result", "CC BY-SA 4.0 (Stanford NLI)"
)
YAHOO = _dataset("yahoo", "Yahoo answers of at most 200 words, one a line", "Yahoo! Answers; the text is not redistributed here", unknown="_UNK")


# --- your own, and the small one --------------------------------------------------------------------------------------


def load_text(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """A file, of which data.test_fraction is the test split and as much the validation split; or a folder with train.txt, valid.txt, test.txt."""
    given = config.data.path
    if not given:
        raise DataError("data.path is not set; name a text file (one sentence a line) or a folder with train.txt, valid.txt and test.txt")
    path = Path(given).expanduser()
    if not path.exists() and root is not None and (root / path).exists():
        path = root / path
    if not path.exists():
        raise DataError(f"data.path is {given}, which does not exist; name a text file, one sentence a line")
    if path.is_dir():
        files = [path / f"{part}.txt" for part in PARTS]
        for f in files:
            if not f.is_file():
                raise DataError(f"the folder {path} has no {f.name}; it needs train.txt, valid.txt and test.txt, or name one file instead")
        return _read_parts(config, files, str(path))
    read = read_sentences(path)
    n = len(read.sentences)
    if n < 3:
        raise DataError(f"{path} holds {n} sentences; training, validation and testing need at least three")
    cut = min((n - 1) // 2, max(1, round(n * config.data.test_fraction)))
    order = torch.randperm(n, generator=rng.stream(0, "split")).tolist()
    part = lambda a, b: [read.sentences[i] for i in order[a:b]]  # noqa: E731
    return splits(config, part(2 * cut, n), part(cut, 2 * cut), part(0, cut), str(path), read.empty)


def load_demo(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    lines = demo_sentences()
    n = len(lines) // 10
    return splits(config, lines[2 * n :], lines[n : 2 * n], lines[:n], "lebm.data.demo")


TEXT = Dataset(
    "text",
    load_text,
    lambda root: None,  # data.path says where
    how="Name your own text with --set data.path=PATH: a UTF-8 file with a sentence on every line, words apart by spaces.",
    licence="yours",
    description="your own text; data.test_fraction of its sentences are the test split, and as many the validation split",
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

"""Text files, one sentence a line: PTB, SNLI, Yahoo, the user's text, and a small text that needs no files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from lebm.core import rng
from lebm.core.errors import DataError
from lebm.core.files import GIB, check_regular_size
from lebm.core.progress import Progress
from lebm.core.words import SPECIAL, UNKNOWN, Vocabulary, from_sentences
from lebm.data import text_demo
from lebm.data.splits import Config, Dataset, Splits, built_in, described, given_path, in_folder, nowhere

MOST_NUMBERS = 1 << 31  # rows x longest sentence: beyond, a text is not held in memory
PARTS = ("train", "valid", "test")


def read_sentences(path: Path, unknown: str = SPECIAL[UNKNOWN]) -> tuple[list[str], int]:
    """The lines of a UTF-8 file that contain words, and how many contain none. It writes `unknown` for <unk>."""
    check_regular_size(path, GIB)
    sentences, empty = [], 0
    with path.open("rb") as f:
        for number, raw in enumerate(f, 1):
            try:
                words = raw.decode().removeprefix("\ufeff").split()
            except UnicodeDecodeError as e:
                raise DataError(
                    f"line {number} of {path} is not UTF-8 (byte {e.start + 1} is 0x{raw[e.start]:02x}); "
                    "save the file as UTF-8, or remove the line"
                ) from None
            if words:
                sentences.append(" ".join(SPECIAL[UNKNOWN] if w == unknown else w for w in words))
            else:
                empty += 1
    return sentences, empty


def splits(config: Config, parts: Sequence[Sequence[str]], source: str, empty: int = 0) -> Splits:
    """Training, validation and test sentences as numbers, by the vocabulary of the training split.

    What is cut or unknown is counted in `notes`.
    """
    if not parts[0] or not parts[2]:
        missing = "test" if parts[0] else "training"
        raise DataError(f"{source} holds no {missing} sentences; give a text with a sentence on every line")
    vocabulary, length = from_sentences(parts[0], config.generator.vocabulary), config.generator.length
    notes = [f"{empty} empty lines were left out"] if empty else []
    for name, lines in zip(("training ", "validation ", "test "), parts, strict=True):
        longest = min(length, max((len(s.split()) for s in lines), default=0)) + 1
        if len(lines) * longest > MOST_NUMBERS:
            raise DataError(
                f"{source} holds {len(lines)} sentences of up to {longest - 1} words, more than fit; "
                "lower generator.length"
            )
        notes += notes_on(lines, vocabulary, length, name)
    train, validation, test = (vocabulary.rows(lines, length) for lines in parts)
    facts = {"vocabulary": vocabulary.words}
    held_back = validation if len(validation) else None
    return Splits(train, test, source=source, validation=held_back, facts=facts, notes=tuple(notes))


def notes_on(lines: Sequence[str], vocabulary: Vocabulary, length: int, name: str = "") -> list[str]:
    """What a person should know of sentences that become numbers: how many are cut, and how many words are unknown."""
    notes, words = [], [s.split() for s in lines]
    cut = sum(len(w) > length for w in words)
    if cut:
        notes.append(
            f"{cut} of {len(lines)} {name}sentences have more than generator.length = {length} words and were cut there"
        )
    unknown = sum(w != SPECIAL[UNKNOWN] and vocabulary.index.get(w, UNKNOWN) == UNKNOWN for s in words for w in s)
    if unknown:
        total, known = (
            sum(map(len, words)),
            f"in the vocabulary of {len(vocabulary)} and are read as {SPECIAL[UNKNOWN]}",
        )
        notes.append(f"{unknown} of {total} {name}words ({unknown / total:.2%}) are not {known}")
    return notes


def _read_folder(config: Config, folder: Path, files: Sequence[str], unknown: str = SPECIAL[UNKNOWN]) -> Splits:
    parts, empty = zip(*(read_sentences(folder / name, unknown) for name in files), strict=True)
    return splits(config, parts, str(folder), sum(empty))


def _official(name: str, unknown: str = SPECIAL[UNKNOWN]) -> Dataset:
    """A set of the paper: NAME/NAME.train.txt, NAME.valid.txt and NAME.test.txt under the data folder."""
    files = [f"{name}.{part}.txt" for part in PARTS]

    def load(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
        return _read_folder(config, dataset.place(root), files, unknown)

    dataset = described(name, load, in_folder(name, files=files))
    return dataset


# --- the user's text, and the small one -------------------------------------------------------------------------------


def load_text(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """A folder with train.txt, valid.txt and test.txt, or a file that is split here.

    Of a file, data.test_fraction of the sentences are the test split, and as many the validation split.
    """
    what = "a text file (one sentence a line) or a folder with train.txt, valid.txt and test.txt"
    path, files = given_path(config, root, what), [f"{part}.txt" for part in PARTS]
    if path.is_dir():
        missing = [name for name in files if not (path / name).is_file()]
        if missing:
            raise DataError(f"the folder {path} has no {missing[0]}; give {what}")
        return _read_folder(config, path, files)
    lines, empty = read_sentences(path)
    n = len(lines)
    if n < 3:
        raise DataError(f"{path} holds {n} sentences; training, validation and testing need at least three")
    cut = min((n - 1) // 2, max(1, round(n * config.data.test_fraction)))
    order = torch.randperm(n, generator=rng.stream(0, "split")).tolist()
    parts = [[lines[i] for i in order[a:b]] for a, b in ((2 * cut, n), (cut, 2 * cut), (0, cut))]
    return splits(config, parts, str(path), empty)


def load_demo(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """The sentences of a small grammar, always the same."""
    lines = text_demo.sentences()
    n = len(lines) // 10
    return splits(config, [lines[2 * n :], lines[n : 2 * n], lines[:n]], "lebm.data.text_demo")


DATASETS = (
    _official("ptb"),
    _official("snli"),
    _official("yahoo", unknown="_UNK"),
    described("text", load_text, nowhere),
    described("text-demo", load_demo, built_in),
)

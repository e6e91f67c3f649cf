"""A vocabulary: words to numbers and back. A leaf, shared by data, generators and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lebm.errors import DataError

PAD, START, END, UNKNOWN = 0, 1, 2, 3
OWN = ("<pad>", "<s>", "</s>", "<unk>")
LONGEST = 100  # letters of a word; a longer one is read as <unk>


class Vocabulary:
    """Our own four words, then those of a text, the frequent first.

    A sentence is a row of numbers: its words, then </s>, then padding. <s> is never stored: it is what a model reads first.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.index = {w: i for i, w in enumerate(self.words)}
        for mark in OWN[:3]:  # in somebody's text they are no words
            self.index[mark] = UNKNOWN

    def __len__(self) -> int:
        return len(self.words)

    def numbers(self, sentence: str, length: int) -> list[int]:
        """The words' numbers and </s>; words beyond `length` are left out."""
        return [*(self.index.get(w, UNKNOWN) for w in sentence.split()[:length]), END]

    def rows(self, sentences: Sequence[str], length: int) -> Tensor:
        """int32 (n, longest), padded."""
        numbers = [self.numbers(s, length) for s in sentences]
        out = np.full((len(numbers), max(map(len, numbers), default=1)), PAD, dtype=np.int32)
        for row, n in zip(out, numbers, strict=True):
            row[: len(n)] = n
        return torch.from_numpy(out)

    def sentence(self, row: Iterable[int]) -> str:
        """The words up to </s>. What no terminal should see is shown as a question mark."""
        out = []
        for i in row:
            if i in (END, PAD):
                break
            out.append("".join(c if c.isprintable() else "?" for c in self.words[i]))
        return " ".join(out)

    def sentences(self, rows: Tensor) -> list[str]:
        return [self.sentence(row) for row in rows.tolist()]


def log_probs(logits: Callable[[Tensor], Tensor], h: Tensor, x: Tensor) -> Tensor:
    """log p of every row's words, padding aside, from states h (n, T, d) and the map from states to logits of the words END, END + 1, ..."""
    at = x != PAD
    if packs(x):
        found = F.cross_entropy(logits(h[at]), x[at] - END, reduction="none")
        return -torch.zeros(x.shape, dtype=found.dtype).masked_scatter(at, found).sum(1)
    found = F.cross_entropy(logits(h).flatten(0, 1), x.flatten() - END, ignore_index=PAD - END, reduction="none")
    return -found.view(x.shape).sum(1)


def packs(x: Tensor) -> bool:
    """Whether words are picked out before their logits are computed: it saves arithmetic on a CPU, and waits on a GPU."""
    return x.device.type == "cpu"


def from_sentences(sentences: Iterable[str], size: int) -> Vocabulary:
    """The `size` most frequent words (our own four among them), ties in alphabetical order.

    In a text that holds no <unk> of its own, words that occur once are left out: they teach a model what <unk> is like.
    """
    counts: Counter[str] = Counter(w for s in sentences for w in s.split())
    least = 1 if OWN[UNKNOWN] in counts else 2
    known = [(-n, w) for w, n in counts.items() if w not in OWN and n >= least and len(w) <= LONGEST]
    return Vocabulary([*OWN, *(w for _, w in sorted(known)[: size - len(OWN)])])


def checked(words: Any, size: int) -> Vocabulary:
    """A vocabulary that came out of a file."""
    fine = isinstance(words, list) and len(OWN) <= len(words) <= size and tuple(words[: len(OWN)]) == OWN
    if not (fine and all(isinstance(w, str) and 0 < len(w) <= LONGEST and len(w.split()) == 1 for w in words) and len(set(words)) == len(words)):
        raise DataError(f"its vocabulary is no list of at most {size} different words that begins with {', '.join(OWN)}")
    return Vocabulary(words)


def lengths(rows: Tensor) -> Tensor:
    """Words of every row, </s> included."""
    return (rows != PAD).sum(1)

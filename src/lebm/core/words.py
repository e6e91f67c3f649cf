"""A vocabulary: words to numbers and back, shared by data, generators and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lebm.core.errors import DataError

PAD, START, END, UNKNOWN = 0, 1, 2, 3
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
LONGEST = 100  # letters of a word; a longer one is read as <unk>


class Vocabulary:
    """The four special words, then those of a text, the most frequent first.

    A sentence is a row of numbers: its words, then </s>, then padding. <s> is never stored: a model reads it first.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.index = {w: i for i, w in enumerate(self.words)}
        for mark in SPECIAL[:3]:  # where a text contains these, they are not words
            self.index[mark] = UNKNOWN

    def __len__(self) -> int:
        return len(self.words)

    def numbers(self, sentence: str, length: int) -> list[int]:
        """The numbers of the words, then of </s>; words beyond `length` are left out."""
        return [*(self.index.get(w, UNKNOWN) for w in sentence.split()[:length]), END]

    def rows(self, sentences: Sequence[str], length: int) -> Tensor:
        """The sentences as int32 (n, longest), padded."""
        numbers = [self.numbers(s, length) for s in sentences]
        out = np.full((len(numbers), max(map(len, numbers), default=1)), PAD, dtype=np.int32)
        for row, n in zip(out, numbers, strict=True):
            row[: len(n)] = n
        return torch.from_numpy(out)

    def sentence(self, row: Iterable[int]) -> str:
        """The words up to </s>. Characters that no terminal should show become question marks."""
        out = []
        for i in row:
            if i in (END, PAD):
                break
            out.append("".join(c if c.isprintable() else "?" for c in self.words[i]))
        return " ".join(out)

    def sentences(self, rows: Tensor) -> list[str]:
        """Every row (n, length) as a sentence."""
        return [self.sentence(row) for row in rows.tolist()]


def log_probs(logits: Callable[[Tensor], Tensor], h: Tensor, x: Tensor) -> Tensor:
    """log p of the words of every row, without the padding: (n,).

    h: (n, T, d), the states; `logits` maps states to logits of the words END, END + 1, ...
    """
    at = x != PAD
    if packs(x):
        losses = F.cross_entropy(logits(h[at]), x[at] - END, reduction="none")
        return -torch.zeros(x.shape, dtype=losses.dtype).masked_scatter(at, losses).sum(1)
    losses = F.cross_entropy(logits(h).flatten(0, 1), x.flatten() - END, ignore_index=PAD - END, reduction="none")
    return -losses.view(x.shape).sum(1)


def packs(x: Tensor) -> bool:
    """Whether words are selected before their logits are computed: it saves arithmetic on a CPU, and waits on a GPU."""
    return x.device.type == "cpu"


def from_sentences(sentences: Iterable[str], size: int) -> Vocabulary:
    """The `size` most frequent words (the four special ones among them), ties in alphabetical order.

    In a text that contains no <unk>, words that occur once are left out: from them a model learns <unk>.
    """
    counts: Counter[str] = Counter(w for s in sentences for w in s.split())
    least = 1 if SPECIAL[UNKNOWN] in counts else 2
    known = [(-n, w) for w, n in counts.items() if w not in SPECIAL and n >= least and len(w) <= LONGEST]
    return Vocabulary([*SPECIAL, *(w for _, w in sorted(known)[: size - len(SPECIAL)])])


def checked(words: Any, size: int) -> Vocabulary:
    """A vocabulary that was read from a file, refused where it is malformed."""
    start = len(SPECIAL)
    fine = isinstance(words, list) and start <= len(words) <= size and tuple(words[:start]) == SPECIAL
    fine = fine and all(isinstance(w, str) and 0 < len(w) <= LONGEST and len(w.split()) == 1 for w in words)
    if not fine or len(set(words)) != len(words):
        raise DataError(
            f"its vocabulary is no list of at most {size} different words that begins with {', '.join(SPECIAL)}"
        )
    return Vocabulary(words)


def lengths(rows: Tensor) -> Tensor:
    """The number of words in every row, </s> included: (n,)."""
    return (rows != PAD).sum(1)

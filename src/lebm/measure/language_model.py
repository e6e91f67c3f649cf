"""A language model of sentences, the judge behind forward and reverse perplexity: a one-layer LSTM with no z.

It learns from sentences one by one, each from <s> and an empty state, as rows of numbers (lebm.core.words). The rate
falls to a quarter whenever an epoch does not improve the perplexity of validation sentences, and the best weights are
used in the end.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lebm.core.progress import Progress, ignore
from lebm.core.words import END, START, lengths, log_probs

SCORED = 1 << 26  # numbers in a table of words x vocabulary at once


@dataclass(frozen=True)
class Recipe:
    """How a language model learns; written into every result that one has judged."""

    embedding: int = 512
    hidden: int = 512
    dropout: float = 0.5  # on embeddings and states
    rate: float = 1e-3  # Adam's
    quarter: float = 0.25  # the rate's factor after an epoch without improvement
    least: float = 1e-5  # a rate below it ends the learning
    epochs: int = 40  # at most
    unvalidated: int = 8  # epochs where there is no validation text
    batch: int = 32
    clip: float = 5.0


def perplexity(log_probs: Tensor, words: Tensor) -> float:
    """exp of minus the mean log probability a word, from the log probability of every sentence and its number of words,
    </s> included: how many words a model hesitates between, on average.
    """
    total, n = float(log_probs.double().sum()), int(words.sum())
    if n < 1:
        raise ValueError("a perplexity needs at least one word")
    return math.exp(min(-total / n, 700.0))


class LanguageModel(nn.Module):
    """p(x) = prod over t of p(x_t | x_<t)."""

    def __init__(self, size: int, recipe: Recipe) -> None:
        super().__init__()
        self.size, self.recipe = size, recipe
        self.embed = nn.Embedding(size, recipe.embedding)
        self.lstm = nn.LSTM(recipe.embedding, recipe.hidden, batch_first=True)
        self.out = nn.Linear(recipe.hidden, size)

    def set_weights(self, rng: torch.Generator) -> None:
        """U(-0.1, 0.1), from a stream of its own."""
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.rand(p.shape, generator=rng) * 0.2 - 0.1)

    def log_prob(self, x: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """log p(x) in nats, a number a row; with a stream, under dropout."""
        x = x.long()
        e = self._drop(self.embed(F.pad(x[:, :-1], (1, 0), value=START)), rng)
        h = self._drop(self.lstm(e)[0], rng)
        words = partial(F.linear, weight=self.out.weight[END:], bias=self.out.bias[END:])  # <pad>, <s> never come
        return log_probs(words, h, x)

    def _drop(self, h: Tensor, rng: torch.Generator | None) -> Tensor:
        p = self.recipe.dropout
        return h if rng is None or not p else h * (torch.rand(h.shape, generator=rng, device=h.device) >= p) / (1 - p)

    @torch.no_grad()
    def perplexity(self, rows: Tensor) -> float:
        """Of sentences, </s> counted."""
        device, n = self.out.weight.device, lengths(rows)
        order = n.argsort(stable=True)  # those of like length together: little padding
        total = []
        for part in _pieces(n[order], self.size):
            at = order[part]
            total.append(self.log_prob(rows[at][:, : int(n[at].max())].to(device)).cpu())
        return perplexity(torch.cat(total), n)


def fit(
    rows: Tensor,
    validation: Tensor | None,
    size: int,
    recipe: Recipe,
    seed: int,
    device: torch.device | str,
    progress: Progress = ignore,
) -> tuple[LanguageModel, list[float]]:
    """A model of `rows`, and the perplexity of the validation sentences after every epoch."""
    model = LanguageModel(size, recipe)
    model.set_weights(torch.Generator().manual_seed(seed))
    optimizer = torch.optim.Adam(model.to(device).parameters(), lr=recipe.rate)
    masks = torch.Generator(device=device).manual_seed(seed + 1)
    order = torch.Generator().manual_seed(seed + 2)
    (group,) = optimizer.param_groups
    best = copy.deepcopy(model.state_dict())
    history: list[float] = []
    epochs = recipe.unvalidated if validation is None else recipe.epochs
    for epoch in range(epochs):
        for x in _batches(rows, recipe.batch, order):
            optimizer.zero_grad(set_to_none=True)
            (-model.log_prob(x.to(device), masks).mean()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimizer.step()
        progress(epoch + 1, epochs)
        if validation is None:
            continue
        history.append(model.perplexity(validation))
        if history[-1] < min(history[:-1], default=math.inf):
            best = copy.deepcopy(model.state_dict())
            continue
        model.load_state_dict(best)
        group["lr"] *= recipe.quarter
        if group["lr"] < recipe.least:
            break
    if validation is not None:
        model.load_state_dict(best)
    return model.eval().requires_grad_(False), history


def _batches(rows: Tensor, batch: int, rng: torch.Generator) -> Iterator[Tensor]:
    """All rows once, sentences of like length together, batches in random order, common padding cut off."""
    n = lengths(rows)
    order = torch.randperm(len(rows), generator=rng)
    parts = [b for pool in order.split(50 * batch) for b in pool[n[pool].argsort(stable=True)].split(batch)]
    for i in torch.randperm(len(parts), generator=rng).tolist():
        yield rows[parts[i]][:, : int(n[parts[i]].max())]


def _pieces(sorted_lengths: Tensor, size: int) -> Iterator[slice]:
    """Slices whose tables of words x vocabulary fit into memory."""
    start = 0
    while start < len(sorted_lengths):
        longest = int(sorted_lengths[min(start + 255, len(sorted_lengths) - 1)])
        stop = start + max(1, min(256, SCORED // (longest * size)))
        yield slice(start, stop)
        start = stop

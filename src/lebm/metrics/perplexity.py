"""Perplexity: how many words a model hesitates between, on average."""

from __future__ import annotations

import math

from torch import Tensor


def perplexity(log_probs: Tensor, words: Tensor) -> float:
    """exp of minus the mean log probability a word, from the log probability of every sentence and its number of words, </s> included."""
    total, n = float(log_probs.double().sum()), int(words.sum())
    if n < 1:
        raise ValueError("a perplexity needs at least one word")
    return math.exp(min(-total / n, 700.0))

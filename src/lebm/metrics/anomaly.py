"""How well scores part anomalies from normal rows. `anomalous` is true for an anomaly; a higher score means more anomalous."""

from __future__ import annotations

from typing import Any

import numpy as np


def precision_recall(scores: Any, anomalous: Any) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall at every threshold, from the highest score down; rows of one score enter together."""
    scores, anomalous = _checked(scores, anomalous)
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(anomalous[order])
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # the end of every run of equal scores
    return found[last] / (last + 1), found[last] / found[-1]


def auprc(scores: Any, anomalous: Any) -> float:
    """Area under the precision-recall curve as a sum of steps (average precision), the anomalies being the positive class."""
    precision, recall = precision_recall(scores, anomalous)
    return float(np.sum(precision * np.diff(recall, prepend=0.0)))


def auroc(scores: Any, anomalous: Any) -> float:
    """The chance that an anomaly scores higher than a normal row; equal scores count half."""
    scores, anomalous = _checked(scores, anomalous)
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # mean rank of a tie, from 1
    n = int(anomalous.sum())
    return float((ranks[anomalous].sum() - n * (n + 1) / 2) / (n * (len(scores) - n)))


def chance(anomalous: Any) -> float:
    """The AUPRC of scores that know nothing: the share of anomalies."""
    return float(np.asarray(anomalous, bool).mean())


def smallest(anomalous: Any) -> float:
    """The AUPRC when every anomaly scores below every normal row: no ranking gives less."""
    anomalous = np.asarray(anomalous, bool)
    k, n = int(anomalous.sum()), len(anomalous)
    i = np.arange(1, k + 1)
    return float(np.mean(i / (n - k + i)))


def _checked(scores: Any, anomalous: Any) -> tuple[np.ndarray, np.ndarray]:
    scores, anomalous = np.asarray(scores, np.float64), np.asarray(anomalous, bool)
    if scores.shape != anomalous.shape or scores.ndim != 1:
        raise ValueError(f"{scores.shape} scores and {anomalous.shape} labels; give one of each for every row")
    if not np.isfinite(scores).all():
        raise ValueError("a score is NaN or infinite")
    if anomalous.all() or not anomalous.any():
        raise ValueError("there must be anomalies and normal rows")
    return scores, anomalous

"""How well scores separate anomalies from normal rows. `anomalous` is true for an anomaly; a higher score is more
anomalous.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def auprc(scores: Any, anomalous: Any) -> float:
    """Area under the precision-recall curve as a sum of steps (average precision), the anomalies being the positive
    class.
    """
    from sklearn.metrics import average_precision_score

    scores, anomalous = checked(scores, anomalous)
    return float(average_precision_score(anomalous, scores))


def auroc(scores: Any, anomalous: Any) -> float:
    """The chance that an anomaly scores higher than a normal row; equal scores count half."""
    from sklearn.metrics import roc_auc_score

    scores, anomalous = checked(scores, anomalous)
    return float(roc_auc_score(anomalous, scores))


def precision_recall(scores: Any, anomalous: Any) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall at every threshold, from the highest score down; rows of one score enter together."""
    from sklearn.metrics import precision_recall_curve

    scores, anomalous = checked(scores, anomalous)
    precision, recall, _ = precision_recall_curve(anomalous, scores)
    return precision[-2::-1], recall[-2::-1]  # without the point at recall 0 that scikit-learn adds


def chance(anomalous: Any) -> float:
    """The AUPRC of scores that know nothing: the share of anomalies."""
    return float(np.asarray(anomalous, bool).mean())


def smallest(anomalous: Any) -> float:
    """The AUPRC when every anomaly scores below every normal row: no ranking gives less."""
    anomalous = np.asarray(anomalous, bool)
    k, n = int(anomalous.sum()), len(anomalous)
    i = np.arange(1, k + 1)
    return float(np.mean(i / (n - k + i)))


def checked(scores: Any, anomalous: Any) -> tuple[np.ndarray, np.ndarray]:
    scores, anomalous = np.asarray(scores, np.float64), np.asarray(anomalous, bool)
    if scores.shape != anomalous.shape or scores.ndim != 1:
        raise ValueError(f"{scores.shape} scores and {anomalous.shape} labels; give one of each for every row")
    if not np.isfinite(scores).all():
        raise ValueError("a score is NaN or infinite")
    if anomalous.all() or not anomalous.any():
        raise ValueError("there must be anomalies and normal rows")
    return scores, anomalous

"""AUPRC and AUROC against counting by hand and against scikit-learn's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from lebm.measure.auprc import auprc, auroc, chance, precision_recall, smallest


def test_by_hand():
    scores, anomalous = [4, 3, 2, 1], [True, False, True, False]
    precision, recall = precision_recall(scores, anomalous)
    assert precision.tolist() == [1, 1 / 2, 2 / 3, 2 / 4] and recall.tolist() == [0.5, 0.5, 1, 1]
    assert auprc(scores, anomalous) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert auroc(scores, anomalous) == 3 / 4


def test_rows_of_one_score_enter_together():
    assert auprc(np.zeros(10), [True] * 3 + [False] * 7) == pytest.approx(0.3) == chance([True] * 3 + [False] * 7)
    assert auroc(np.zeros(10), [True] * 3 + [False] * 7) == 0.5


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=60))
def test_as_scikit_learn_counts(rows):
    scores, anomalous = np.array([s for s, _ in rows], float), np.array([a for _, a in rows])
    if anomalous.all() or not anomalous.any():
        return
    assert auprc(scores, anomalous) == pytest.approx(average_precision_score(anomalous, scores))
    assert auroc(scores, anomalous) == pytest.approx(roc_auc_score(anomalous, scores))
    assert smallest(anomalous) - 1e-12 <= auprc(scores, anomalous) <= 1


def test_the_bounds_of_the_paper_s_composition():
    """MNIST without 1: 12,425 normal test rows and 7,877 ones."""
    anomalous = np.arange(12425 + 7877) < 7877
    assert chance(anomalous) == pytest.approx(0.388, abs=5e-4) and smallest(anomalous) == pytest.approx(0.225, abs=1e-3)
    assert auprc(anomalous.astype(float), anomalous) == 1
    assert auprc(-anomalous.astype(float), anomalous) >= smallest(anomalous)


@pytest.mark.parametrize(
    ("scores", "anomalous"),
    [([1, 2], [True, True]), ([1, 2], [False, False]), ([1, np.nan], [True, False]), ([1, 2, 3], [True, False])],
)
def test_what_cannot_be_measured_is_refused(scores, anomalous):
    with pytest.raises(ValueError):
        auprc(scores, anomalous)

"""One class as the anomaly: the split of the paper's MNIST experiment, for any labelled set."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import torch

from lebm.core.errors import DataError
from lebm.data.splits import Splits

SPLIT_SEED, TRAINED = 42, 0.8
CLUSTERS, DIRECTIONS = 10, 30


def hold_out(splits: Splits, label: int, labels: str = "dataset") -> Splits:
    """Pool all rows; train on 80 % of those without this label; test on the other 20 % and every row that has it.

    The permutation is fixed, so that no test row was ever trained on: seeds vary the training, not the split. `labels`
    are those of the `dataset`, or `clusters`: a stand-in that needs no label, to choose the settings of a detector.
    """
    x = torch.cat([splits.train, splits.test])
    if labels == "clusters":
        rows = x.numpy()
        y = _clusters(rows.tobytes(), rows.shape, rows.dtype.str)
    elif splits.train_labels is None or splits.test_labels is None:
        raise DataError(
            f"data.held_out is {label}, but this data set has no labels; "
            "use a labelled one, such as mnist, or data.labels=clusters"
        )
    else:
        y = torch.cat([splits.train_labels, splits.test_labels]).numpy()
    anomalous = np.flatnonzero(y == label)
    if not len(anomalous) or len(anomalous) == len(y):
        known = ", ".join(map(str, np.unique(y)))
        raise DataError(f"data.held_out is {label}, but the labels of this data set are {known}; name one of several")
    # RandomState is the random generator that the protocol names.
    normal = np.random.RandomState(SPLIT_SEED).permutation(np.flatnonzero(y != label))
    n = int(TRAINED * len(normal))
    train, test = normal[:n], np.concatenate([normal[n:], anomalous])
    of = torch.from_numpy
    return dataclasses.replace(splits, train=x[train], test=x[test], train_labels=of(y[train]), test_labels=of(y[test]))


@functools.lru_cache(maxsize=2)
def _clusters(rows: bytes, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """The number of every row's cluster: k-means in the strongest directions of the pixels. A set is clustered once."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    x = np.frombuffer(rows, dtype).reshape(shape[0], -1).astype(np.float32)
    strongest = PCA(min(DIRECTIONS, *x.shape), random_state=0).fit_transform(x)
    return KMeans(CLUSTERS, n_init=3, random_state=0).fit_predict(strongest).astype(np.int64)

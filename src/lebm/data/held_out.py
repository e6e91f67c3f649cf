"""One class as the anomaly: the split of the paper's MNIST experiment, for any labelled set."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from lebm.data.splits import Splits
from lebm.errors import DataError

SPLIT_SEED, TRAINED = 42, 0.8


def hold_out(splits: Splits, label: int) -> Splits:
    """Pool all rows; train on 80 % of those without this label; test on the other 20 % and every row that has it.

    One permutation, fixed for good, so that no test row was ever trained on; seeds vary the training, not the split.
    """
    if splits.train_labels is None or splits.test_labels is None:
        raise DataError(f"data.held_out is {label}, but this data set has no labels; use a labelled one, such as mnist")
    x, y = torch.cat([splits.train, splits.test]), torch.cat([splits.train_labels, splits.test_labels]).numpy()
    anomalous = np.flatnonzero(y == label)
    if not len(anomalous) or len(anomalous) == len(y):
        raise DataError(f"data.held_out is {label}, but the labels of this data set are {', '.join(map(str, np.unique(y)))}; name one of several")
    normal = np.random.RandomState(SPLIT_SEED).permutation(np.flatnonzero(y != label))  # the generator that the protocol names
    n = int(TRAINED * len(normal))
    train, test = normal[:n], np.concatenate([normal[n:], anomalous])
    return dataclasses.replace(splits, train=x[train], test=x[test], train_labels=torch.from_numpy(y[train]), test_labels=torch.from_numpy(y[test]))

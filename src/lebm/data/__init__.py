"""Data sets by name, readers of their official formats, and batches.

    splits = load(config, root)        # Splits: images as uint8 (n, c, h, w), sentences as int32 (n, words), for training and testing
    batches = Batches(splits.train, config.training.batch, config.seed, device)
    x = batches(step)

A new set is one file with a `Dataset`, and one entry below.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from pathlib import Path

from torch import Tensor

from lebm.config import Config, Generator
from lebm.data.batches import Batches, SentenceBatches, VariedBatches
from lebm.data.cifar import CIFAR10
from lebm.data.faces import CELEBA
from lebm.data.held_out import hold_out
from lebm.data.idx import MNIST
from lebm.data.inputs import read_inputs
from lebm.data.own import IMAGES
from lebm.data.small import DIGITS, NOISE
from lebm.data.splits import Dataset, Progress, Splits, size_settings
from lebm.data.svhn import SVHN
from lebm.data.text import PTB, SNLI, TEXT, TEXT_DEMO, YAHOO
from lebm.errors import DataError

__all__ = ["DATASETS", "Batches", "Dataset", "Progress", "SentenceBatches", "Splits", "VariedBatches", "check", "data_root", "load", "read_inputs"]

DATASETS: dict[str, Dataset] = {d.name: d for d in (DIGITS, MNIST, SVHN, CIFAR10, CELEBA, IMAGES, NOISE, PTB, SNLI, YAHOO, TEXT, TEXT_DEMO)}


def data_root(data_dir: str | Path | None = None) -> Path | None:
    """The folder that holds the data sets: the argument, or the environment variable LEBM_DATA, or None."""
    given = data_dir or os.environ.get("LEBM_DATA")
    return Path(given).expanduser() if given else None


def check(config: Config) -> None:
    """Whether the set that the config names is known, and of the kind that the generator makes. Reads nothing."""
    name = config.data.name
    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise DataError(f"no data set is called {name!r}{hint}; data.name is one of {', '.join(DATASETS)}")
    kind, made = DATASETS[name].kind, config.generator.kind
    if kind != made:
        raise DataError(f"{name} is a set of kind {kind} and generator.kind is {made}; use --set generator.kind={kind}, or another data.name")


def load(config: Config, root: str | Path | None = None, progress: Progress | None = None) -> Splits:
    """The data set that the config names, checked against the generator's shape and cut to data.limit."""
    check(config)
    name, kind = config.data.name, config.generator.kind
    splits = DATASETS[name].load(config, data_root(root), progress)
    if kind == "image":
        _check_shape(name, splits.train, config.image)
        _check_shape(name, splits.test, config.image)
    if config.data.held_out is not None:
        splits = hold_out(splits, config.data.held_out, config.data.labels)
    if config.data.limit is None:
        return splits
    labels = None if splits.train_labels is None else splits.train_labels[: config.data.limit]
    return dataclasses.replace(splits, train=splits.train[: config.data.limit], train_labels=labels)


def _check_shape(name: str, images: Tensor, g: Generator) -> None:
    have, want = tuple(images.shape[1:]), (g.channels, g.size, g.size)
    if have == want:
        return
    settings = [f"generator.channels={have[0]}"] if have[0] != g.channels else []
    if have[1] != g.size:
        settings += size_settings(have[1]) + (["generator.widths=null"] if g.widths else [])
    fix = f"use {' '.join('--set ' + s for s in settings)}"
    raise DataError(f"{name} has images of shape {have} (channels, height, width) but the generator makes {want}; {fix}")

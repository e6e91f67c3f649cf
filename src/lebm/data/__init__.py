"""Data sets by name, readers of their official formats, and batches.

    splits = load(config, root)  # Splits: images as uint8 (n, c, h, w), sentences as int32 (n, words)
    batches = Batches(splits.train, config.training.batch, config.seed, device)
    x = batches(update)

A new data set is one file here, whose DATASETS holds it, and that file's name in MODULES.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from pathlib import Path

from torch import Tensor

from lebm.core.errors import DataError
from lebm.core.lookup import did_you_mean
from lebm.core.progress import Progress
from lebm.data.batches import Batches, SentenceBatches, VariedBatches
from lebm.data.held_out import hold_out
from lebm.data.splits import Config, Dataset, Download, Splits, image_shape, size_settings

MODULES = ("embedded", "mnist", "svhn", "cifar10", "celeba", "user_images", "text")
DATASETS: dict[str, Dataset] = {
    dataset.name: dataset for name in MODULES for dataset in importlib.import_module(f"lebm.data.{name}").DATASETS
}
HANDED_IN = "handed-in"  # data.name of a run on rows that were given to lebm.train and that no folder holds

__all__ = ["DATASETS", "HANDED_IN", "Batches", "Dataset", "Download", "SentenceBatches", "Splits", "VariedBatches",
           "check", "data_root", "load"]  # fmt: skip


def data_root(data_dir: str | Path | None = None) -> Path | None:
    """The folder that holds the data sets: the argument, or the environment variable LEBM_DATA, or None."""
    given = data_dir or os.environ.get("LEBM_DATA")
    return Path(given).expanduser() if given else None


def check(config: Config) -> None:
    """Raise unless the set that the config names is known and of the modality of the generator. Reads nothing."""
    name, modality = config.data.name, config.generator.MODALITY
    if name == HANDED_IN:
        raise DataError(
            "this run learned from data that was handed to lebm.train, which is not stored; "
            "hand it in again (lebm.train(..., data=...)), or work on the run with lebm.load"
        )
    if name not in DATASETS:
        names = ", ".join(DATASETS)
        raise DataError(f"no data set is called {name!r}{did_you_mean(name, DATASETS)}; data.name is one of {names}")
    needed = DATASETS[name].modality
    if needed != modality:
        raise DataError(
            f"{name} is a set for generators of {needed}s and generator.kind is {config.generator.kind}; "
            f"use --set generator.kind={needed}, or another data.name"
        )


def load(config: Config, root: str | Path | None = None, progress: Progress | None = None) -> Splits:
    """The data set that the config names, checked against the generator's shape and cut to data.limit rows."""
    check(config)
    data = config.data
    splits = DATASETS[data.name].load(config, data_root(root), progress)
    check_rows = {"image": _check_shape, "table": _check_columns}.get(DATASETS[data.name].modality)
    if check_rows is not None:
        for rows in (splits.train, splits.test):
            check_rows(config, rows)
    if data.held_out is not None:
        splits = hold_out(splits, data.held_out, data.labels)
    labels = None if splits.train_labels is None else splits.train_labels[: data.limit]
    return dataclasses.replace(splits, train=splits.train[: data.limit], train_labels=labels)


def _check_columns(config: Config, rows: Tensor) -> None:
    want = config.generator.columns
    if rows.ndim != 2:
        raise DataError(f"{config.data.name} has rows of shape {tuple(rows.shape[1:])}; a table has rows of numbers")
    if (have := rows.shape[1]) != want:
        raise DataError(
            f"{config.data.name} has rows of {have} columns and generator.columns is {want}; "
            f"use --set generator.columns={have}"
        )


def _check_shape(config: Config, images: Tensor) -> None:
    have, want = tuple(images.shape[1:]), image_shape(config)
    if have == want:
        return
    settings = [f"generator.channels={have[0]}"] if have[0] != want[0] else []
    if have[1] != want[1]:
        settings += size_settings(have[1]) + (["generator.widths=null"] if config.generator.widths else [])
    raise DataError(
        f"{config.data.name} has images of shape {have} (channels, height, width) but the generator makes {want}; "
        f"use {' '.join('--set ' + s for s in settings)}"
    )

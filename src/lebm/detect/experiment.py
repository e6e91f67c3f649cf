"""The paper's experiment: each class in turn is the anomaly. `lebm anomaly` runs it on any labelled set of images.

The split is that of data.held_out. There is a run for every class and seed; after each of its last epochs the whole
test split is scored, and the AUPRC of these epochs are averaged. All numbers stay in the runs' folders, so that an
interrupted experiment goes on where it stopped.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lebm.config import Config
from lebm.config.build import build
from lebm.core.device import pick_device
from lebm.core.pixels import as_floats
from lebm.core.progress import SILENT, Progress, Reporter
from lebm.detect.trial import Trial, is_anomaly, measure, split_all
from lebm.measure.auprc import chance, smallest
from lebm.measure.neighbours import nearest
from lebm.measure.result import device_name, result
from lebm.measure.statistics import content_hash

CLASSES = (1, 4, 5, 7, 9)  # the digits of the paper's table
SPLIT = (
    "all rows pooled, one label dropped; 80 % of the rest train (permutation of seed 42), "
    "the other 20 % and every row of that label test"
)
METRICS = ("auprc", "auroc", "auprc_fifth")


def experiment(
    config: Config,
    classes: Sequence[int],
    seeds: Sequence[int],
    folder: Path,
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Every class with every seed, one after another; a result of the usual form."""
    trials = [
        Trial(
            config.with_values(**{"data.held_out": label, "seed": seed}),
            folder / f"digit-{label}" / f"seed-{seed}",
            device,
            data_dir,
            reporter,
        )
        for label in classes
        for seed in seeds
    ]
    for trial in trials:  # mistakes are reported before hours of learning
        trial.read()
    measured = _run_all(trials, reporter)
    per_seed = [
        {
            "seed": t.config.seed,
            "digit": t.label,
            "auprc": [e["auprc"] for e in m["epochs"].values()],
            "seconds": round(m["seconds"], 1),
        }
        for t, m in zip(trials, measured, strict=True)
    ]
    return result(
        name=config.name,
        **_numbers(config, classes, [t.label for t in trials], measured, data_dir),
        per_seed=per_seed,
        protocol=_protocol(config),
        config=config.to_dict(),
        seed=list(seeds),
        updates=config.training.updates,
        device=device_name(pick_device(device)),
        seconds=round(sum(m["seconds"] for m in measured), 1),
    )


def _run_all(trials: list[Trial], reporter: Reporter) -> list[dict[str, Any]]:
    started, measured = time.monotonic(), []
    for i, trial in enumerate(trials):
        minutes = (time.monotonic() - started) / i * (len(trials) - i) / 60 if i else 0.0
        left = f", about {minutes:.0f} minutes left" if i else ""
        who = f"digit {trial.label}, seed {trial.config.seed}"
        reporter.say(f"{who} ({i + 1} of {len(trials)}{left}): {trial.folder}")
        measured.append(trial.run())
        mean = statistics.fmean(e["auprc"] for e in measured[-1]["epochs"].values())
        reporter.say(f"{who}: AUPRC {mean:.3f}")
    return measured


def nearest_neighbours(
    config: Config,
    classes: Sequence[int],
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """What a detector must beat: the squared pixel distance to the nearest training image, on the same split."""
    started, measured = time.monotonic(), []
    for label in classes:
        splits = split_all(config, label, data_dir)
        with reporter.progress(f"digit {label}: nearest neighbours") as update:
            scores = squared_distances(splits.train, splits.test, pick_device(device), update)
        measured.append({"epochs": {0: measure(scores, is_anomaly(splits, label))}})
    return result(
        name=f"{config.data.name}/neighbours",
        **_numbers(config, classes, classes, measured, data_dir),
        protocol={"score": "squared pixel distance to the nearest training image", "split": SPLIT},
        config={"data": config.to_dict()["data"]},
        device=device_name(pick_device(device)),
        seconds=round(time.monotonic() - started, 1),
    )


def squared_distances(
    train: Tensor, test: Tensor, device: torch.device, progress: Progress | None = None
) -> np.ndarray:
    """The squared distance of every test row to its nearest training row, in [-1, 1] units."""
    distances, _ = nearest(as_floats(test), train, 1, convert=as_floats, device=device, progress=progress)
    return (distances[:, 0].double().square() * test[0].numel()).numpy()


def _numbers(
    config: Config, classes: Sequence[int], labels: Sequence[int], measured: Sequence[Any], data_dir: str | Path | None
) -> dict[str, Any]:
    """The metrics of every class and the splits that they were measured on; `labels` say of which class each trial
    is."""
    metrics: dict[str, dict[str, Any]] = {name: {} for name in (*METRICS, "chance", "smallest")}
    sizes = {}
    for label in classes:
        splits, key = split_all(config, label, data_dir), str(label)
        anomalous, train = is_anomaly(splits, label), splits.train[: config.data.limit]
        epochs = [e for m, of in zip(measured, labels, strict=True) if of == label for e in m["epochs"].values()]
        metrics["chance"][key], metrics["smallest"][key] = chance(anomalous), smallest(anomalous)
        for name in METRICS:
            values = [e[name] for e in epochs]
            spread = statistics.stdev(values) if len(values) > 1 else None
            metrics[name][key] = {"mean": statistics.fmean(values), "spread": spread}
        counts = {"train": len(train), "test": len(anomalous), "anomalies": int(anomalous.sum())}
        sizes[key] = {**counts, "sha256": content_hash(splits.train)}
    return {"metrics": metrics, "data": {"name": config.data.name, "splits": sizes}}


def _protocol(config: Config) -> dict[str, Any]:
    return {
        "checkpoint": f"each of the last {config.anomaly.epochs} epochs",
        "score": config.anomaly.score,
        "sampler": build(config).choose("posterior").to_dict(),
        "labels": config.data.labels,
        "split": SPLIT,
        "auprc": "average precision, anomalies positive; mean and standard deviation over the last epochs of all seeds",
        "auprc_fifth": "the same with a random fifth of the anomalies",
    }

"""The paper's experiment: each class in turn is the anomaly. `lebm anomaly` runs it on any labelled set of images.

The split is that of data.held_out. There is a run for every class and seed; after each of its last epochs the whole
test split is scored, and the AUPRC of these epochs are averaged. All numbers stay in the runs' folders, so that an
interrupted experiment goes on where it stopped.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lebm.config import Config
from lebm.config.build import build
from lebm.core.device import pick_device
from lebm.core.errors import CheckpointError, ConfigError
from lebm.core.pixels import as_floats
from lebm.core.progress import SILENT, Progress, Reporter, ignore
from lebm.data import Splits, data_root
from lebm.data import load as load_data
from lebm.detect.scores import Scorer
from lebm.measure.auprc import auprc, auroc, chance, smallest
from lebm.measure.neighbours import nearest
from lebm.measure.result import device_name, read, result, write
from lebm.measure.statistics import content_hash
from lebm.method import Method
from lebm.run import check_run
from lebm.training.train import train

CLASSES = (1, 4, 5, 7, 9)  # the digits of the paper's table
SPLIT = (
    "all rows pooled, one label dropped; 80 % of the rest train (permutation of seed 42), "
    "the other 20 % and every row of that label test"
)
MEASURED = "anomaly.json"
NORMAL_ROWS = 50_000  # training rows that a combined score is fitted to
FEW, FEW_SEED = 0.2, 42  # also measured: with a random fifth of the anomalies
Numbers = dict[str, float]
Folder = str | Path | None


def experiment(
    config: Config,
    classes: Sequence[int],
    seeds: Sequence[int],
    folder: Path,
    *,
    device: str = "auto",
    data_dir: Folder = None,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Every class with every seed, one after another; a result of the usual form."""
    trials: list[Trial] = []
    for label, seed in itertools.product(classes, seeds):
        one = config.with_values(**{"data.held_out": label, "seed": seed})
        trials.append(Trial(one, folder / f"digit-{label}" / f"seed-{seed}", device, data_dir, reporter))
        trials[-1].read()  # mistakes are reported before hours of learning
    started, total = time.monotonic(), 0.0
    per_seed: list[dict[str, Any]] = []
    epochs: dict[int, list[Numbers]] = {label: [] for label in classes}
    for i, trial in enumerate(trials):
        minutes = (time.monotonic() - started) / i * (len(trials) - i) / 60 if i else 0.0
        left = f", about {minutes:.0f} minutes left" if i else ""
        who = f"digit {trial.label}, seed {trial.config.seed}"
        reporter.say(f"{who} ({i + 1} of {len(trials)}{left}): {trial.folder}")
        measured = trial.run()
        total += measured["seconds"]
        epochs[trial.label] += measured["epochs"].values()
        areas, seconds = [m["auprc"] for m in measured["epochs"].values()], round(measured["seconds"], 1)
        per_seed.append({"seed": trial.config.seed, "digit": trial.label, "auprc": areas, "seconds": seconds})
        reporter.say(f"{who}: AUPRC {statistics.fmean(areas):.3f}")
    return result(
        name=config.name,
        **_numbers(config, epochs, data_dir),
        per_seed=per_seed,
        protocol=_protocol(config),
        config=config.to_dict(),
        seed=list(seeds),
        updates=config.training.updates,
        device=device_name(pick_device(device)),
        seconds=round(total, 1),
    )


def nearest_neighbours(
    config: Config, classes: Sequence[int], device: str = "auto", data_dir: Folder = None, reporter: Reporter = SILENT
) -> dict[str, Any]:
    """What a detector must beat: the squared pixel distance to the nearest training image, on the same split."""
    started, where, measured = time.monotonic(), pick_device(device), {}
    for label in classes:
        splits = split_all(config, label, data_dir)
        with reporter.progress(f"digit {label}: nearest neighbours") as update:
            scores = squared_distances(splits.train, splits.test, where, update)
        measured[label] = [measure(scores, is_anomaly(splits, label))]
    return result(
        name=f"{config.data.name}/neighbours",
        **_numbers(config, measured, data_dir),
        protocol={"score": "squared pixel distance to the nearest training image", "split": SPLIT},
        config={"data": config.to_dict()["data"]},
        device=device_name(where),
        seconds=round(time.monotonic() - started, 1),
    )


def squared_distances(train: Tensor, test: Tensor, device: torch.device, progress: Progress = ignore) -> np.ndarray:
    """The squared distance of every test row to its nearest training row, in [-1, 1] units."""
    distances, _ = nearest(as_floats(test), train, 1, convert=as_floats, device=device, progress=progress)
    return (distances[:, 0].double().square() * test[0].numel()).numpy()


def _numbers(config: Config, epochs: Mapping[int, list[Numbers]], data_dir: Folder) -> dict[str, Any]:
    """The metrics of every class, from what was measured after epochs of its trials, and the splits behind them."""
    metrics: dict[str, dict[str, Any]] = {}
    sizes = {}
    for label, measured in epochs.items():
        splits, key = split_all(config, label, data_dir), str(label)
        anomalous, train = is_anomaly(splits, label), splits.train[: config.data.limit]
        for name in measured[0]:
            values = [m[name] for m in measured]
            spread = statistics.stdev(values) if len(values) > 1 else None
            metrics.setdefault(name, {})[key] = {"mean": statistics.fmean(values), "spread": spread}
        for name, bound in (("chance", chance), ("smallest", smallest)):
            metrics.setdefault(name, {})[key] = bound(anomalous)
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


# --- one trial --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """One class and one seed, in its run folder: learned without the class, scored after each of the last epochs."""

    config: Config  # with data.held_out and seed
    folder: Path
    device: str
    data_dir: Folder
    reporter: Reporter

    @property
    def label(self) -> int:
        assert self.config.data.held_out is not None
        return self.config.data.held_out

    def run(self) -> dict[str, Any]:
        """Learn, and score after each of the last epochs; a folder that has all of it is only read."""
        splits, measured = split_all(self.config, self.label, self.data_dir), self.read()
        wanted = self.epochs(len(splits.train[: self.config.data.limit]))
        if not set(wanted) <= set(measured["epochs"]):
            started = time.monotonic()
            self._learn(splits, wanted, measured)
            measured["seconds"] += time.monotonic() - started
            if missing := sorted(set(wanted) - set(measured["epochs"])):
                raise CheckpointError(
                    f"{self.folder} has no scores of epoch {missing[0]}; remove it or choose another --run"
                )
            self.write(measured)
        return {**measured, "epochs": {epoch: measured["epochs"][epoch] for epoch in wanted}}

    def _learn(self, splits: Splits, wanted: list[int], measured: dict[str, Any]) -> None:
        normal, anomalous = normal_rows(self.config, splits), is_anomaly(splits, self.label)

        def on_epoch(epoch: int, method: Method) -> None:
            if epoch in wanted:
                scores = score_all(Scorer(method.eval()), normal, splits.test, self.reporter)
                measured["epochs"][epoch] = measure(scores, anomalous)
                self.write(measured)
                if epoch == wanted[-1]:
                    self.draw(scores, anomalous, splits.test)

        where: dict[str, Any] = {"device": self.device, "data_dir": self.data_dir, "reporter": self.reporter}
        resume = (self.folder / "config.yaml").is_file()
        train(self.config, run=self.folder, resume=resume, on_epoch=on_epoch, **where)

    def epochs(self, rows: int) -> list[int]:
        """The numbers of the last epochs that learning completes."""
        updates = self.config.training.updates
        last = updates // max(1, rows // min(self.config.training.batch, rows))
        if last < 1:
            raise ConfigError(f"training.updates is {updates}, less than one epoch of {rows} rows; raise it")
        return list(range(max(1, last - self.config.anomaly.epochs + 1), last + 1))

    def read(self) -> dict[str, Any]:
        """What the folder has measured, with these settings."""
        path = self.folder / MEASURED
        if (self.folder / "config.yaml").is_file():
            check_run(self.folder, self.config, resume=True)  # raises where the run has other settings
        if not path.is_file():
            return {"epochs": {}, "seconds": 0.0}
        try:
            values = read(path)
            score, updates = values["score"], values["updates"]
            known = {"seconds": 0.0, **values, "epochs": {int(e): dict(m) for e, m in values["epochs"].items()}}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CheckpointError(f"{path} is damaged; remove {self.folder} or choose another --run") from None
        if (score, updates) != (self.config.anomaly.score, self.config.training.updates):
            raise CheckpointError(
                f"{path} was measured with the score {score} after {updates} updates; choose another --run"
            )
        return known

    def write(self, measured: dict[str, Any]) -> None:
        values = {**measured, "score": self.config.anomaly.score, "updates": self.config.training.updates}
        write(self.folder / MEASURED, values)

    def draw(self, scores: np.ndarray, anomalous: np.ndarray, rows: Tensor) -> None:
        from lebm.show import figures

        c = self.config
        title = f"{c.data.name}: {self.label} is the anomaly, score {c.anomaly.score}, seed {c.seed}"
        figures.save(figures.detection(scores, anomalous, rows, title), self.folder / "figures" / "anomaly.png")


def split_all(config: Config, label: int, data_dir: Folder) -> Splits:
    """The split with this label held out, all its rows."""
    return load_data(config.with_values(**{"data.held_out": label, "data.limit": None}), data_root(data_dir))


def score_all(scorer: Scorer, normal: Tensor, test: Tensor, reporter: Reporter) -> np.ndarray:
    """The scores of all test rows; a combined score is first fitted to the normal ones."""
    with reporter.progress("scoring") as update:
        scorer.fit(as_floats(normal))
        return scorer(test, update).numpy()


def normal_rows(config: Config, splits: Splits) -> Tensor:
    """The rows that a combined score is fitted to: the first of those that the run learned from."""
    return splits.train[: config.data.limit][:NORMAL_ROWS]


def is_anomaly(splits: Splits, label: int) -> np.ndarray:
    assert splits.test_labels is not None
    return splits.test_labels.numpy() == label


def measure(scores: np.ndarray, anomalous: np.ndarray) -> Numbers:
    """AUPRC and AUROC; AUPRC also with a random fifth of the anomalies, as published tables may mix them otherwise."""
    positives = np.flatnonzero(anomalous)
    few = np.random.default_rng(FEW_SEED).permutation(positives)[: max(1, round(FEW * len(positives)))]
    rows = np.concatenate([np.flatnonzero(~anomalous), few])
    fifth = auprc(scores[rows], anomalous[rows])
    return {"auprc": auprc(scores, anomalous), "auroc": auroc(scores, anomalous), "auprc_fifth": fifth}

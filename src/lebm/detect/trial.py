"""One trial of the experiment with held-out classes: a run without one class, scored after each of its last epochs."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from lebm.config import Config
from lebm.core.errors import CheckpointError, ConfigError
from lebm.core.files import write_atomic
from lebm.core.pixels import as_floats
from lebm.core.progress import Reporter
from lebm.data import Splits, data_root
from lebm.data import load as load_data
from lebm.detect.scores import Scorer
from lebm.measure.auprc import auprc, auroc
from lebm.method import Method
from lebm.run import Run, check_run
from lebm.training.train import train

MEASURED = "anomaly.json"
MAX_JSON = 1 << 20
NORMAL_ROWS = 50_000  # training rows that a combined score is fitted to
FEW, FEW_SEED = 0.2, 42  # also measured: with a random fifth of the anomalies
Numbers = dict[str, float]


@dataclass(frozen=True)
class Trial:
    """One class and one seed, in its run folder."""

    config: Config  # with data.held_out and seed
    folder: Path
    device: str
    data_dir: str | Path | None
    reporter: Reporter

    @property
    def label(self) -> int:
        assert self.config.data.held_out is not None
        return self.config.data.held_out

    def run(self) -> dict[str, Any]:
        """Learn, and score after each of the last epochs; a folder that has all of it is only read."""
        splits = split_all(self.config, self.label, self.data_dir)
        wanted = self.epochs(len(splits.train[: self.config.data.limit]))
        measured = self.read()
        if not set(wanted) <= set(measured["epochs"]):
            started = time.monotonic()
            self._learn(splits, wanted, measured)
            measured["seconds"] = measured.get("seconds", 0.0) + time.monotonic() - started
            if missing := sorted(set(wanted) - set(measured["epochs"])):
                raise CheckpointError(
                    f"{self.folder} has no scores of epoch {missing[0]}; remove it or choose another --run"
                )
            self.write(measured)
        return {"epochs": {e: measured["epochs"][e] for e in wanted}, "seconds": measured.get("seconds", 0.0)}

    def _learn(self, splits: Splits, wanted: list[int], measured: dict[str, Any]) -> None:
        normal, anomalous = normal_rows(self.config, splits), is_anomaly(splits, self.label)

        def on_epoch(epoch: int, method: Method) -> None:
            if epoch in wanted:
                scores = score_all(Scorer(method.eval()), normal, splits.test, self.reporter)
                measured["epochs"][epoch] = measure(scores, anomalous)
                self.write(measured)
                if epoch == wanted[-1]:
                    self.draw(scores, anomalous, splits.test)

        train(
            self.config,
            run=self.folder,
            resume=Run(self.folder).config_file.is_file(),
            device=self.device,
            data_dir=self.data_dir,
            reporter=self.reporter,
            on_epoch=on_epoch,
        )

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
        if Run(self.folder).config_file.is_file():
            check_run(self.folder, self.config, resume=True)  # raises where the run has other settings
        if not path.is_file():
            return {"epochs": {}}
        try:
            if path.stat().st_size > MAX_JSON:
                raise ValueError("too large")
            values = json.loads(path.read_text(encoding="utf-8"))
            score, updates = values["score"], values["updates"]
            if score != self.config.anomaly.score or updates != self.config.training.updates:
                raise CheckpointError(
                    f"{path} was measured with the score {score} after {updates} updates; choose another --run"
                )
            return {**values, "epochs": {int(e): dict(m) for e, m in values["epochs"].items()}}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CheckpointError(f"{path} is damaged; remove {self.folder} or choose another --run") from None

    def write(self, measured: dict[str, Any]) -> None:
        values = {"score": self.config.anomaly.score, "updates": self.config.training.updates, **measured}
        write_atomic(self.folder / MEASURED, json.dumps(values, indent=1) + "\n")

    def draw(self, scores: np.ndarray, anomalous: np.ndarray, rows: Tensor) -> None:
        from lebm.show import figures

        c = self.config
        title = f"{c.data.name}: {self.label} is the anomaly, score {c.anomaly.score}, seed {c.seed}"
        figures.save(figures.detection(scores, anomalous, rows, title), self.folder / "figures" / "anomaly.png")


def split_all(config: Config, label: int, data_dir: str | Path | None) -> Splits:
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

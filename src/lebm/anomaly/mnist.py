"""The paper's experiment: each digit in turn is the anomaly. `lebm anomaly` runs it on MNIST, or on any labelled set of images.

The split is data.held_out's. A run a digit and seed; after each of its last epochs the whole test split is scored, and the AUPRC of these
epochs are averaged. Everything is kept in the runs' folders, so that an interrupted experiment goes on where it stopped.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from lebm import checkpoint, figures, results
from lebm.anomaly.figure import draw
from lebm.anomaly.scores import Scorer
from lebm.config import Config
from lebm.data import Splits, data_root
from lebm.data import load as load_data
from lebm.errors import CheckpointError, ConfigError
from lebm.generators.image import as_floats
from lebm.log import progress_bar
from lebm.metrics.anomaly import auprc, auroc, chance, smallest
from lebm.model import LatentEBM
from lebm.runs import Run, check_run
from lebm.statistics import content_hash
from lebm.training import fitting_threads, pick_device, train

DIGITS = (1, 4, 5, 7, 9)  # of the paper's table
KEPT = "anomaly.json"
FITTED = 50_000  # training rows that a combined score is fitted to
FEW, FEW_SEED = 0.2, 42  # also measured: with a random fifth of the anomalies
Numbers = dict[str, float]


@dataclass(frozen=True)
class Trial:
    """One digit and one seed, in a run folder of its own."""

    config: Config  # with data.held_out and seed
    folder: Path
    device: str
    data_dir: str | Path | None
    console: Console | None

    @property
    def digit(self) -> int:
        assert self.config.data.held_out is not None
        return self.config.data.held_out

    def run(self) -> dict[str, Any]:
        """Learn, score after each of the last epochs; what was measured, from the folder where it is complete already."""
        splits = load_data(self.config.with_values(**{"data.limit": None}), data_root(self.data_dir))
        wanted = self.epochs(len(splits.train[: self.config.data.limit]))
        kept = self.read()
        if not set(wanted) <= set(kept["epochs"]):
            normal, test, anomalous = normal_rows(self.config, splits), splits.test, is_anomaly(splits, self.digit)

            def watch(epoch: int, model: LatentEBM) -> None:
                if epoch in wanted:
                    scores = score_all(Scorer(model), normal, test, self.console)
                    kept["epochs"][epoch] = measure(scores, anomalous)
                    self.keep(kept, scores if epoch == wanted[-1] else None, splits)

            started = time.monotonic()
            train(
                self.config,
                run=self.folder,
                resume=Run(self.folder).config_file.is_file(),
                device=self.device,
                data_dir=self.data_dir,
                console=self.console,
                watch=watch,
            )
            kept["seconds"] = kept.get("seconds", 0.0) + time.monotonic() - started
            if missing := sorted(set(wanted) - set(kept["epochs"])):
                raise CheckpointError(f"{self.folder} was learned to its end without scores of epoch {missing[0]}; remove it or choose another --run")
            self.keep(kept)
        return {"epochs": {e: kept["epochs"][e] for e in wanted}, "seconds": kept.get("seconds", 0.0)}

    def epochs(self, rows: int) -> list[int]:
        """The last ones that learning completes."""
        last = self.config.training.steps // max(1, rows // min(self.config.training.batch, rows))
        if last < 1:
            raise ConfigError(f"training.steps is {self.config.training.steps}, less than one epoch of {rows} rows; raise it")
        return list(range(max(1, last - self.config.anomaly.epochs + 1), last + 1))

    def read(self) -> dict[str, Any]:
        path = self.folder / KEPT
        if Run(self.folder).config_file.is_file():
            check_run(self.folder, self.config, resume=True)  # scores of other settings are not this trial's
        if not path.is_file():
            return {"epochs": {}}
        try:
            if path.stat().st_size > checkpoint.MAX_JSON:
                raise ValueError("too large")
            values = json.loads(path.read_text(encoding="utf-8"))
            if values["score"] != self.config.anomaly.score or values["steps"] != self.config.training.steps:
                raise CheckpointError(f"{path} was measured with score {values['score']} after {values['steps']} updates; choose another --run")
            return {**values, "epochs": {int(e): dict(m) for e, m in values["epochs"].items()}}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CheckpointError(f"{path} is damaged; remove {self.folder} or choose another --run") from None

    def keep(self, kept: dict[str, Any], scores: np.ndarray | None = None, splits: Splits | None = None) -> None:
        values = {"score": self.config.anomaly.score, "steps": self.config.training.steps, **kept}
        checkpoint.write_atomic(self.folder / KEPT, json.dumps(values, indent=1) + "\n")
        if scores is not None and splits is not None:
            title = f"{self.config.data.name}: {self.digit} is the anomaly, score `{self.config.anomaly.score}`, seed {self.config.seed}"
            figures.save(draw(scores, is_anomaly(splits, self.digit), splits.test, title), self.folder / "figures" / "anomaly.png")


def score_all(scorer: Scorer, normal: Tensor, test: Tensor, console: Console | None) -> np.ndarray:
    with progress_bar(console, "scoring") as update, fitting_threads(scorer.model):
        scorer.fit(as_floats(normal))
        return scorer(test, update).numpy()


def normal_rows(config: Config, splits: Splits) -> Tensor:
    """The rows that a combined score is fitted to: the first of those that the run learned from."""
    return splits.train[: config.data.limit][:FITTED]


def is_anomaly(splits: Splits, digit: int) -> np.ndarray:
    assert splits.test_labels is not None
    return splits.test_labels.numpy() == digit


def measure(scores: np.ndarray, anomalous: np.ndarray) -> Numbers:
    """AUPRC and AUROC; AUPRC again with a random fifth of the anomalies, since published tables may mix them otherwise."""
    found = np.flatnonzero(anomalous)
    few = np.random.default_rng(FEW_SEED).permutation(found)[: max(1, round(FEW * len(found)))]
    rows = np.concatenate([np.flatnonzero(~anomalous), few])
    return {"auprc": auprc(scores, anomalous), "auroc": auroc(scores, anomalous), "auprc_fifth": auprc(scores[rows], anomalous[rows])}


# --- the whole experiment ---------------------------------------------------------------------------------------------


def experiment(
    config: Config,
    digits: Sequence[int],
    seeds: Sequence[int],
    folder: Path,
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    console: Console | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> dict[str, Any]:
    """Every digit with every seed, one after another; a result of the usual form."""
    trials = [
        Trial(config.with_values(**{"data.held_out": d, "seed": s}), folder / f"digit-{d}" / f"seed-{s}", device, data_dir, console)
        for d in digits
        for s in seeds
    ]
    for trial in trials:  # what is wrong is said before hours of learning
        trial.read()
    started, measured = time.monotonic(), []
    for i, trial in enumerate(trials):
        left = f", about {(time.monotonic() - started) / i * (len(trials) - i) / 60:.0f} minutes left" if i else ""
        say(f"digit {trial.digit}, seed {trial.config.seed} ({i + 1} of {len(trials)}{left}): {trial.folder}")
        measured.append(trial.run())
        say(f"digit {trial.digit}, seed {trial.config.seed}: AUPRC {mean_of(measured[-1], 'auprc'):.3f}")
    facts = {d: _composition(config, d, data_dir) for d in digits}
    by_digit = {d: [m for t, m in zip(trials, measured, strict=True) if t.digit == d] for d in digits}
    return results.result(
        experiment=config.experiment,
        metrics={name: {str(d): _summary(by_digit[d], name) for d in digits} for name in ("auprc", "auroc", "auprc_fifth")}
        | {"chance": {str(d): facts[d]["chance"] for d in digits}, "smallest": {str(d): facts[d]["smallest"] for d in digits}},
        per_seed=[
            {"seed": t.config.seed, "digit": t.digit, "auprc": [e["auprc"] for e in m["epochs"].values()], "seconds": round(m["seconds"], 1)}
            for t, m in zip(trials, measured, strict=True)
        ],
        protocol=_protocol(config),
        data=_data(config, facts),
        config=config.to_dict(),
        seed=list(seeds),
        steps=config.training.steps,
        device=results.device_name(pick_device(device)),
        seconds=round(sum(m["seconds"] for m in measured), 1),
    )


def neighbours(
    config: Config, digits: Sequence[int], *, device: str = "auto", data_dir: str | Path | None = None, console: Console | None = None
) -> dict[str, Any]:
    """What a detector must beat: the squared pixel distance to the nearest training image, on the same split."""
    started, facts, found = time.monotonic(), {}, {}
    for d in digits:
        splits = load_data(config.with_values(**{"data.held_out": d, "data.limit": None}), data_root(data_dir))
        with progress_bar(console, f"digit {d}: nearest neighbours") as update:
            scores = nearest(splits.train, splits.test, pick_device(device), update)
        found[d] = {"epochs": {0: measure(scores, is_anomaly(splits, d))}}
        facts[d] = _composition(config, d, data_dir)
    return results.result(
        experiment=f"{config.data.name}-neighbours",
        metrics={name: {str(d): {"mean": found[d]["epochs"][0][name], "spread": None} for d in digits} for name in ("auprc", "auroc", "auprc_fifth")}
        | {"chance": {str(d): facts[d]["chance"] for d in digits}},
        protocol={"score": "squared pixel distance to the nearest training image", "split": SPLIT},
        data=_data(config, facts),
        config={"data": config.to_dict()["data"]},
        device=results.device_name(pick_device(device)),
        seconds=round(time.monotonic() - started, 1),
    )


def nearest(train_rows: Tensor, test_rows: Tensor, device: torch.device, progress: Callable[[int, int], None] | None = None) -> np.ndarray:
    """The squared distance of every test row to its nearest training row, in [-1, 1] units."""
    known = as_floats(train_rows).flatten(1).to(device)
    norms, out = known.square().sum(1), []
    for rows in test_rows.split(1000):
        x = as_floats(rows).flatten(1).to(device)
        out.append((torch.addmm(norms, x, known.T, alpha=-2).amin(1) + x.square().sum(1)).clamp(min=0).double().cpu())
        if progress:
            progress(sum(map(len, out)), len(test_rows))
    return torch.cat(out).numpy()


# --- numbers ----------------------------------------------------------------------------------------------------------

SPLIT = "all rows pooled, one label dropped; 80 % of the rest train (permutation of seed 42), the other 20 % and every row of that label test"


def mean_of(measured: dict[str, Any], name: str) -> float:
    return statistics.fmean(e[name] for e in measured["epochs"].values())


def _summary(seeds: list[dict[str, Any]], name: str) -> dict[str, float | None]:
    """Mean and standard deviation over all last epochs of all seeds."""
    values = [e[name] for m in seeds for e in m["epochs"].values()]
    return {"mean": statistics.fmean(values), "spread": statistics.stdev(values) if len(values) > 1 else None}


def _composition(config: Config, digit: int, data_dir: str | Path | None) -> dict[str, Any]:
    splits = load_data(config.with_values(**{"data.held_out": digit, "data.limit": None}), data_root(data_dir))
    anomalous = is_anomaly(splits, digit)
    sizes = {"train": len(splits.train[: config.data.limit]), "test": len(anomalous), "anomalies": int(anomalous.sum())}
    return {"chance": chance(anomalous), "smallest": smallest(anomalous), "sizes": sizes, "sha256": content_hash(splits.train)}


def _data(config: Config, facts: dict[int, dict[str, Any]]) -> dict[str, Any]:
    return {"name": config.data.name, "splits": {str(d): {**f["sizes"], "sha256": f["sha256"]} for d, f in facts.items()}}


def _protocol(config: Config) -> dict[str, Any]:
    return {
        "checkpoint": f"each of the last {config.anomaly.epochs} epochs",
        "score": config.anomaly.score,
        "labels": config.data.labels,
        "split": SPLIT,
        "auprc": "average precision, anomalies positive; mean and standard deviation over the last epochs of all seeds",
        "auprc_fifth": "the same with a random fifth of the anomalies",
    }

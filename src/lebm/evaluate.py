"""run folder -> metrics.json, figures and report.html."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from lebm import figures, image_metrics, report, results, text_metrics
from lebm import statistics as stats
from lebm.compare import inception
from lebm.data import data_root
from lebm.data import load as load_data
from lebm.errors import CheckpointError, ConfigError
from lebm.evaluation import Evaluation, Metric, Numbers, drawing, of_weights
from lebm.generators import TextGenerator
from lebm.generators.image import as_floats, to_pixels
from lebm.log import progress_bar
from lebm.log import read as read_log
from lebm.metrics.inception import FILE, Features
from lebm.model import LatentEBM, load
from lebm.rng import stream
from lebm.training import fitting_threads, pick_device, refuse_handed_in

SHOWN = 64  # pictures in a grid
MOST_PIXELS = 1024  # beyond, the Fréchet distance of raw pixels takes minutes to hours and says little; ask for it by name
SPLITS = ("train", "test", "validation")
PHOTOGRAPHS = ("svhn", "cifar10", "celeba")  # sets on which the FID is published


def evaluate(
    run: str | Path,
    metrics: tuple[str, ...] | None = None,
    *,
    samples: int | None = None,
    seed: int | None = None,
    split: str = "train",
    limit: int | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    console: Console | None = None,
    pictures: bool = True,
    features: Features | None = None,
    prior_by: str | None = None,
    posterior_by: str | None = None,
) -> dict[str, Any]:
    """Measure a run, write metrics.json, draw its figures and report.html; returns what metrics.json holds.

    What metrics.json already says of the same weights and is not measured now stays in it. `split` names the images that the FID
    compares with, `train` or `test`; `validation` is for choosing settings, looks at no test image and writes validation.json
    instead. `features` stands in for Inception. `prior_by` and `posterior_by` are ways to draw z other than the run's own.
    """
    started = time.monotonic()
    run = Path(run)
    _check(run, metrics, samples, split, limit)
    model = load(run, pick_device(device))
    refuse_handed_in(model.config)
    for kind, by in (("prior", prior_by), ("posterior", posterior_by)):
        drawing(model, kind, by)  # what it cannot draw by is said at once
    root = data_root(data_dir)
    chosen = metrics or fitting(model, features is not None or (root is not None and (root / FILE).is_file()))
    _check_kind(model, chosen)
    if features is None and any(name.startswith("fid") for name in chosen):
        features = inception(root, model.device)  # before the data: what is missing is said at once
    with progress_bar(console, "reading data") as update:
        splits = load_data(model.config.with_values(**{"data.limit": None}), root, update)
    ev = Evaluation(model, splits, samples, _seed(seed, split), split, limit, lambda what: progress_bar(console, what), features)
    ev.prior_by, ev.posterior_by = prior_by, posterior_by
    ev.cache, ev.content = stats.cache_folder(root), stats.content_hash(splits.train)
    if (take := getattr(model.generator, "take", None)) is not None:
        take(splits.facts)  # a text with other words than the model's is refused
    facts = _facts(run, ev, root)
    if console and facts["steps"] == 0:
        which = "the networks it started from" if model.config.training.start_from else "random networks"
        console.print(f"note: this run has saved no update yet; these are numbers of {which}")
    target, summary = run / ("validation.json" if split == "validation" else "metrics.json"), {}
    with fitting_threads(model):
        for values, protocol in measure(ev, chosen):  # each is kept as soon as it is known
            seconds = round(time.monotonic() - started, 1)
            summary = merged(results.result(metrics=values, protocol={**of_weights(run), **protocol}, seconds=seconds, **facts), target)
            results.write(target, summary)
    if pictures and split != "validation":
        draw(run, ev)
        report.write(run)
    return summary


def _check(run: Path, metrics: tuple[str, ...] | None, samples: int | None, split: str, limit: int | None) -> None:
    for name in metrics or ():
        if name not in known():
            raise ConfigError(f"unknown metric {name!r}; there are {', '.join(known())}")
    if samples is not None and samples < 2:
        raise ConfigError(f"samples is {samples}; a distance needs at least 2")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}; it must be at least 1")
    if split not in SPLITS:
        raise ConfigError(f"split is {split!r}; it must be one of {', '.join(SPLITS)}")
    if run.is_file():
        raise CheckpointError(f"{run} is a file; evaluate takes the run folder, where it also writes what it finds")


def _check_kind(model: LatentEBM, chosen: tuple[str, ...] | list[str]) -> None:
    kind = "text" if isinstance(model.generator, TextGenerator) else "image"
    for name in chosen:
        if name not in BY_KIND[kind]:
            raise ConfigError(f"the metric {name} is not for a model of kind {kind}; there are {', '.join(BY_KIND[kind])}")


def _seed(given: int | None, split: str) -> int:
    """Settings are chosen on other samples than the published ones."""
    return given if given is not None else int(split == "validation")


def _facts(run: Path, ev: Evaluation, root: Path | None) -> dict[str, Any]:
    """What a result says besides its numbers."""
    model, splits = ev.model, ev.splits
    return {
        "experiment": model.config.experiment,
        "data": {
            "name": model.config.data.name,
            "source": _source(splits.source, root),
            "train": len(ev.train),
            "test": len(splits.test),
            **({"validation": len(splits.validation)} if splits.validation is not None else {}),
            "sha256": ev.content,
        },
        "config": model.config.to_dict(),
        "seed": ev.seed,
        "steps": model.step,
        "device": results.device_name(model.device),
    }


def _source(source: str, root: Path | None) -> str:
    """A place inside the data folder is named from there: a published result should not speak of somebody's machine."""
    if root is not None and Path(source).is_relative_to(root):
        return Path(source).relative_to(root).as_posix()
    return source


def measure(ev: Evaluation, chosen: tuple[str, ...] | list[str]) -> Iterator[tuple[Numbers, dict[str, Any]]]:
    """After every metric, or part of one: the numbers so far, and for each metric how it was measured."""
    values: Numbers = {}
    protocol: dict[str, Any] = {}
    for name in chosen:
        begun, ev.protocol = time.monotonic(), {}
        found = known()[name](ev)
        for numbers in [found] if isinstance(found, dict) else found:
            values.update(numbers)
            seconds = round(time.monotonic() - begun, 1)
            where = {"device": results.device_name(ev.model.device), "code": results.code_version()}
            protocol[name] = {**ev.protocol, "seed": ev.seed, "seconds": seconds, **where}
            yield values, protocol


def merged(summary: dict[str, Any], path: Path) -> dict[str, Any]:
    """With what the file says of the same weights and data beside it; a file about others, or a damaged one, counts as none."""
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
        same = all(old[key] == summary[key] for key in ("experiment", "config", "steps")) and old["data"]["sha256"] == summary["data"]["sha256"]
        keep = {key: {**old[key], **summary[key]} for key in ("metrics", "protocol")} if same else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        keep = {}
    return {**summary, **keep}


def evaluate_all(runs: list[Path], metrics: tuple[str, ...] | None = None, beside: bool = False, **options: Any) -> dict[str, Any]:
    """Evaluate each run; of several runs (seeds) of one experiment the mean and the spread, each run's numbers in `per_seed`.

    `beside` sets different experiments on one data set side by side instead: numbers, protocol and config by experiment.
    """
    if len(runs) > 1:
        _refuse_early(runs, metrics, beside, options)
    summaries = [evaluate(run, metrics, **options) for run in runs]
    if beside:
        return results.side_by_side(summaries)
    return summaries[0] if len(runs) == 1 else results.mean(summaries)


def _refuse_early(runs: list[Path], metrics: tuple[str, ...] | None, beside: bool, options: dict[str, Any]) -> None:
    """What does not go together is said before the work rather than after it."""
    configs, kept = [], []
    for run in runs:
        model = load(run)
        for kind in ("prior", "posterior"):
            drawing(model, kind, options.get(f"{kind}_by"))
        configs.append(model.config.to_dict())
        kept.append({} if options.get("split") == "validation" else _kept(run, model, metrics))
    if beside:
        results.check_different(configs)
    else:
        results.check_one_experiment(configs)
        results.check_one_protocol(kept)


def _kept(run: Path, model: LatentEBM, metrics: tuple[str, ...] | None) -> dict[str, Any]:
    """How metrics.json says that those were measured which are not measured anew."""
    try:
        old = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
        same = old["config"] == model.config.to_dict() and old["steps"] == model.step
        return {k: v for k, v in old["protocol"].items() if k not in metrics} if same and metrics else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


BY_KIND: dict[str, dict[str, Metric]] = {"image": image_metrics.METRICS, "text": text_metrics.METRICS}


def known() -> dict[str, Metric]:
    """The metrics of all kinds of models."""
    return {name: metric for metrics in BY_KIND.values() for name, metric in metrics.items()}


def fitting(model: LatentEBM, inception_found: bool) -> list[str]:
    """The metrics that say something about this model in reasonable time."""
    if isinstance(model.generator, TextGenerator):
        return ["nll"]
    if model.config.data.name in PHOTOGRAPHS and inception_found:
        return ["fid", "mse"]
    pixels = math.prod(model.generator.shape)  # type: ignore[arg-type]
    return ["frechet", "mse"] if pixels <= MOST_PIXELS else ["mse"]


# --- pictures ---------------------------------------------------------------------------------------------------------


def draw(run: Path, ev: Evaluation) -> None:
    """The pictures of a run: samples from the learned prior and from p_0, reconstructions, the energy along chains.

    By the run's own ways, or by those asked for; samples and reconstructions carry a note of it, which the report reads.
    """
    model, folder = ev.model, run / "figures"
    if isinstance(model.generator, TextGenerator):
        results.write(run / report.SENTENCES, text_metrics.shown(ev))
    else:
        _draw_images(ev, folder)
    k0 = model.config.chains.prior.steps
    if k0:
        figures.save(figures.energy_profile(energy_profile(model, ev.seed, 2 * k0), trained=k0), folder / "energy.svg")
    rows = read_log(run / "log.jsonl")
    if rows:
        figures.save(figures.training_curves(rows), folder / "curves.svg")


def _draw_images(ev: Evaluation, folder: Path) -> None:
    model, prior, posterior = ev.model, ev.drawing("prior"), ev.drawing("posterior")
    x = model.sample(SHOWN, ev.seed, prior.chain.steps, by=prior.by)
    figures.save(figures.grid(to_pixels(x), columns=8), folder / "samples.png", prior.protocol(SHOWN))
    figures.save(figures.grid(to_pixels(model.sample(SHOWN, ev.seed, steps=0, by="langevin")), columns=8), folder / "samples-gaussian.png")
    originals = ev.test[: SHOWN // 2]
    x_hat = model.reconstruct(as_floats(originals), ev.seed, posterior.chain.steps, by=posterior.by)
    shown = originals if originals.dtype == torch.uint8 else to_pixels(originals)
    figures.save(figures.pairs(shown, to_pixels(x_hat), columns=8), folder / "reconstructions.png", posterior.protocol())


@torch.no_grad()
def energy_profile(model: LatentEBM, seed: int, steps: int, chains: int = 200) -> np.ndarray:
    """-f(z) along prior chains from where the run's own start: an array (steps + 1, chains)."""
    rng = stream(seed, "profile", model.device)
    seen: list[Tensor] = []
    chain = replace(model.config.chains.prior, steps=steps)
    model.prior.walk(model.starts(model.synthesis, chains, rng)[0], chain, rng, watch=lambda k, z: seen.append(-model.prior.f(z)))
    return torch.stack(seen).cpu().numpy()

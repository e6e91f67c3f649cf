"""run folder -> metrics.json, figures and report.html."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from lebm import checkpoint, figures, report, results
from lebm.config import Chain
from lebm.data import data_root
from lebm.data import load as load_data
from lebm.errors import CheckpointError, ConfigError
from lebm.generators.image import as_floats, to_pixels
from lebm.log import progress_bar
from lebm.log import read as read_log
from lebm.metrics.fid import Moments, frechet_distance
from lebm.metrics.reconstruction import mean_squared_error
from lebm.model import LatentEBM, load
from lebm.rng import stream
from lebm.sampler import langevin
from lebm.training import pick_device, refuse_handed_in

SHOWN = 64  # pictures in a grid
MOST_PIXELS = 1024  # beyond, the Fréchet distance of raw pixels takes minutes to hours and says little; ask for it by name


@dataclass
class Evaluation:
    """What a metric may look at."""

    model: LatentEBM
    train: Tensor
    test: Tensor
    samples: int
    seed: int
    bar: Callable[[str], Any]


def evaluate(
    run: str | Path,
    metrics: tuple[str, ...] | None = None,
    *,
    samples: int = 10_000,
    seed: int = 0,
    device: str = "auto",
    data_dir: str | Path | None = None,
    console: Console | None = None,
    pictures: bool = True,
) -> dict[str, Any]:
    """Measure a run, write metrics.json, draw its figures and report.html; returns what metrics.json holds."""
    started = time.monotonic()
    run = Path(run)
    for name in metrics or ():
        if name not in METRICS:
            raise ConfigError(f"unknown metric {name!r}; there are {', '.join(METRICS)}")
    if samples < 2:
        raise ConfigError(f"samples is {samples}; a distance needs at least 2")
    if run.is_file():
        raise CheckpointError(f"{run} is a file; evaluate takes the run folder, where it also writes what it finds")
    model = load(run, pick_device(device))
    refuse_handed_in(model.config)
    with progress_bar(console, "reading data") as update:
        splits = load_data(model.config, data_root(data_dir), update)
    ev = Evaluation(model, splits.train, splits.test, samples, seed, lambda what: progress_bar(console, what))
    values: dict[str, float] = {}
    for name in fitting(model) if metrics is None else metrics:
        values.update(METRICS[name](ev))
    step = checkpoint.load_tensors(run / "model.safetensors")[1].get("step")
    summary = results.result(
        experiment=model.config.experiment,
        metrics=values,
        protocol={
            "samples": samples,
            "reference": "all training images",
            "mse": "test images, one chain from N(0, I), noise on",
            "checkpoint": "last",
        },
        data={"name": model.config.data.name, "source": splits.source, "train": len(splits.train), "test": len(splits.test)},
        config=model.config.to_dict(),
        seed=seed,
        steps=step,
        device=results.device_name(model.device),
        seconds=round(time.monotonic() - started, 1),
    )
    results.write(run / "metrics.json", summary)
    if pictures:
        draw(run, ev)
        report.write(run)
    return summary


def frechet(ev: Evaluation) -> dict[str, float]:
    """Pixel-space Fréchet distance to the training images, of the learned prior and of N(0, I) through the same generator."""
    reference = Moments()
    for part in ev.train.split(2000):
        reference.add(as_floats(part).to(ev.model.device))
    out = {}
    for key, steps in (("frechet", None), ("frechet_gaussian", 0)):
        moments = Moments()
        with ev.bar(f"sampling for {key}") as update:
            for z in ev.model.sample_z(ev.samples, ev.seed, steps, update):
                moments.add(ev.model.decode(z))
        out[key] = frechet_distance(*moments.mean_cov(), *reference.mean_cov())
    return out


def mse(ev: Evaluation) -> dict[str, float]:
    """Reconstruction error on all test images with the training K1 and with 100 posterior steps."""
    x = as_floats(ev.test)
    out = {}
    for key, steps in (("mse", None), ("mse_100", 100)):
        with ev.bar(f"reconstructing for {key}") as update:
            z = ev.model.infer(x, ev.seed, steps, shared_noise=False, progress=update)
        out[key] = mean_squared_error(x, ev.model.decode(z).cpu())
    return out


METRICS: dict[str, Callable[[Evaluation], dict[str, float]]] = {"frechet": frechet, "mse": mse}


def fitting(model: LatentEBM) -> list[str]:
    """The metrics that say something about this model in reasonable time."""
    pixels = math.prod(model.generator.shape)  # type: ignore[arg-type]
    return [name for name in METRICS if name != "frechet" or pixels <= MOST_PIXELS]


def draw(run: Path, ev: Evaluation) -> None:
    """The pictures of a run: samples from the learned prior and from N(0, I), reconstructions, the energy along chains."""
    model, folder = ev.model, run / "figures"
    figures.save(figures.grid(to_pixels(model.sample(SHOWN, ev.seed)), columns=8), folder / "samples.png")
    figures.save(figures.grid(to_pixels(model.sample(SHOWN, ev.seed, steps=0)), columns=8), folder / "samples-gaussian.png")
    originals = ev.test[: SHOWN // 2]
    x_hat = model.reconstruct(as_floats(originals), ev.seed)
    shown = originals if originals.dtype == torch.uint8 else to_pixels(originals)
    figures.save(figures.pairs(shown, to_pixels(x_hat), columns=8), folder / "reconstructions.png")
    k0 = model.config.chains.prior.steps
    if k0:
        figures.save(figures.energy_profile(energy_profile(model, ev.seed, 2 * k0), trained=k0), folder / "energy.svg")
    rows = read_log(run / "log.jsonl")
    if rows:
        figures.save(figures.training_curves(rows), folder / "curves.svg")


@torch.no_grad()
def energy_profile(model: LatentEBM, seed: int, steps: int, chains: int = 200) -> np.ndarray:
    """-f(z) along prior chains from N(0, I): an array (steps + 1, chains)."""
    rng = stream(seed, "profile", model.device)
    seen: list[Tensor] = []
    chain = Chain(steps, model.config.chains.prior.step_size)
    langevin(model.prior.score, model.prior.draw_base(chains, rng), chain, rng, watch=lambda k, z: seen.append(-model.prior.f(z)))
    return torch.stack(seen).cpu().numpy()

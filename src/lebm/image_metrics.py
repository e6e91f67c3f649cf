"""The metrics of an image model, each a function of an evaluation: distances to real images, reconstruction error, likelihood, speed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lebm import statistics as stats
from lebm.config import Chain
from lebm.evaluation import LONG, Evaluation, Metric, Numbers
from lebm.generators.image import as_floats, to_pixels
from lebm.likelihood import bits_per_dimension, log_likelihood, log_z, proposal_in_words
from lebm.methods.ways import ALONE
from lebm.metrics.fid import Moments, frechet_distance
from lebm.metrics.inception import precision
from lebm.metrics.reconstruction import mean_squared_error
from lebm.model import CHUNK
from lebm.speed import inference, iteration_ms

FOR_FRECHET, FOR_FID, FOR_CHOOSING = 10_000, 50_000, 10_000  # samples, where the caller names no number
FOR_SPEED = 1000  # images
FOR_LIKELIHOOD = 100  # test images, where the caller names no number


def frechet(ev: Evaluation) -> Numbers:
    """Pixel-space Fréchet distance to the training images, of the learned prior and of p_0 (N(0, I), unless fitted) through the same generator."""
    gaussian, own = frechet_after(ev, 0, "langevin"), ev.drawing("prior")
    return {"frechet": frechet_after(ev, own.chain.steps, own.by), "frechet_gaussian": gaussian}


def frechet_after(ev: Evaluation, steps: int, by: str) -> float:
    """The pixel-space distance of samples after so many chain steps."""
    n = ev.samples or FOR_FRECHET
    moments = Moments()
    if "pixels" not in ev.kept:
        reference = Moments()
        for part in ev.train.split(2000):
            reference.add(as_floats(part).to(ev.model.device))
        ev.kept["pixels"] = reference.mean_cov()
    ev.protocol.update(samples=n, reference=f"{len(ev.train)} training images", **ev.model.drawing("prior", by, steps).protocol(n))
    with ev.bar("sampling for the distance") as update:
        for z in ev.model.sample_z(n, ev.seed, steps, update, by):
            moments.add(ev.model.decode(z))
    return frechet_distance(*moments.mean_cov(), *ev.kept["pixels"])


def fid(ev: Evaluation) -> Numbers:
    """Fréchet distance of Inception features, samples of the learned prior against real images."""
    own = ev.drawing("prior")
    return {"fid": fid_after(ev, own.chain.steps, own.by)}


def fid_gaussian(ev: Evaluation) -> Numbers:
    """The same with z from p_0 itself (N(0, I), unless the run fitted another), through the same generator."""
    return {"fid_gaussian": fid_after(ev, 0, "langevin")}


def fid_reconstruction(ev: Evaluation) -> Numbers:
    """The same of reconstructions: what the generator would give if the prior were what the posterior draws are. No bound on `fid`."""
    images, part = _reference(ev)
    n = min(_how_many(ev), len(images))
    images = images[torch.arange(n) * len(images) // n]  # from everywhere: a file's first images need not be like the others
    drawing = ev.drawing("posterior")
    ev.protocol.update(reconstructed=f"{n} {part} images, evenly spaced", **drawing.protocol())

    def drawn(update: Any) -> Iterator[Tensor]:
        for i, rows in enumerate(images.split(CHUNK)):
            z = ev.model.infer(as_floats(rows), ev.seed + i, drawing.chain.steps, shared_noise=False, by=drawing.by)
            yield to_pixels(ev.model.decode(z))
            update(min((i + 1) * CHUNK, len(images)), len(images))

    return {"fid_reconstruction": _fid(ev, "reconstructions", drawn)}


def fid_after(ev: Evaluation, steps: int, by: str) -> float:
    """The FID of samples after so many chain steps."""
    n = _how_many(ev)
    ev.protocol.update(samples=n, **ev.model.drawing("prior", by, steps).protocol(n))

    def drawn(update: Any) -> Iterator[Tensor]:
        for z in ev.model.sample_z(n, ev.seed, steps, update, by):
            yield to_pixels(ev.model.decode(z))

    return _fid(ev, "samples", drawn)


def _how_many(ev: Evaluation) -> int:
    return ev.samples or (FOR_CHOOSING if ev.split == "validation" else FOR_FID)


def _reference(ev: Evaluation) -> tuple[Tensor, str]:
    return (ev.test, "test") if ev.split == "test" else (ev.splits.train, "training")


def _fid(ev: Evaluation, what: str, drawn: Callable[[Any], Iterator[Tensor]]) -> float:
    """Of the drawn pixels against all real images of the split."""
    assert ev.features is not None
    images, part = _reference(ev)
    if ("statistics", part) not in ev.kept:
        with ev.bar(f"features of {len(images)} {part} images") as update:
            content = ev.content if part == "training" else None
            ev.kept["statistics", part], _ = stats.kept_statistics(images, ev.features, ev.cache, update, content)
    ev.protocol.update(
        reference=f"all {len(images)} {part} images",
        images="rounded to uint8",
        features=ev.features.name,
        precision=ev.features.precision,
    )
    with ev.bar(f"features of {what}") as update:
        return stats.statistics(drawn(update), ev.features).distance(ev.kept["statistics", part])


def mse(ev: Evaluation) -> Iterator[Numbers]:
    """Reconstruction error on all test images with the training K1 and with 100 posterior steps; one of the two where draws have no chain."""
    choosing, chain, limit = ev.split == "validation", ev.model.config.chains.posterior, ev.model.config.data.limit
    own, by = ev.model.config.draw.posterior, ev.posterior_by or ev.model.config.draw.posterior
    lengths: dict[str, int | None] = {"mse": None, "mse_100": LONG}
    if by in ALONE:
        del lengths["mse_100"]
    elif own in ALONE:
        del lengths["mse"]
    rows = (ev.held_out() if choosing else ev.test)[: ev.limit]
    learned = limit is None or limit > len(ev.splits.train) - len(ev.held_out())
    what = f"training images held out{', which this run learned from (no data.limit)' if learned else ''}" if choosing else "test images"
    start = "the encoder's proposal" if by == "warm" else "N(0, I)"
    ev.protocol.update(
        images=f"{'the last' if choosing else 'all' if len(rows) == len(ev.test) else 'the first'} {len(rows)} {what}",
        by=by,
        chain="none" if by in ALONE else f"one a row from {start}, {_said(chain)}",
        chain_steps=[],
        step_size=chain.step_size,
        precision=precision(ev.model.device),
    )
    x = as_floats(rows)
    out: Numbers = {"mse": None, "mse_100": None}
    for key, steps in lengths.items():
        with ev.bar(f"reconstructing for {key}") as update:
            z = ev.model.infer(x, ev.seed, steps, shared_noise=False, progress=update, by=by)
        out[key] = mean_squared_error(x, ev.model.decode(z).cpu())
        ev.protocol["chain_steps"] = [*ev.protocol["chain_steps"], ev.model.drawing("posterior", by, steps).chain.steps]
        yield out


def _said(chain: Chain) -> str:
    """What a chain does with its noise, and where it departs from the paper's."""
    first = f", first step sizes {', '.join(map(str, chain.first_steps))}" if chain.first_steps else ""
    bound = f", drift of a step at most {chain.bound:g}" if chain.bound else ""
    return f"noise {'off' if not chain.noise else 'on' if chain.noise == 1 else f'times {chain.noise:g}'}{first}{bound}"


def speed(ev: Evaluation) -> Numbers:
    """Milliseconds a learning iteration and an inferred image takes, the latter beside chains from N(0, I) of equal error."""
    x = as_floats((ev.held_out() if ev.split == "validation" else ev.test)[: ev.limit or FOR_SPEED])
    own = ev.drawing("posterior")
    with ev.bar("chains of equal error") as update:
        numbers, how = inference(ev.model, x, ev.seed, own.by, own.chain.steps, update)
    said: list[str] = []
    one = iteration_ms(ev.model, ev.train[: ev.model.config.training.batch], said.append)
    ev.protocol.update(how, **({"engine": "; ".join(said)} if said else {}))
    return {"iteration_ms": one, **numbers}


def likelihood(ev: Evaluation) -> Numbers:
    """Estimates of log Z and of log p(x) on test images, the latter as bits a dimension."""
    rows = (ev.held_out() if ev.split == "validation" else ev.test)[: ev.limit or FOR_LIKELIHOOD]
    with ev.bar("annealing for log Z") as update:
        z = log_z(ev.model.prior, seed=ev.seed, progress=update)
    with ev.bar("weighing posterior samples") as update:
        found = log_likelihood(ev.model, as_floats(rows), z, seed=ev.seed, progress=update)
    dimensions = math.prod(rows.shape[1:])
    ev.protocol.update(
        images=f"the first {len(rows)}",
        proposal=proposal_in_words(ev.model),
        estimate="annealed importance sampling, biased low in log Z: an estimate, no bound",
        temperatures=[z.temperatures, found.temperatures],
        walkers=[z.chains, found.particles],
        effective_walkers=[round(z.ess, 1), round(float(found.ess.median()), 1)],
    )
    out = {"log_z": z.value, "log_z_error": z.error, "log_px": found.mean, "log_px_error": found.error}
    bits = {"bits_per_dim": bits_per_dimension(found.mean, dimensions), "bits_per_dim_error": found.error / dimensions / math.log(2)}
    return {**out, **bits}


METRICS: dict[str, Metric] = {
    "frechet": frechet,
    "mse": mse,
    "fid": fid,
    "fid_gaussian": fid_gaussian,
    "fid_reconstruction": fid_reconstruction,
    "likelihood": likelihood,
    "speed": speed,
}

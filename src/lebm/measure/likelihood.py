"""log p(x) of single rows by importance weights, and the metrics that report it: of images with log Z of the prior, of
sentences beside -log p(x|z) at an inferred z and how much z says about them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lebm.core.errors import DataError
from lebm.core.progress import Progress, ignore
from lebm.core.rng import stream
from lebm.core.words import lengths
from lebm.health import shared_variance
from lebm.measure.ais import CHUNK, Density, LogZ, anneal, ladder, log_mean, log_z, pilot
from lebm.measure.metric import Evaluation, Metric, Number, Numbers, require
from lebm.measure.perplexity import real_sentences
from lebm.method import Method
from lebm.prior import log_normal
from lebm.sampler import SamplerSpec, langevin

LEAST = 100  # steps of the chains behind a proposal
ROWS, WORDS = 100, 2500  # test rows, and words in sentences, where the caller names no number


@dataclass(frozen=True)
class LogLikelihood:
    """For every row of x an estimate of log p(x) in nats, and how many of its `particles` weights count."""

    values: Tensor
    ess: Tensor
    log_z: LogZ
    particles: int
    temperatures: int

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def error(self) -> float:
        """One standard error of the mean: the spread over rows, and that of log Z, which all rows share."""
        rows = float(self.values.std()) / math.sqrt(len(self.values)) if len(self.values) > 1 else 0.0
        return math.hypot(rows, self.log_z.error)


@torch.no_grad()
def log_likelihood(
    method: Method,
    x: Any,
    log_z: LogZ,
    *,
    particles: int = 32,
    temperatures: int = 50,
    steps: int | None = None,
    seed: int = 0,
    progress: Progress = ignore,
) -> LogLikelihood:
    """Importance-weighted log p(x) of every row, for any generator.

    The proposal is a Gaussian fitted to states of `particles` posterior chains, of which the second half counts; see
    `proposal_spec`. Its draws move on to p(x, z) over `temperatures`; 1 weighs them as they are. Noise is shared
    between rows, so that a row's number does not depend on its neighbours.
    """
    if particles < 2 or temperatures < 1:
        raise DataError(
            f"log p(x) from {particles} particles over {temperatures} temperatures; "
            "give at least 2 particles and 1 temperature"
        )
    generator, spec = method.generator, proposal_spec(method, steps)
    x, batch = generator.as_input(x), max(1, CHUNK // particles)
    values, ess = [], []
    for i in range(0, len(x), batch):
        rows = generator.trim(x[i : i + batch]).to(method.device)
        value, effective = log_mean(_log_weights(method, rows, spec, particles, temperatures, seed))
        values.append(value.cpu() - log_z.value)
        ess.append(effective.cpu())
        progress(i + len(rows), len(x))
    return LogLikelihood(torch.cat(values), torch.cat(ess), log_z, particles, temperatures)


def proposal_spec(method: Method, steps: int | None = None) -> SamplerSpec:
    """The posterior chains behind a proposal: they start as the method's own do, take at least LEAST steps and have all
    their noise.
    """
    spec = method.choose("posterior")
    options = {**spec.options, "noise": 1.0} if "noise" in spec.options else spec.options
    return replace(spec, steps=max(LEAST, spec.steps) if steps is None else steps, options=options)


def bits_per_dimension(log_px: float, dimensions: int, levels: int = 256) -> float:
    """Nats of a density on [-1, 1]^d as bits a dimension of an image with so many grey levels: density times the width
    of a level.
    """
    return (math.log((levels - 1) / 2) - log_px / dimensions) / math.log(2)


# --- the weights ------------------------------------------------------------------------------------------------------


def _log_weights(
    method: Method, rows: Tensor, spec: SamplerSpec, particles: int, temperatures: int, seed: int
) -> Tensor:
    """(rows, particles) log weights with the mean p(x) Z."""
    each, generator = rows.repeat_interleave(particles, 0), method.generator

    def joint(z: Tensor) -> tuple[Tensor, Tensor]:
        flat = z.reshape(-1, z.shape[-1])
        score = method.prior_score(flat) + generator.score(each, flat)
        log_p = method.log_prior(flat) + generator.log_prob(each, flat)
        return log_p.view(len(rows), particles), score.view(z.shape)

    mean, factor = _proposal(method, joint, each, particles, spec, seed)
    rng = stream(seed, "likelihood/walk", method.device)

    def draw() -> Tensor:
        e = torch.randn(particles, mean.shape[-1], generator=rng, device=mean.device, dtype=mean.dtype)
        return mean.unsqueeze(1) + e @ factor.mT

    start, betas = partial(_gaussian, mean, factor), ladder(temperatures)
    sizes = pilot(start, joint, draw(), betas, rng) if temperatures > 1 else []
    return anneal(start, joint, draw(), betas, sizes, rng)[0]


def _proposal(
    method: Method, joint: Density, each: Tensor, particles: int, spec: SamplerSpec, seed: int
) -> tuple[Tensor, Tensor]:
    """Mean and Cholesky factor of a Gaussian for every row, fitted to the second half of its posterior chains.

    `each` has every row of x once for each of its chains. They start as the method's own chains do: steps that refine
    an encoder's proposal are too short for the distance from N(0, I).
    """
    from sklearn.covariance import ledoit_wolf

    latent = require(method, "energy-based prior and posterior chains", "chain_of", "posterior_start", "prior")
    chain, rng = latent.chain_of(spec), stream(seed, "likelihood/fit", method.device)
    states: list[Tensor] = []

    def watch(k: int, z: Tensor) -> None:
        if 2 * k >= chain.steps and (chain.steps - k) % max(1, chain.steps // 20) == 0:
            states.append(z)

    e = latent.prior.base.noise(particles, rng)
    nz = e.shape[-1]
    # Noise is shared between rows and not between the chains of a row.
    start = latent.posterior_start(e.repeat(len(each) // particles, 1), each).view(-1, particles, nz)
    langevin(lambda z: joint(z)[1], start, chain, rng, shared_noise=True, watch=watch)
    draws = torch.cat(states, 1).double().cpu()
    covariances = torch.stack([torch.from_numpy(ledoit_wolf(s.numpy())[0]) for s in draws])
    factor = torch.linalg.cholesky(covariances + 1e-8 * torch.eye(nz))
    return draws.mean(1).to(start), factor.to(start)


def _gaussian(mean: Tensor, factor: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """log N(z; mean, factor factor^T) of a (rows, particles, nz) array, and its gradient."""
    white = torch.linalg.solve_triangular(factor, (z - mean.unsqueeze(1)).mT, upper=False)
    score = -torch.linalg.solve_triangular(factor.mT, white, upper=True).mT
    return log_normal(white.mT) - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True), score


# --- the metric -------------------------------------------------------------------------------------------------------


def estimate(ev: Evaluation, rows: Tensor) -> LogLikelihood:
    """log p(x) of the rows, with what the protocol says of it."""
    method = require(ev.method, "energy-based prior (log Z)", "prior")
    with ev.reporter.progress("annealing for log Z") as update:
        z = log_z(method.prior, seed=ev.seed, progress=update)
    x = method.generator.from_storage(rows)
    with ev.reporter.progress("weighing posterior samples") as update:
        weighed = log_likelihood(method, x, z, seed=ev.seed, progress=update)
    ev.protocol.update(
        proposal=proposal_spec(method).to_dict(),
        estimate=f"the first {len(rows)}; annealed importance sampling, biased low in log Z: an estimate, no bound",
        temperatures=[z.temperatures, weighed.temperatures],
        particles=[z.chains, weighed.particles],
        effective_particles=[round(z.ess, 1), round(float(weighed.ess.median()), 1)],
    )
    return weighed


def measure(ev: Evaluation) -> Numbers:
    rows = ev.unseen(ROWS)
    px, dimensions = estimate(ev, rows), rows[0].numel()
    ev.protocol["sampler"] = ev.protocol["proposal"]
    return {
        "log_z": px.log_z.value,
        "log_z_error": px.log_z.error,
        "log_px": px.mean,
        "log_px_error": px.error,
        "bits_per_dim": bits_per_dimension(px.mean, dimensions),
        "bits_per_dim_error": px.error / dimensions / math.log(2),
    }


LIKELIHOOD = Metric(
    "likelihood", "Likelihood, an estimate", None,
    "Estimates of log Z of the prior and of log p(x) of test images, the latter also as bits a dimension.",
    measure=measure, modalities=("image",), gives=(
        Number("log_z", "log Z, an estimate", None, "Of the prior, by annealed importance sampling; biased low."),
        Number("log_px", "log p(x), an estimate", False, "Nats an image, the mean over test images; no bound."),
        Number("bits_per_dim", "Bits per dimension, an estimate", True,
               "Of test images, from log p(x) by importance sampling, for 8-bit levels."),
    ),
)  # fmt: skip


# --- of sentences -----------------------------------------------------------------------------------------------------


def measure_text(ev: Evaluation) -> Iterator[Numbers]:
    """The estimate takes longer and comes second. Nats a sentence."""
    method, (x, what) = ev.method, real_sentences(ev)
    x, spec = x[: ev.limit], ev.spec("posterior")
    draws = []
    for i, doing in enumerate(("inferring", "inferring once more")):  # the second is for the count of active units
        with ev.reporter.progress(doing) as update:
            draws.append(method.encode(x, ev.seed + 1000 * i, spec, shared_noise=False, progress=update))
    ev.protocol.update(sentences=f"{'the first' if ev.limit else 'all'} {len(x)} {what}", sampler=spec.to_dict())
    reconstruction = float(method.nll(x, draws[0]).double().mean())
    shared = shared_variance(*(z.double() for z in draws))
    yield {"nll_reconstruction": reconstruction, "active_units": None, "z_information": None, **shared}
    few = ev.limit or max(1, min(ROWS, int((lengths(x).cumsum(0) <= WORDS).sum())))
    px = estimate(ev, x[:few])
    yield {"nll_estimate": -px.mean, "nll_estimate_error": px.error}


NLL = Metric(
    "nll", "Negative log likelihood", True,
    "-log p(x|z) of test sentences at an inferred z, an estimate of -log p(x), and what z says about a sentence.",
    "posterior", measure=measure_text, modalities=("text",), gives=(
        Number("nll_reconstruction", "NLL, reconstruction", True,
               "-log p(x|z) in nats a test sentence, at an inferred z.", "posterior"),
        Number("nll_estimate", "NLL, an estimate", True,
               "-log p(x) in nats a test sentence, by importance sampling; no bound."),
        Number("active_units", "Active units of z", None, "Coordinates whose posterior mean varies with the sentence."),
        Number("z_information", "Information in z", None, "Nats about a sentence, were everything Gaussian."),
    ),
)  # fmt: skip

"""Does the generator use z? One that reads its own words can do without, and then the prior has nothing to explain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lebm.learn import Step
from lebm.model import LatentEBM
from lebm.words import PAD

ROWS = 500  # sentences behind the count of active units
LEAST = 0.01  # variance of E[z|x] over x from which a unit counts as active (Burda et al. 2016)
SHARE = 0.005  # of the likelihood: below, z explains next to nothing
SETTLED = 500  # updates before which nothing is said


def watched(model: LatentEBM) -> bool:
    return bool(getattr(model.generator, "autoregressive", False))


@torch.no_grad()
def explained(model: LatentEBM, step: Step, x: Tensor) -> dict[str, float]:
    """What a log row says: nats a word, and what the likelihood loses when sentences trade their z with a neighbour."""
    if len(x) < 2:  # no neighbour
        return {}
    log_prob = model.generator.log_prob
    own, other = (log_prob(x, z).double().mean() for z in (step.z_pos, step.z_pos.roll(1, 0)))  # type: ignore[operator]
    words = (x != PAD).sum() / len(x)
    nll, gain, share = torch.stack([-own / words, own - other, (own - other) / other.abs()]).tolist()
    return {"nll_word": nll, "z_gain": gain, "z_share": share}


@torch.no_grad()
def active_units(model: LatentEBM, rows: Tensor) -> dict[str, float]:
    """From two independent posterior draws z, z' of each sentence, whose covariance over sentences is the variance of E[z|x].

    `active_units` have more of it than LEAST and than three standard errors; `z_information` is what all units tell about x in nats,
    were everything Gaussian: -1/2 log(1 - rho) a unit, with rho the correlation of z and z'.
    """
    a, b = (model.infer(rows[:ROWS], seed, shared_noise=False).double() for seed in (0, 1))
    return shared_variance(a, b)


def shared_variance(a: Tensor, b: Tensor) -> dict[str, float]:
    n = len(a)
    if n < 2:
        return {}
    covariance = ((a - a.mean(0)) * (b - b.mean(0))).sum(0) / (n - 1)
    spread = (a.var(0) * b.var(0)).sqrt()
    active = covariance > (3 * spread / n**0.5).clamp_min(LEAST)
    rho = (covariance / spread.clamp_min(1e-12)).clamp(0, 1 - 1e-6)
    return {"active_units": float(active.sum()), "z_information": float(-0.5 * torch.log1p(-torch.where(active, rho, 0.0)).sum())}


def warnings(row: Mapping[str, Any]) -> Iterator[str]:
    """Said once, in words."""
    if row["step"] < SETTLED:
        return
    if row.get("z_share", 1.0) < SHARE:
        yield (
            f"the posterior has collapsed: with another sentence's z the likelihood loses {row['z_gain']:.2g} nats ({row['z_share']:.2%}), so the "
            "generator hardly uses z; raise generator.word_dropout or chains.posterior.steps, or lower learning.prior_rate or generator.hidden"
        )
    elif row.get("active_units", 1.0) == 0:
        yield "no unit of z is active: the posterior is the same for every sentence; raise generator.word_dropout or chains.posterior.steps"

"""Is a run healthy? Numbers that have left all reason, chains and networks that stand still, a generator that does without z."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lebm.config import Chains, Config
from lebm.learn import Step
from lebm.model import LatentEBM
from lebm.sampler import step_size
from lebm.words import PAD

# Beyond these a run no longer learns anything. The paper's runs stay below |f| = 1000 and mean z^2 = 20.
MAX_ENERGY, MAX_SQUARE, MAX_WEIGHT, MAX_LOG_Q = 1e6, 1e4, 1e5, 1e8
# Root mean square displacement a coordinate under which a chain is called frozen (the paper's move by 0.4 and more),
# and spread over the batch under which it has collapsed to a point.
FROZEN, COLLAPSED = 0.02, 0.02
BLIND = 0.1  # spread of an encoder's means over that of its draws; one of images that has learned nothing has .07, others soon 1 and more
NARROW, SETTLED = 0.2, 500  # a flow so much narrower than the posterior has lost most of it; networks are judged after so many updates
AWAY = 3.0  # standard deviations of the encoder; a chain that only refines moves by about 1.5
FAR = 2.0  # times the mean square of posterior draws; where those have all their noise, healthy runs stay below 1.3
REACH = 1.0  # K0 s^2 / 2: energies over a fitted p_0 were led away with .3 and .5 (one with 1.6), held with 1.2 and 4.8: a hint
APART = 30.0  # nats between f at posterior and at prior draws; healthy runs stay below 20
ROWS = 500  # sentences behind the count of active units
LEAST = 0.01  # variance of E[z|x] over x from which a unit counts as active (Burda et al. 2016)
SHARE = 0.005  # of the likelihood: below, z explains next to nothing


# Where these numbers run away, what to lower, what to set instead, and what else there is to say. A run is told what it has: see advice().
STEP = "chains.posterior.step_size"
LOWER = {
    "f": ("learning.prior_rate",),
    "z_neg": ("chains.prior.step_size", "learning.flow_rate", "learning.prior_rate"),
    "z_pos": (f"{STEP} or first_steps", "learning.encoder_rate", "learning.generator_rate", "learning.prior_rate"),
    "log_px": ("learning.generator_rate", STEP, "learning.encoder_rate"),
    "encoder": ("learning.encoder_rate", "learning.prior_rate"),
    "flow": ("learning.flow_rate", "learning.prior_rate"),
}
ENERGY, BOUND = "learning.clip or learning.l2", "learning.clip or chains.posterior.bound"
SET = {"f": ENERGY, "z_neg": ENERGY, "z_pos": BOUND, "log_px": "learning.clip", "encoder": BOUND, "flow": ENERGY}
BESIDES = {
    "z_pos": "; of images, raise generator.sigma",
    "log_px": "; of images, raise generator.sigma",
    "flow": "; flow and energy play against each other",
}


def advice(about: str, config: Config, chains: Chains) -> str:
    """A part of a sentence that names only chains and networks which this run has."""
    flow, encoder = config.draw.flow, config.draw.encoder
    if about == "z_neg" and not (flow or chains.prior.steps):
        about = "z_pos"  # draws of p_0 run away where the posterior draws do to which it is fitted
    there = {
        "chains.prior.step_size": chains.prior.steps,
        STEP: chains.posterior.steps,
        "learning.encoder_rate": encoder,
        "learning.flow_rate": flow,
        "learning.prior_rate": config.prior.kind == "energy",
    }
    *most, last = [key for key in LOWER[about] if there.get(key.split()[0], True)] or LOWER[about]
    return f"lower {', '.join(most)}{' or ' * bool(most)}{last}, or set {SET[about]}{BESIDES.get(about, '')}"


def diverged(row: Mapping[str, Any], config: Config) -> str | None:
    """What is wrong with the numbers of a log row, with advice; None when they are sane."""
    for key, limit, hint in (  # chains first: where they run away, the energies follow
        ("z_sq_neg", MAX_SQUARE, "z_neg"),
        ("z_sq_pos", MAX_SQUARE, "z_pos"),
        ("f_pos", MAX_ENERGY, "f"),
        ("f_neg", MAX_ENERGY, "f"),
        ("log_px", math.inf, "log_px"),
        ("grad_prior", math.inf, "f"),
        ("grad_generator", math.inf, "log_px"),
        ("log_q_pos", MAX_LOG_Q, "encoder"),
        ("grad_encoder", math.inf, "encoder"),
        ("log_q_neg", MAX_LOG_Q, "flow"),
        ("grad_flow", math.inf, "flow"),
    ):
        if key not in row:  # a run without that network
            continue
        value = row[key]
        if not math.isfinite(value) or abs(value) > limit:
            return f"{key} is {value:.4g}; {advice(hint, config, config.chains_at(row['step'] - 1))}"
    return None


def short(config: Config) -> str | None:
    """Prior chains too short for an energy over a p_0 that follows posterior draws, while no posterior chain holds those (docs/method.md)."""
    chain, draw = config.chains.prior, config.draw
    alone = draw.posterior == "amortised" or draw.alone
    if not (alone and chain.steps) or draw.prior != "langevin" or config.prior.kind != "energy" or config.prior.base == "standard":
        return None
    reach = sum(step_size(chain, k) ** 2 for k in range(chain.steps)) / 2
    if reach >= REACH:
        return None
    return (
        f"prior chains of {chain.steps} steps have a reach (K0 s^2 / 2) of {reach:.2g}; under {REACH:g} the energy may run away while the encoder learns alone, "
        "and p_0 with it: raise chains.prior.steps, or lower learning.prior_rate"
    )


def exploded(weights: Mapping[str, float]) -> str | None:
    """The same for the largest weight of each network: a saturated generator gives finite numbers and learns nothing."""
    for net, value in weights.items():
        if not value <= MAX_WEIGHT:
            return f"the largest weight of the {net} is {value:.4g}; lower learning.{net}_rate, or set learning.clip"
    return None


def frozen(row: Mapping[str, Any], chains: Chains, batch: int) -> Iterator[str]:
    """Chains that do not move, chains or networks that have collapsed: learning goes on, but its samples mean little."""
    for name, kind, net in (("neg", "prior", "flow"), ("pos", "posterior", "encoder")):
        steps = getattr(chains, kind).steps
        if steps and row[f"disp_{name}"] < FROZEN:
            yield f"the {kind} chain is frozen: it moves by {row[f'disp_{name}']:.2g} a coordinate; raise chains.{kind}.step_size or .steps"
        if row[f"z_spread_{name}"] < COLLAPSED and batch > 1:
            or_else = f" or chains.{kind}.step_size" if steps else f" or learning.{net}_rate" * (f"log_q_{name}" in row)
            yield f"the {kind} samples have collapsed: their spread is {row[f'z_spread_{name}']:.2g}; lower learning.prior_rate{or_else}"
    if row["step"] < SETTLED:
        return
    if abs(row["gap"]) > APART:
        follow = ["give the prior more steps"] * bool(chains.prior.steps) + ["raise learning.flow_rate"] * ("log_q_neg" in row)
        yield (
            f"the prior's draws do not keep up with its energy: f differs by {row['gap']:+.3g} between posterior and prior draws; "
            f"lower learning.prior_rate, set learning.l2, or {' or '.join(follow) or 'give the prior a chain (chains.prior.steps)'}"
        )
    if batch == 1:
        return
    if chains.posterior.noise == 1 and row["z_sq_neg"] > FAR * row["z_sq_pos"]:
        yield (
            f"the prior's draws lie much farther out than those of the posterior: their mean squares are {row['z_sq_neg']:.3g} and {row['z_sq_pos']:.3g}; "
            "lower learning.prior_rate, or of a fitted p_0 prior.memory"
        )
    if chains.posterior.steps and row["disp_pos"] > AWAY * row.get("q_std_pos", math.inf):
        yield (
            f"the posterior chain does not stay with the encoder: it moves by {row['disp_pos']:.2g} a coordinate, and the encoder is sure of z to "
            f"{row['q_std_pos']:.2g}; lower chains.posterior.step_size, which may be too large for so narrow a posterior, or raise learning.encoder_rate"
        )
    blind = 0.0 if "z_share" in row else BLIND  # of a text more is known: see collapsed()
    if row.get("q_spread_pos", math.inf) < max(COLLAPSED, blind * row.get("q_std_pos", 0.0)):
        yield (
            f"the encoder has collapsed: it proposes nearly the same z for every x (its means spread by {row['q_spread_pos']:.2g}, its draws of one x by "
            f"{row['q_std_pos']:.2g}); raise learning.encoder_rate, or draw the posterior by warm with more steps; of images lower generator.sigma, of text "
            "raise generator.word_dropout"
        )
    if row.get("q_spread_neg", math.inf) < max(COLLAPSED, NARROW * row["z_spread_pos"]):
        yield (
            f"the flow has collapsed: its z spread by {row['q_spread_neg']:.2g}, those of the posterior by {row['z_spread_pos']:.2g}; "
            "lower learning.prior_rate, raise learning.flow_rate, or draw the prior by warm or persistent"
        )


# --- does a generator of words use z? One that reads its own words can do without, and then the prior has nothing to explain ----------


def reads_words(model: LatentEBM) -> bool:
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


def collapsed(row: Mapping[str, Any], chains: Chains) -> Iterator[str]:
    """The same of a text generator that does without z."""
    if row["step"] < SETTLED:
        return
    remedy = f"raise generator.word_dropout or {'chains.posterior.steps' if chains.posterior.steps else 'learning.encoder_rate'}"
    if row.get("z_share", 1.0) < SHARE:
        yield (
            f"the posterior has collapsed: with another sentence's z the likelihood loses {row['z_gain']:.2g} nats ({row['z_share']:.2%}), so the "
            f"generator hardly uses z; {remedy}, or lower learning.prior_rate or generator.hidden"
        )
    elif row.get("active_units", 1.0) == 0:
        yield f"no unit of z is active: the posterior is the same for every sentence; {remedy}"

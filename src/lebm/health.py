"""What healthy learning of LatentEBM looks like: the numbers of the log, and the checks that read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lebm.method import Check
from lebm.start import Rule

if TYPE_CHECKING:
    from lebm.latent_ebm import Iteration, LatentEBM

Row = Mapping[str, Any]

# Beyond these a run no longer learns anything. The paper's runs stay below |f| = 1000 and mean z^2 = 20.
MAX_ENERGY, MAX_SQUARE, MAX_LOG_Q = 1e6, 1e4, 1e8
# The root mean square displacement a coordinate under which a chain is called frozen (the paper's chains move by 0.4
# and more), and the spread over the batch under which z has collapsed to a point.
FROZEN, COLLAPSED = 0.02, 0.02
SETTLED = 500  # networks are judged after so many updates
FAR = 2.0  # times the mean square of posterior draws; where those have all their noise, healthy runs stay below 1.3
# The reach of prior chains over a base that follows posterior draws: energies ran away with .3 and .5 (and one with
# 1.6), and did not with 1.2 and 4.8, so this is a hint.
REACH = 1.0
APART = 30.0  # nats between f at posterior and at prior draws; healthy runs stay below 20
SHARE = 0.005  # of the log likelihood: below, z explains next to nothing of a text
LEAST = 0.01  # the variance of E[z|x] over x from which a unit counts as active (Burda et al. 2016)


def scalars(method: LatentEBM, it: Iteration) -> dict[str, Tensor]:
    """What a log row shows of the last update."""
    values = {"f_pos": it.f_pos, "f_neg": it.f_neg, "gap": it.f_pos - it.f_neg, "log_px": it.log_px}
    values |= method.generator.scalars(it.x, it.pos.z)
    values |= {f"{k}_pos": v for k, v in method.posterior_start.scalars(it.pos).items()}
    values |= {f"{k}_neg": v for k, v in method.prior_start.scalars(method.neg_white()).items()}
    for name, draws in (("neg", it.neg), ("pos", it.pos)):
        values[f"disp_{name}"] = (draws.z - draws.z0).square().mean().sqrt()  # root mean square a coordinate
        values[f"z_mean_{name}"] = draws.z.mean()
        values[f"z_sq_{name}"] = draws.z.square().mean()
        values[f"z_spread_{name}"] = draws.z.std(0, correction=0).mean()
    return values


def checks(method: LatentEBM) -> list[Check]:
    """What is looked for in every log row: first what ends learning, then what a person should know."""
    rules = {**RULES, **method.posterior_start.rules, **method.prior_start.rules}
    return [
        *(Check(f"diverged_{key}", partial(_diverged, method, key), fatal=True) for key in DIVERGED),
        *(Check(name, partial(_test, method, *rule)) for name, rule in rules.items()),
        Check("short_reach", lambda row: short_reach(method, without_chain=not method.posterior_chain.steps)),
    ]


# --- divergence -----------------------------------------------------------------------------------------------------

CHAINS = ("prior_chain", "posterior_chain")
LOWER = {chain: f"method.{chain}.step_size" for chain in CHAINS}
LOWER |= {name: f"optimizers.{name}.rate" for name in ("prior", "generator", "encoder", "flow")}
CLIP, L2, DRIFT = "training.clip", " or method.energy.l2", " or method.posterior_chain.drift_limit"
SIGMA, GAME = "; of images, raise generator.sigma", "; flow and energy play against each other"
# A number of the log: its limit, what to lower of what the method has (keys of LOWER), and what to set. The chains come
# first, because where they run away the energies follow.
DIVERGED = {
    "z_sq_neg": (MAX_SQUARE, "prior_chain flow prior", CLIP + L2),
    "z_sq_pos": (MAX_SQUARE, "posterior_chain encoder generator prior", CLIP + DRIFT + SIGMA),
    "f_pos": (MAX_ENERGY, "prior", CLIP + L2),
    "f_neg": (MAX_ENERGY, "prior", CLIP + L2),
    "log_px": (math.inf, "posterior_chain generator encoder", CLIP + SIGMA),
    "grad_prior": (math.inf, "prior", CLIP + L2),
    "grad_generator": (math.inf, "generator", CLIP + SIGMA),
    "log_q_pos": (MAX_LOG_Q, "encoder prior", CLIP + DRIFT),
    "grad_encoder": (math.inf, "encoder prior", CLIP + DRIFT),
    "log_q_neg": (MAX_LOG_Q, "flow prior", CLIP + L2 + GAME),
    "grad_flow": (math.inf, "flow prior", CLIP + L2 + GAME),
}


def _diverged(method: LatentEBM, key: str, row: Row) -> str | None:
    value, (limit, names, remedy) = row.get(key, 0.0), DIVERGED[key]
    if math.isfinite(value) and abs(value) <= limit:
        return None
    there = {*method.networks(), *(chain for chain in CHAINS if getattr(method, chain).steps)}
    if key == "z_sq_neg" and not there & {"flow", "prior_chain"}:
        _, names, remedy = DIVERGED["z_sq_pos"]  # the base runs away where the draws do to which it is fitted
    *most, last = [LOWER[name] for name in names.split() if name in there] or [LOWER["prior"]]
    return f"{key} is {value:.4g}; lower {', '.join(most)}{' or ' * bool(most)}{last}, or set {remedy}"


# --- chains and networks that mean little ---------------------------------------------------------------------------


class _Numbers(dict[str, Any]):
    """A log row in which a number that is not there is NaN, of which no comparison is true."""

    def __missing__(self, key: str) -> float:
        return math.nan

    @property
    def spreads(self) -> bool:
        """Whether the batch has several rows, whose spread says something."""
        return self.get("batch", 2) > 1

    @property
    def settled(self) -> bool:
        """Whether the networks have learned for a while."""
        return self["step"] >= SETTLED

    @property
    def judged(self) -> bool:
        return self.settled and self.spreads


# A check of a method m and a log row r: when it fires, and its sentence with numbers of the row and words of `_advice`.
# Starts add their own.
RULES: dict[str, Rule] = {
    "prior_chain_frozen": (
        lambda m, r: m.prior_chain.steps and r["disp_neg"] < FROZEN,
        "the prior chain is frozen: it moves by {disp_neg:.2g} a coordinate; raise method.prior_chain.step_size or "
        "method.prior_chain.steps",
    ),
    "posterior_chain_frozen": (
        lambda m, r: m.posterior_chain.steps and r["disp_pos"] < FROZEN,
        "the posterior chain is frozen: it moves by {disp_pos:.2g} a coordinate; raise "
        "method.posterior_chain.step_size or method.posterior_chain.steps",
    ),
    "prior_collapsed": (
        lambda m, r: r.spreads and r["z_spread_neg"] < COLLAPSED,
        "the prior samples have collapsed: their spread is {z_spread_neg:.2g}; lower optimizers.prior.rate{or_prior}",
    ),
    "posterior_collapsed": (
        lambda m, r: r.spreads and r["z_spread_pos"] < COLLAPSED,
        "the posterior samples have collapsed: their spread is {z_spread_pos:.2g}; lower "
        "optimizers.prior.rate{or_posterior}",
    ),
    "energy_apart": (
        lambda m, r: r.settled and abs(r["gap"]) > APART,
        "the prior's draws do not keep up with its energy: f differs by {gap:+.3g} between posterior and prior draws; "
        "lower optimizers.prior.rate, set method.energy.l2, or {pace}",
    ),
    "prior_far_out": (
        lambda m, r: r.judged and m.posterior_chain.noise_scale == 1 and r["z_sq_neg"] > FAR * r["z_sq_pos"],
        "the prior's draws lie much farther out than those of the posterior: their mean squares are {z_sq_neg:.3g} and "
        "{z_sq_pos:.3g}; lower optimizers.prior.rate, or of a base that follows, method.base.memory",
    ),
    # A text generator reads its own words and could do without z; then the prior has nothing to explain.
    "z_unused": (lambda m, r: r.settled and (r["z_share"] < SHARE or r["active_units"] == 0), "{unused}"),
    "base_lost": (
        lambda m, r: not m.prior.base.follows(),
        "the base stays where it is: the covariance of the posterior draws has no root; lower optimizers.prior.rate "
        "and look at z_sq_pos in the log",
    ),
}


def _test(method: LatentEBM, fires: Callable[[Any, _Numbers], Any], sentence: str, row: Row) -> str | None:
    r = _Numbers(row)
    return sentence.format_map({**r, **_advice(method, r)}) if fires(method, r) else None


def _advice(method: LatentEBM, r: _Numbers) -> dict[str, str]:
    """The words of sentences that depend on the chains and networks of the method."""
    prior, posterior = method.prior_chain.steps, method.posterior_chain.steps
    flow, encoder = "log_q_neg" in r, "log_q_pos" in r
    pace = ["give the prior more steps"] * bool(prior) + [f"raise {LOWER['flow']}"] * flow
    read = f"raise generator.word_dropout or {'method.posterior_chain.steps' if posterior else LOWER['encoder']}"
    unused = f"no unit of z is active: the posterior is the same for every sentence; {read}"
    if r["z_share"] < SHARE:
        unused = (
            f"the posterior has collapsed: with another sentence's z the likelihood loses {r['z_gain']:.2g} nats "
            f"({r['z_share']:.2%}), so the generator hardly uses z; {read}, or lower {LOWER['prior']} or "
            "generator.hidden"
        )
    return {
        "pace": " or ".join(pace) or "give the prior a chain (method.prior_chain.steps)",
        "or_prior": f" or {LOWER['prior_chain']}" if prior else f" or {LOWER['flow']}" * flow,
        "or_posterior": f" or {LOWER['posterior_chain']}" if posterior else f" or {LOWER['encoder']}" * encoder,
        "unused": unused,
    }


def short_reach(method: LatentEBM, without_chain: bool) -> str | None:
    """A note before learning begins: prior chains too short for an energy over a base that follows posterior draws,
    while no posterior chain holds those (`without_chain`)."""
    chain, base = method.prior_chain, method.prior.base
    alone = without_chain and chain.steps and method.prior_start.name == "noise"
    if not (alone and base.refit_every and method.prior.energy) or chain.reach >= REACH:
        return None
    return (
        f"prior chains of {chain.steps} steps have a reach (K0 s^2 / 2) of {chain.reach:.2g}; under {REACH:g} the "
        "energy may run away while the encoder learns alone, and the base with it: raise method.prior_chain.steps, or "
        "lower optimizers.prior.rate"
    )


@torch.no_grad()
def shared_variance(a: Tensor, b: Tensor) -> dict[str, float]:
    """From two independent posterior draws a, b of every row, whose covariance over rows is the variance of E[z|x].

    `active_units` have more of it than LEAST and than three standard errors. `z_information` is what all units say
    about x in nats if everything is Gaussian: -1/2 log(1 - rho) a unit, with rho the correlation of a and b."""
    n = len(a)
    if n < 2:
        return {}
    covariance = ((a - a.mean(0)) * (b - b.mean(0))).sum(0) / (n - 1)
    spread = (a.var(0) * b.var(0)).sqrt()
    active = covariance > (3 * spread / n**0.5).clamp_min(LEAST)
    rho = (covariance / spread.clamp_min(1e-12)).clamp(0, 1 - 1e-6)
    information = float(-0.5 * torch.log1p(-torch.where(active, rho, 0.0)).sum())
    return {"active_units": float(active.sum()), "z_information": information}

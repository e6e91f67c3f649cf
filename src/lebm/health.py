"""What healthy learning of LatentEBM looks like: the numbers of the log, and the checks that read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lebm.method import Check

if TYPE_CHECKING:
    from lebm.latent_ebm import Iteration, LatentEBM

Row = Mapping[str, Any]

# Beyond these a run no longer learns anything. The paper's runs stay below |f| = 1000 and mean z^2 = 20.
MAX_ENERGY, MAX_SQUARE, MAX_LOG_Q = 1e6, 1e4, 1e8
# The root mean square displacement a coordinate under which a chain is called frozen (the paper's chains move by 0.4
# and more), and the spread over the batch under which z has collapsed to a point.
FROZEN, COLLAPSED = 0.02, 0.02
# The spread of an encoder's means over that of its draws. One of images that has learned nothing has .07, others soon 1
# and more.
BLIND = 0.1
NARROW, SETTLED = (
    0.2,
    500,
)  # a flow so much narrower than the posterior has lost most of it; networks are judged after so many updates
AWAY = 3.0  # standard deviations of the encoder; a chain that only refines moves by about 1.5
FAR = 2.0  # times the mean square of posterior draws; where those have all their noise, healthy runs stay below 1.3
# The reach of prior chains over a base that follows posterior draws: energies ran away with .3 and .5 (and one with
# 1.6), and did not with 1.2 and 4.8, so this is a hint.
REACH = 1.0
APART = 30.0  # nats between f at posterior and at prior draws; healthy runs stay below 20
SHARE = 0.005  # of the log likelihood: below, z explains next to nothing of a text
LEAST = 0.01  # the variance of E[z|x] over x from which a unit counts as active (Burda et al. 2016)

PRIOR, POSTERIOR = "method.prior_chain", "method.posterior_chain"
RATES = {name: f"optimizers.{name}.rate" for name in ("prior", "generator", "encoder", "flow")}
LIMIT_ENERGY = "training.clip or method.energy.l2"
LIMIT_DRIFT = f"training.clip or {POSTERIOR}.drift_limit"
SIGMA = "; of images, raise generator.sigma"


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
    return [
        *_divergence(method),
        Check("prior_chain_frozen", lambda row: _frozen(method, row, "prior")),
        Check("posterior_chain_frozen", lambda row: _frozen(method, row, "posterior")),
        Check("prior_collapsed", lambda row: _collapsed(method, row, "prior")),
        Check("posterior_collapsed", lambda row: _collapsed(method, row, "posterior")),
        Check("energy_apart", lambda row: _apart(method, row)),
        Check("prior_far_out", lambda row: _far_out(method, row)),
        Check("encoder_left", lambda row: _encoder_left(method, row)),
        Check("encoder_collapsed", _encoder_collapsed),
        Check("flow_collapsed", _flow_collapsed),
        Check("z_unused", lambda row: _z_unused(method, row)),
        Check("base_lost", lambda row: _base_lost(method)),
        Check("short_reach", lambda row: short_reach(method, without_chain=not method.posterior_chain.steps)),
    ]


# --- divergence -----------------------------------------------------------------------------------------------------


def _divergence(method: LatentEBM) -> list[Check]:
    limits = {
        "z_sq_neg": MAX_SQUARE,  # chains first: where they run away, the energies follow
        "z_sq_pos": MAX_SQUARE,
        "f_pos": MAX_ENERGY,
        "f_neg": MAX_ENERGY,
        "log_px": math.inf,
        "grad_prior": math.inf,
        "grad_generator": math.inf,
        "log_q_pos": MAX_LOG_Q,
        "grad_encoder": math.inf,
        "log_q_neg": MAX_LOG_Q,
        "grad_flow": math.inf,
    }

    def check(key: str, limit: float) -> Check:
        def test(row: Row) -> str | None:
            value = row.get(key, 0.0)
            if math.isfinite(value) and abs(value) <= limit:
                return None
            return f"{key} is {value:.4g}; {_advice(method, key)}"

        return Check(f"diverged_{key}", test, fatal=True)

    return [check(key, limit) for key, limit in limits.items()]


def _advice(method: LatentEBM, key: str) -> str:
    """What to lower or to set, of the chains and networks that this method has."""
    networks, steps = method.networks(), {PRIOR: method.prior_chain.steps, POSTERIOR: method.posterior_chain.steps}
    if key == "z_sq_neg" and not ("flow" in networks or steps[PRIOR]):
        key = "z_sq_pos"  # draws of the base run away where the posterior draws do to which it is fitted
    chain = {
        "z_sq_neg": [f"{PRIOR}.step_size"],
        "z_sq_pos": [f"{POSTERIOR}.step_size"],
        "log_px": [f"{POSTERIOR}.step_size"],
    }
    names, limit, also = {
        "z_sq_neg": (["flow", "prior"], LIMIT_ENERGY, ""),
        "z_sq_pos": (["encoder", "generator", "prior"], LIMIT_DRIFT, SIGMA),
        "log_px": (["generator", "encoder"], "training.clip", SIGMA),
        "grad_generator": (["generator"], "training.clip", SIGMA),
        "log_q_pos": (["encoder", "prior"], LIMIT_DRIFT, ""),
        "grad_encoder": (["encoder", "prior"], LIMIT_DRIFT, ""),
        "log_q_neg": (["flow", "prior"], LIMIT_ENERGY, "; flow and energy play against each other"),
        "grad_flow": (["flow", "prior"], LIMIT_ENERGY, "; flow and energy play against each other"),
    }.get(key, (["prior"], LIMIT_ENERGY, ""))
    keys = [k for k in chain.get(key, []) if steps[k.rsplit(".", 1)[0]]] + [RATES[n] for n in names if n in networks]
    *most, last = keys or [RATES[names[0]]]
    return f"lower {', '.join(most)}{' or ' * bool(most)}{last}, or set {limit}{also}"


# --- chains and networks that mean little ---------------------------------------------------------------------------


def _chain(method: LatentEBM, target: str) -> tuple[str, str, str, int]:
    """The name of the draws in the log, of the start's network, and of the chain in the configuration, and its
    steps."""
    if target == "prior":
        return "neg", "flow", PRIOR, method.prior_chain.steps
    return "pos", "encoder", POSTERIOR, method.posterior_chain.steps


def _frozen(method: LatentEBM, row: Row, target: str) -> str | None:
    name, _, key, steps = _chain(method, target)
    if not steps or row.get(f"disp_{name}", 1.0) >= FROZEN:
        return None
    return (
        f"the {target} chain is frozen: it moves by {row[f'disp_{name}']:.2g} a coordinate; raise {key}.step_size or "
        f"{key}.steps"
    )


def _collapsed(method: LatentEBM, row: Row, target: str) -> str | None:
    name, network, key, steps = _chain(method, target)
    if row.get("batch", 2) == 1 or row.get(f"z_spread_{name}", 1.0) >= COLLAPSED:
        return None
    also = f" or {key}.step_size" if steps else f" or {RATES[network]}" * (f"log_q_{name}" in row)
    return (
        f"the {target} samples have collapsed: their spread is {row[f'z_spread_{name}']:.2g}; lower "
        f"{RATES['prior']}{also}"
    )


def _settled(row: Row) -> bool:
    return row["step"] >= SETTLED


def _apart(method: LatentEBM, row: Row) -> str | None:
    if not _settled(row) or abs(row.get("gap", 0.0)) <= APART:
        return None
    remedies = ["give the prior more steps"] * bool(method.prior_chain.steps) + [f"raise {RATES['flow']}"] * (
        "log_q_neg" in row
    )
    return (
        f"the prior's draws do not keep up with its energy: f differs by {row['gap']:+.3g} between posterior and "
        "prior draws; "
        f"lower {RATES['prior']}, set method.energy.l2, or "
        f"{' or '.join(remedies) or f'give the prior a chain ({PRIOR}.steps)'}"
    )


def _far_out(method: LatentEBM, row: Row) -> str | None:
    if not _settled(row) or row.get("batch", 2) == 1 or method.posterior_chain.noise_scale != 1:
        return None
    if row.get("z_sq_neg", 0.0) <= FAR * row.get("z_sq_pos", math.inf):
        return None
    return (
        "the prior's draws lie much farther out than those of the posterior: their mean squares are "
        f"{row['z_sq_neg']:.3g} and {row['z_sq_pos']:.3g}; lower {RATES['prior']}, or of a base that follows, "
        "method.base.memory"
    )


def _encoder_left(method: LatentEBM, row: Row) -> str | None:
    if not _settled(row) or not method.posterior_chain.steps or row.get("batch", 2) == 1:
        return None
    if row.get("disp_pos", 0.0) <= AWAY * row.get("q_std_pos", math.inf):
        return None
    return (
        f"the posterior chain does not stay with the encoder: it moves by {row['disp_pos']:.2g} a coordinate, and the "
        "encoder's "
        f"standard deviation is {row['q_std_pos']:.2g}; lower {POSTERIOR}.step_size, which may be too large for so "
        "narrow a "
        f"posterior, or raise {RATES['encoder']}"
    )


def _encoder_collapsed(row: Row) -> str | None:
    blind = 0.0 if "z_share" in row else BLIND  # of a text more is known: see _z_unused
    if not _settled(row) or row.get("batch", 2) == 1:
        return None
    if row.get("q_spread_pos", math.inf) >= max(COLLAPSED, blind * row.get("q_std_pos", 0.0)):
        return None
    return (
        "the encoder has collapsed: it proposes nearly the same z for every x (its means spread by "
        f"{row['q_spread_pos']:.2g}, its draws of one x by {row['q_std_pos']:.2g}); raise {RATES['encoder']} or "
        f"{POSTERIOR}.steps; "
        "of images lower generator.sigma, of text raise generator.word_dropout"
    )


def _flow_collapsed(row: Row) -> str | None:
    if not _settled(row) or row.get("batch", 2) == 1:
        return None
    if row.get("q_spread_neg", math.inf) >= max(COLLAPSED, NARROW * row.get("z_spread_pos", 0.0)):
        return None
    return (
        f"the flow has collapsed: its z spread by {row['q_spread_neg']:.2g}, those of the posterior by "
        f"{row['z_spread_pos']:.2g}; "
        f"lower {RATES['prior']}, raise {RATES['flow']} or {PRIOR}.steps, or start the prior's chains from replay"
    )


def _z_unused(method: LatentEBM, row: Row) -> str | None:
    """A text generator reads its own words and could do without z; then the prior has nothing to explain."""
    if not _settled(row):
        return None
    steps = f"{POSTERIOR}.steps" if method.posterior_chain.steps else RATES["encoder"]
    remedy = f"raise generator.word_dropout or {steps}"
    if row.get("z_share", 1.0) < SHARE:
        return (
            f"the posterior has collapsed: with another sentence's z the likelihood loses {row['z_gain']:.2g} nats "
            f"({row['z_share']:.2%}), so the generator hardly uses z; {remedy}, or lower {RATES['prior']} or "
            "generator.hidden"
        )
    if row.get("active_units", 1.0) == 0:
        return f"no unit of z is active: the posterior is the same for every sentence; {remedy}"
    return None


def _base_lost(method: LatentEBM) -> str | None:
    if method.prior.base.follows():
        return None
    return (
        "the base stays where it is: the covariance of the posterior draws has no root; "
        f"lower {RATES['prior']} and look at z_sq_pos in the log"
    )


def short_reach(method: LatentEBM, without_chain: bool) -> str | None:
    """A note before learning begins: prior chains too short for an energy over a base that follows posterior draws,
    while no posterior chain holds those (`without_chain`)."""
    chain, base = method.prior_chain, method.prior.base
    if (
        not (without_chain and chain.steps and base.refit_every and method.prior.energy)
        or method.prior_start.name != "noise"
    ):
        return None
    if chain.reach >= REACH:
        return None
    return (
        f"prior chains of {chain.steps} steps have a reach (K0 s^2 / 2) of {chain.reach:.2g}; under {REACH:g} the "
        "energy may run away "
        f"while the encoder learns alone, and the base with it: raise {PRIOR}.steps, or lower {RATES['prior']}"
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

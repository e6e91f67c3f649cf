"""How well the prior chains behave, in numbers and in one word: steady, drifting, frozen or oversaturated."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lebm.analysis.chains import WATCHED, begun, profile, start_of
from lebm.generators import TextGenerator
from lebm.generators.image import as_floats
from lebm.likelihood import log_z
from lebm.metrics.chains import autocorrelation, effective_sample_size, split_rhat
from lebm.model import CHUNK, LatentEBM
from lebm.rng import stream

if TYPE_CHECKING:
    from lebm.analysis import Subject

SHOWN = 300  # points of each kind in the 2-D view
INFERRED = 500  # training images whose posterior is sampled
TIMES_K0, LEAST = 10, 400  # how far the chains are followed
FROZEN = 0.1  # root mean square way a coordinate in K0 steps, below which a chain has not left its start
DRIFT = 0.25  # change of the mean energy over the last half, in standard deviations over chains
SATURATED = 0.1  # growth of the share of values at the limits of their range
RUNAWAY = 2.0  # growth of mean z^2
BEYOND = 1.0  # change of the mean energy from K0 to the end, in standard deviations over chains


@dataclass(frozen=True)
class Signs:
    """What the verdict looks at: after K0 steps, and at the end of chains followed far beyond."""

    moved: float  # root mean square way a coordinate within K0 steps
    drift: float  # mean energy of the last quarter minus that of the one before, over the spread between chains
    beyond: float  # mean energy of the last quarter minus that at K0, over the same spread
    settled: int  # the step from which the mean energy stays near that of the last quarter
    steps: tuple[int, int]  # K0, and how far the chains were followed
    saturation: tuple[float, float] | None  # share of decoded values beyond 0.98 in size, at K0 and at the end; text has none
    size: tuple[float, float]  # mean z^2 at K0 and at the end
    variety: tuple[float, float]  # standard deviation of a decoded value over chains, at K0 and at the end; of text, share of different sentences


def verdict(signs: Signs, start: str = "N(0, I)") -> tuple[str, str]:
    """One word, and the sentences with the numbers behind it; `start` says where the chains begin."""
    word, sentence = _judged(signs, start)
    return word, begun(start, signs.steps[0]) + sentence


def _judged(signs: Signs, start: str) -> tuple[str, str]:
    (k0, end), (s0, s1), (z0, z1) = signs.steps, signs.saturation or (0.0, 0.0), signs.size
    own = f"K0 = {k0}" if k0 else start  # where the run takes its samples
    limits = f"the share of pixels at full black or white goes from {s0:.1%} to {s1:.1%}, " if signs.saturation else ""
    spread = "the spread of a pixel over samples" if signs.saturation else "the share of different sentences"
    if not np.isfinite([signs.drift, s1, z1]).all():
        return "drifting", "The chains leave the region of finite numbers: the prior has no ground. Lower learning.prior_rate and learn again."
    if signs.moved < FROZEN:
        return "frozen", (
            f"In {k0 or end} steps a coordinate of z moves by {signs.moved:.2g} (root mean square), less than {FROZEN:g}: the chains hardly leave "
            f"{start}. Raise chains.prior.step_size{' or chains.prior.steps' if k0 else ''}."
        )
    if s1 - s0 > SATURATED or z1 > RUNAWAY * z0:
        return "oversaturated", f"Far beyond {own} {limits}the mean z² from {z0:.2f} to {z1:.2f}: samples are good only near {own}."
    if abs(signs.drift) > DRIFT:
        way = "fall" if signs.drift < 0 else "rise"
        return "drifting", (
            f"The mean energy is still on its way when the chains end ({way} of {abs(signs.drift):.2f} standard deviations between the last two "
            f"quarters; steady is below {DRIFT:g}): the run's own samples are not where the chains are going."
        )
    if abs(signs.beyond) > BEYOND:
        return "drifting", (
            f"The mean energy goes on to {'fall' if signs.beyond < 0 else 'rise'} after {own}, by {abs(signs.beyond):.1f} standard deviations "
            f"between chains, and settles near step {signs.settled}: the run's own samples are not those of the prior itself. From {own} to step "
            f"{end} {spread} goes from {signs.variety[0]:.2f} to {signs.variety[1]:.2f}, the mean z² from {z0:.2f} to {z1:.2f}."
        )
    return "steady", (
        f"From {own} to the end at step {end} the mean energy changes by {abs(signs.beyond):.2f} standard deviations between chains (steady is below {BEYOND:g}), "
        f"between the last two quarters by {abs(signs.drift):.2f}; "
        f"{limits}the mean z² from {z0:.2f} to {z1:.2f}: "
        "walking on changes nothing."
    )


@torch.no_grad()
def diagnose(subject: Subject, seed: int = 0) -> dict[str, Any]:
    """Chains followed far beyond K0; f, z and log Z of prior, posterior and N(0, I). Numbers for analysis.json."""
    model, x = subject.model, as_floats(subject.splits.train[:INFERRED])  # data that is not here is said at once
    k0 = model.config.chains.prior.steps
    steps = max(TIMES_K0 * k0, LEAST)
    with subject.bar("following chains") as update:
        energy, states = follow(model, steps, k0, seed, update)
    seen = signs(model, energy, states, k0)
    word, sentence = verdict(seen, start_of(model))
    with subject.bar("annealing for log Z") as update:
        z_hat = log_z(model.prior, seed=seed, progress=update)
    with subject.bar("inferring") as update:
        z_pos = model.infer(x, seed, shared_noise=False, progress=update)
    z_base = model.prior.place(model.prior.draw_base(CHUNK, stream(seed, "diagnose", model.device))).cpu()  # p_0, wherever the chains started
    z_neg = states[1].cpu()
    f = {name: model.prior.f(z.to(model.device)).cpu().double().numpy() for name, z in (("prior", z_neg), ("posterior", z_pos), ("base", z_base))}
    draws = -energy[k0:].T  # f after the warm-up, (chains, draws)
    rho = autocorrelation(draws)
    ess = effective_sample_size(draws)
    return {
        "verdict": word,
        "words": sentence,
        "chain": {"start": start_of(model), "chains": WATCHED, "steps": steps, "trained": k0, "step_size": model.config.chains.prior.step_size},
        "statistics": {
            "settled_at_step": seen.settled,
            "split_rhat": round(split_rhat(draws), 4),
            "ess": round(ess, 1),
            "draws": int(draws.size),
            "steps_per_independent_draw": round(draws.size / ess, 1),
        },
        "log_z": {"value": z_hat.value, "error": z_hat.error, "ess": z_hat.ess, "chains": z_hat.chains, "temperatures": z_hat.temperatures},
        "signs": dataclasses.asdict(seen),
        "profile": profile(energy),
        "autocorrelation": np.round(rho[: max(2, min(len(rho) // 2, 4 * (k0 or steps // TIMES_K0) + 1))], 4).tolist(),
        "f": histograms(f),
        "view": view(z_neg, z_pos, z_base),
        "tilt": tilt(z_neg, z_pos),
    }


@torch.no_grad()
def follow(model: LatentEBM, steps: int, k0: int, seed: int, progress: Any = None) -> tuple[np.ndarray, list[Tensor]]:
    """-f of WATCHED chains after every step (steps + 1, chains), and all of a chunk's z at the start, at K0 and at the end."""
    rng = stream(seed, "diagnose", model.device)
    energy: list[Tensor] = []
    states: list[Tensor] = []

    def watch(k: int, z: Tensor) -> None:
        energy.append(-model.prior.f(z[:WATCHED]))
        states.extend(z for mark in (0, k0, steps) if k == mark)
        if progress:
            progress(k, steps)

    chain = dataclasses.replace(model.config.chains.prior, steps=steps)
    model.prior.walk(model.starts(model.synthesis, CHUNK, rng)[0], chain, rng, watch=watch)
    return torch.stack(energy).cpu().double().numpy(), states


def signs(model: LatentEBM, energy: np.ndarray, states: list[Tensor], k0: int) -> Signs:
    start, short, far = states
    quarter = len(energy) // 4
    last, before = energy[-quarter:].mean(0), energy[-2 * quarter : -quarter].mean(0)
    spread = max(float(energy[-2 * quarter :].std(1).mean()), 1e-12)
    mean = energy.mean(1)
    drift, beyond = float((last - before).mean()) / spread, float(last.mean() - mean[k0]) / spread
    away = np.flatnonzero(np.abs(mean - last.mean()) > DRIFT * spread)
    decoded = [model.decode(z[:WATCHED]) for z in (short, far)]
    if isinstance(model.generator, TextGenerator):
        saturation, variety = None, [len(x.unique(dim=0)) / len(x) for x in decoded]
    else:
        saturation = [float((x.abs() > 0.98).float().mean()) for x in decoded]
        variety = [float(x.std(0).mean()) for x in decoded]
    sizes = [float(z.square().mean()) for z in (short, far)]
    moved = float((short - start).square().mean().sqrt()) if k0 else float((far - start).square().mean().sqrt())
    settled = int(away[-1]) + 1 if len(away) else 0
    pair = lambda values: (values[0], values[1])  # noqa: E731
    limits = None if saturation is None else pair(saturation)
    return Signs(moved, drift, beyond, settled, (k0, len(energy) - 1), limits, pair(sizes), pair(variety))


def histograms(f: dict[str, np.ndarray], bins: int = 40) -> dict[str, Any]:
    """The three distributions of f over one set of bins, as densities, with mean and spread."""
    everything = np.concatenate(list(f.values()))
    low, high = np.quantile(everything, [0.002, 0.998])
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    out: dict[str, Any] = {"edges": np.round(edges, 4).tolist()}
    for name, values in f.items():
        density = np.histogram(values, edges)[0] / (len(values) * (edges[1] - edges[0]))
        out[name] = {"density": np.round(density, 5).tolist(), "mean": float(values.mean()), "spread": float(values.std())}
    return out


def view(z_neg: Tensor, z_pos: Tensor, z_base: Tensor) -> dict[str, Any]:
    """Prior and posterior samples along the two strongest directions of both together (PCA), N(0, I) beside them."""
    both = torch.cat([z_neg, z_pos]).double()
    centre = both.mean(0)
    _, values, axes = torch.linalg.svd(both - centre, full_matrices=False)
    place = lambda z: ((z[:SHOWN].double() - centre) @ axes[:2].T).mul(100).round().div(100).tolist()  # noqa: E731
    share = values.square() / values.square().sum()
    return {
        "explained": [round(float(s), 4) for s in share[:2]],
        "prior": place(z_neg),
        "posterior": place(z_pos),
        "base": place(z_base),
    }


def tilt(z_neg: Tensor, z_pos: Tensor) -> dict[str, list[float]]:
    """Mean and standard deviation of every coordinate under prior and posterior: N(0, I) would have 0 and 1."""
    columns = {"prior_mean": z_neg.mean(0), "prior_spread": z_neg.std(0), "posterior_mean": z_pos.mean(0), "posterior_spread": z_pos.std(0)}
    return {name: [round(float(v), 4) for v in values] for name, values in columns.items()}

"""How well the prior chains behave, in numbers and in one word: steady, drifting, frozen or oversaturated."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lebm import modalities
from lebm.core.progress import SILENT, Progress, Reporter
from lebm.core.rng import stream
from lebm.measure.ais import log_z
from lebm.measure.chains import WATCHED, autocorrelation, effective_sample_size, prior_chains, profile, run, split_rhat
from lebm.method import CHUNK, Method
from lebm.sampler import SamplerSpec

SHOWN = 300  # points of each kind in the 2-D view
INFERRED = 500  # training rows whose posterior is sampled
TIMES_K0, LEAST = 10, 400  # how far the chains are followed
FROZEN = 0.1  # root mean square displacement of a coordinate in K0 steps, below which a chain has not left its start
DRIFT = 0.25  # change of the mean energy over the last half, in standard deviations over chains
SATURATED = 0.1  # growth of the share of values at the limits of their range
RUNAWAY = 2.0  # growth of mean z^2
BEYOND = 1.0  # change of the mean energy from K0 to the end, in standard deviations over chains

Pair = tuple[float, float]  # a number after K0 steps, and at the end


@dataclass(frozen=True)
class Signs:
    """What the verdict looks at: after K0 steps, and at the end of chains followed far beyond."""

    moved: float  # root mean square displacement of a coordinate within K0 steps
    drift: float  # mean energy of the last quarter minus that of the one before, over the spread between chains
    beyond: float  # mean energy of the last quarter minus that at K0, over the same spread
    level_from: int  # the step from which the mean energy stays near that of the last quarter
    steps: tuple[int, int]  # K0, and how far the chains were followed
    saturation: Pair | None  # share of decoded values at the limits of their range; None where there are no limits
    size: Pair  # mean z^2
    variety: Pair  # how much decoded rows differ from each other


def verdict(signs: Signs, spec: SamplerSpec | None = None) -> tuple[str, str]:
    """One word, and the sentences with the numbers behind it; `spec` is how the run's own samples are drawn."""
    word, sentence = _judge(signs)
    paper = spec is None or (spec.start == "noise" and spec.base == "N(0, I)" and spec.steps > 0)
    return word, sentence if paper or spec is None else f"The run's own samples are drawn {_how(spec)}. {sentence}"


def _how(spec: SamplerSpec) -> str:
    return f"with {spec.in_words()}" if spec.steps else spec.in_words().removeprefix("drawn ")


def _judge(signs: Signs) -> tuple[str, str]:
    (k0, end), (s0, s1), (z0, z1) = signs.steps, signs.saturation or (0.0, 0.0), signs.size
    own = f"K0 = {k0}" if k0 else "the run's own samples"
    limits = f"the share of pixels at full black or white goes from {s0:.1%} to {s1:.1%}, " if signs.saturation else ""
    squares = f"the mean z² from {z0:.2f} to {z1:.2f}"
    if not np.isfinite([signs.drift, s1, z1]).all():
        return "drifting", (
            "The chains leave the region of finite numbers: the prior cannot be normalised. "
            "Lower optimizers.prior.rate and learn again."
        )
    if signs.moved < FROZEN:
        return "frozen", (
            f"In {k0 or end} steps a coordinate of z moves by {signs.moved:.2g} (root mean square), less than "
            f"{FROZEN:g}: the chains hardly leave their start. Raise method.prior_chain.step_size"
            f"{' or its steps' * bool(k0)}."
        )
    if s1 - s0 > SATURATED or z1 > RUNAWAY * z0:
        return "oversaturated", f"Far beyond {own} {limits}{squares}: samples are good only near {own}."
    if abs(signs.drift) > DRIFT:
        return "drifting", (
            f"The mean energy still {'falls' if signs.drift < 0 else 'rises'} when the chains end, by "
            f"{abs(signs.drift):.2f} standard deviations between the last two quarters (steady is below {DRIFT:g}): "
            "the run's own samples are not where the chains are going."
        )
    if abs(signs.beyond) > BEYOND:
        spread = "the spread of a pixel over samples" if signs.saturation else "the share of different rows"
        return "drifting", (
            f"The mean energy goes on to {'fall' if signs.beyond < 0 else 'rise'} after {own}, by "
            f"{abs(signs.beyond):.1f} standard deviations between chains, and is level from step {signs.level_from}: "
            f"the run's own samples are not those of the prior itself. From {own} to step {end} {spread} goes from "
            f"{signs.variety[0]:.2f} to {signs.variety[1]:.2f}, {squares}."
        )
    return "steady", (
        f"From {own} to the end at step {end} the mean energy changes by {abs(signs.beyond):.2f} standard deviations "
        f"between chains (steady is below {BEYOND:g}), between the last two quarters by {abs(signs.drift):.2f}; "
        f"{limits}{squares}: further steps change nothing."
    )


@torch.no_grad()
def diagnose(method: Method, x: Tensor, seed: int = 0, reporter: Reporter = SILENT) -> dict[str, Any]:
    """Chains followed far beyond K0; f, z and log Z of prior, posterior and p_0. x: training rows, as the generator
    takes them.
    """
    latent, own = prior_chains(method), method.choose("prior")
    prior, k0 = latent.prior, own.steps
    steps = max(TIMES_K0 * k0, LEAST)
    with reporter.progress("following chains") as update:
        energy, states = follow(method, steps, k0, seed, update)
    signs = read_signs(method, energy, states, k0)
    word, sentence = verdict(signs, own)
    with reporter.progress("annealing for log Z") as update:
        z_hat = log_z(prior, seed=seed, progress=update)
    with reporter.progress("inferring") as update:
        z_pos = method.encode(x[:INFERRED], seed, shared_noise=False, progress=update)
    z_base = prior.base.draw(CHUNK, stream(seed, "diagnose", method.device)).cpu()  # p_0, wherever the chains started
    z = {"prior": states[1].cpu(), "posterior": z_pos, "base": z_base}
    f = {name: prior.f(each.to(method.device)).cpu().double().numpy() for name, each in z.items()}
    draws = -energy[k0:].T  # f after the warm-up, (chains, draws)
    return {
        "verdict": word,
        "words": sentence,
        "sampler": replace(own, steps=steps).to_dict(),
        "chain": {"chains": WATCHED, "steps": steps, "trained": k0},
        "statistics": _statistics(draws, signs),
        "log_z": dataclasses.asdict(z_hat),
        "signs": dataclasses.asdict(signs),
        "profile": profile(energy),
        "autocorrelation": _shown(autocorrelation(draws), k0 or steps // TIMES_K0),
        "f": histograms(f),
        "view": view(**z),
        "tilt": tilt(z["prior"], z["posterior"]),
    }


def _statistics(draws: np.ndarray, signs: Signs) -> dict[str, float]:
    ess = effective_sample_size(draws)
    return {
        "level_from_step": signs.level_from,
        "split_rhat": round(split_rhat(draws), 4),
        "ess": round(ess, 1),
        "draws": int(draws.size),
        "steps_per_independent_draw": round(draws.size / ess, 1),
    }


def _shown(rho: np.ndarray, steps: int) -> list[float]:
    """The autocorrelation up to four times so many steps."""
    values: list[float] = np.round(rho[: max(2, min(len(rho) // 2, 4 * steps + 1))], 4).tolist()
    return values


@torch.no_grad()
def follow(
    method: Method, steps: int, k0: int, seed: int, progress: Progress | None = None
) -> tuple[np.ndarray, list[Tensor]]:
    """-f of WATCHED chains after every step (steps + 1, chains), and all of a chunk's z at the start, at K0 and at the
    end.
    """
    latent, rng = prior_chains(method), stream(seed, "diagnose", method.device)
    energy: list[Tensor] = []
    states: list[Tensor] = []

    def watch(k: int, z: Tensor) -> None:
        energy.append(-latent.prior.f(z[:WATCHED]))
        states.extend(z for mark in (0, k0, steps) if k == mark)
        if progress:
            progress(k, steps)

    run(latent, replace(latent.prior_chain, steps=steps), rng, CHUNK, watch)
    return torch.stack(energy).cpu().double().numpy(), states


def read_signs(method: Method, energy: np.ndarray, states: list[Tensor], k0: int) -> Signs:
    start, short, far = states
    quarter, mean = len(energy) // 4, energy.mean(1)
    last, before = energy[-quarter:].mean(0), energy[-2 * quarter : -quarter].mean(0)
    spread = max(float(energy[-2 * quarter :].std(1).mean()), 1e-12)
    away = np.flatnonzero(np.abs(mean - last.mean()) > DRIFT * spread)
    modality = modalities.of(method.generator.modality)
    x = [method.decode(z[:WATCHED]) for z in (short, far)]
    limits = [share for one in x if (share := modality.saturation(one)) is not None]
    return Signs(
        moved=float(((short if k0 else far) - start).square().mean().sqrt()),
        drift=float((last - before).mean()) / spread,
        beyond=float(last.mean() - mean[k0]) / spread,
        level_from=int(away[-1]) + 1 if len(away) else 0,
        steps=(k0, len(energy) - 1),
        saturation=(limits[0], limits[1]) if limits else None,
        size=(float(short.square().mean()), float(far.square().mean())),
        variety=(modality.variety(x[0]), modality.variety(x[1])),
    )


def histograms(f: dict[str, np.ndarray], bins: int = 40) -> dict[str, Any]:
    """The distributions of f over one set of bins, as densities, with mean and spread."""
    low, high = np.quantile(np.concatenate(list(f.values())), [0.002, 0.998])
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    out: dict[str, Any] = {"edges": np.round(edges, 4).tolist()}
    for name, values in f.items():
        density = np.histogram(values, edges)[0] / (len(values) * (edges[1] - edges[0]))
        out[name] = {
            "density": np.round(density, 5).tolist(),
            "mean": float(values.mean()),
            "spread": float(values.std()),
        }
    return out


def view(prior: Tensor, posterior: Tensor, base: Tensor) -> dict[str, Any]:
    """Prior and posterior draws along the two strongest directions of both together (PCA), p_0 beside them."""
    both = torch.cat([prior, posterior]).double()
    centre = both.mean(0)
    _, values, axes = torch.linalg.svd(both - centre, full_matrices=False)
    share = values.square() / values.square().sum()
    out: dict[str, Any] = {"explained": [round(float(s), 4) for s in share[:2]]}
    for name, z in (("prior", prior), ("posterior", posterior), ("base", base)):
        out[name] = ((z[:SHOWN].double() - centre) @ axes[:2].T).mul(100).round().div(100).tolist()
    return out


def tilt(prior: Tensor, posterior: Tensor) -> dict[str, list[float]]:
    """Mean and standard deviation of every coordinate under prior and posterior: N(0, I) would have 0 and 1."""
    columns: dict[str, Tensor] = {}
    for name, z in (("prior", prior), ("posterior", posterior)):
        columns |= {f"{name}_mean": z.mean(0), f"{name}_spread": z.std(0)}
    return {name: [round(float(v), 4) for v in values] for name, values in columns.items()}

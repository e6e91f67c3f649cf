"""How well the prior chains behave, in numbers and in one word: steady, drifting, frozen or oversaturated."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lebm import modalities
from lebm.core.progress import SILENT, Progress, Reporter, ignore
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
    if spec is None or (spec.start == "noise" and spec.base == "N(0, I)" and spec.steps > 0):  # as in the paper
        return word, sentence
    how = f"with {spec.in_words()}" if spec.steps else spec.in_words().removeprefix("drawn ")
    return word, f"The run's own samples are drawn {how}. {sentence}"


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
    prior, own = prior_chains(method).prior, method.choose("prior")
    k0 = own.steps
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
    ess, rho = effective_sample_size(draws), autocorrelation(draws)
    return {
        "verdict": word,
        "words": sentence,
        "sampler": replace(own, steps=steps).to_dict(),
        "chain": {"chains": WATCHED, "steps": steps, "trained": k0},
        "statistics": {
            "level_from_step": signs.level_from,
            "split_rhat": round(split_rhat(draws), 4),
            "ess": round(ess, 1),
            "draws": int(draws.size),
            "steps_per_independent_draw": round(draws.size / ess, 1),
        },
        "log_z": asdict(z_hat),
        "signs": asdict(signs),
        "profile": profile(energy),
        "autocorrelation": _rounded(rho[: max(2, min(len(rho) // 2, 4 * (k0 or steps // TIMES_K0) + 1))]),
        "f": histograms(f),
        "view": view(z),
        "tilt": tilt(z["prior"], z["posterior"]),
    }


def _rounded(values: Any, digits: int = 4) -> Any:
    """Numbers of any shape as lists."""
    return np.round(np.asarray(values, np.float64), digits).tolist()


def follow(
    method: Method, steps: int, k0: int, seed: int, progress: Progress = ignore
) -> tuple[np.ndarray, list[Tensor]]:
    """-f of WATCHED chains after every step (steps + 1, chains), and all of a chunk's z at the start, at K0 and at the
    end.
    """
    return run(method, steps, stream(seed, "diagnose", method.device), CHUNK, (0, k0, steps), progress)


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
    out: dict[str, Any] = {"edges": _rounded(edges)}
    for name, values in f.items():
        density = np.histogram(values, edges)[0] / (len(values) * (edges[1] - edges[0]))
        out[name] = {"density": _rounded(density, 5), "mean": float(values.mean()), "spread": float(values.std())}
    return out


def view(draws: dict[str, Tensor]) -> dict[str, Any]:
    """Prior and posterior draws along the two strongest directions of both together (PCA), p_0 beside them."""
    both = torch.cat([draws["prior"], draws["posterior"]]).double()
    centre = both.mean(0)
    _, values, axes = torch.linalg.svd(both - centre, full_matrices=False)
    share = values.square() / values.square().sum()
    points = {name: _rounded((z[:SHOWN].double() - centre) @ axes[:2].T, 2) for name, z in draws.items()}
    return {"explained": _rounded(share[:2]), **points}


def tilt(prior: Tensor, posterior: Tensor) -> dict[str, list[float]]:
    """Mean and standard deviation of every coordinate under prior and posterior: N(0, I) would have 0 and 1."""
    columns = {"prior_mean": prior.mean(0), "prior_spread": prior.std(0)}
    columns |= {"posterior_mean": posterior.mean(0), "posterior_spread": posterior.std(0)}
    return {name: _rounded(values) for name, values in columns.items()}

"""Starts and bases in the fast engine against the reference, in Triton's interpreter on a CPU and captured on a GPU."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import pytest
import torch

# First: it asks for the interpreter.
from test_fast import CLOSE, DEVICE, gpu, images, interpreted, noise, relative, shaken, small

from lebm import fast
from lebm.config import resolve
from lebm.config.build import build, make_optimizers
from lebm.core.pixels import to_x
from lebm.core.rng import stream
from lebm.extensions.bases import MixtureBase, WhitenedGaussian
from lebm.fast.fused import FusedStep
from lebm.method import Batch, update
from lebm.run import Run
from lebm.start import Draws
from lebm.training.train import train

BY_SCORE, BY_IMITATION = (
    f"method.posterior_start={{kind: encoder, objective: {o}}}" for o in ("reverse_kl", "forward_kl")
)
FLOW_ALONE = ["method.prior_start={kind: flow, objective: reverse_kl}", "method.prior_chain.steps=0"]
ENCODER_ALONE = [BY_SCORE, "method.posterior_chain.steps=0"]
REPLAY = "method.prior_start.kind=replay"
MODES = {
    "encoder": [BY_IMITATION],
    "replay over a whitened base": [REPLAY, "method.base.kind=whitened"],
    "encoder and replay, clipped": [BY_IMITATION, REPLAY, "training.clip=0.5", "method.energy.l2=0.1"],
    "encoder by score, flow": [BY_SCORE, "method.prior_start={kind: flow, objective: forward_kl}"],
    "encoder, with a schedule": [
        BY_SCORE,
        "method.posterior_chain.first_steps=[0.2]",
        "method.posterior_chain.noise=0.5",
        "method.posterior_chain.drift_limit=0.01",
    ],
    "encoder, a chain joins later": [
        BY_SCORE,
        "training.stages=[{until: 15, set: {method.posterior_chain.steps: 0}}]",
    ],
    "networks alone": [*ENCODER_ALONE, *FLOW_ALONE],
    "networks alone over a mixture": [*ENCODER_ALONE, *FLOW_ALONE, "method.base={kind: mixture, components: 3}"],
}


def _zuko_is_there() -> bool:
    try:
        import zuko  # noqa: F401
    except ImportError:
        return False
    return True


needs_zuko = pytest.mark.skipif(not _zuko_is_there(), reason="needs zuko")


def modes(*names):
    def flow(name):
        return any("kind: flow" in setting for setting in MODES[name])

    chosen = names or MODES
    return pytest.mark.parametrize(
        "settings", [pytest.param(MODES[n], id=n, marks=[needs_zuko] if flow(n) else []) for n in chosen]
    )


def sized(settings: list[str], encoder: int = 0, chains: int = 0) -> list[str]:
    """With the sizes that a test wants, of those parts that the settings have."""
    out = list(settings)
    if encoder and any("kind: encoder" in s for s in settings):
        out.append(f"method.posterior_start.width={encoder}")
    if chains and REPLAY in settings:
        out.append(f"method.prior_start.chains={chains}")
    return out


@interpreted
@modes(
    "encoder and replay, clipped",
    "encoder by score, flow",
    "encoder, with a schedule",
    "networks alone",
    "networks alone over a mixture",
)
def test_one_update_equals_the_reference_with_the_same_noise(settings: list[str]) -> None:
    rows, flow = 5, any("kind: flow" in s for s in settings)
    steps = [f"method.{c}_chain.steps=2" for c in ("prior", "posterior")]
    flows = ["method.prior_start.width=8", "method.prior_start.layers=2"] if flow else []
    config = small("digits/paper", "training.batch=5", *steps, *sized(settings, 3, 7), *flows)
    method = build(config).to(DEVICE)
    shaken(method)
    base, replay = method.prior.base, REPLAY in settings
    for _ in range(2 if isinstance(base, WhitenedGaussian) else 0):  # a base that is not N(0, I)
        for i in range(1000):
            base.observe(torch.randn(50, config.nz, generator=torch.Generator().manual_seed(i)) * 2 + 1)
        base.refit()
    k0, k1, chain = method.prior_chain.steps, method.posterior_chain.steps, config.method.posterior_chain
    optimizers, rng, clip = make_optimizers(method, config), stream(1, "chain", DEVICE), config.training.clip
    fused = FusedStep(method, optimizers, rng, rows, clip, torch.float32)
    for round_ in range(2 if replay else 1):  # the second continues replayed chains and moments
        reference = copy.deepcopy(method).double()
        x = images(config, rows).flip(round_)
        fused(x)
        last, xx = method.last, to_x(x).double()
        e = noise(fused.seeds[1:], rows, k1, config.nz).double()
        z = first = reference.posterior_start(e[0], xx)
        score = partial(reference.posterior_score, xx)
        assert relative(last.pos.z0, first) < 10 * CLOSE
        with torch.no_grad():
            for k in range(k1):
                s = 0.2 if k < len(chain.first_steps) else 0.1
                drift = 0.5 * s * s * score(z)
                if chain.drift_limit:
                    long = drift.square().mean(1, keepdim=True).sqrt()
                    assert bool((long > chain.drift_limit).any())  # or nothing is tested
                    drift = drift * (chain.drift_limit / long).clamp_max(1)
                z = z + drift + s * chain.noise * e[k + 1]
        assert relative(last.pos.z, z) < 10 * CLOSE
        z_pos, z_neg, e_neg = last.pos.z.double(), last.neg.z.double(), last.neg.e.double()
        if method.prior_start.name != "noise":
            e = noise(fused.seeds[:1], rows, k0, config.nz).double()
            z = reference.prior.base.unwhiten(reference.prior_start(reference.start_noise(e_neg)))
            assert relative(last.neg.z0, z) < 10 * CLOSE
            with torch.no_grad():
                for k in range(k0):
                    z = z + 0.08 * reference.prior.score(z) + 0.4 * e[k + 1]
            assert relative(z_neg, z) < 10 * CLOSE
        f_pos, f_neg = reference.prior.f(z_pos), reference.prior.f(z_neg)
        log_px, l2 = reference.generator.log_prob(xx, z_pos).mean(), float(method.energy_l2)
        loss = f_neg.mean() - f_pos.mean() - log_px + l2 * (f_pos.square().mean() + f_neg.square().mean())
        whiten = reference.prior.base.whiten
        neg = Draws(e_neg, whiten(last.neg.z0.double()), whiten(z_neg))
        pos = Draws(last.pos.e.double(), last.pos.z0.double(), z_pos, xx)
        limited = lambda z, score=score: method.posterior_chain.drift(score(z), 0.5 * chain.step_size**2)  # noqa: E731
        for part, draws, s in (
            (reference.prior_start, neg, reference.prior.score_white),
            (reference.posterior_start, pos, limited),
        ):
            more = part.loss(draws, s)
            loss = loss if more is None else loss + more
        params = list(reference.parameters())
        for p, g in zip(params, torch.autograd.grad(loss, params, materialize_grads=True), strict=True):
            p.grad = g
        if clip:
            for net in reference.networks().values():
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        for (name, p), q in zip(method.named_parameters(), reference.parameters(), strict=True):
            assert p.grad is not None and q.grad is not None, name
            if float(q.grad.norm()) > 1e-6:
                assert relative(p.grad, q.grad) < 50 * CLOSE, name
        if round_ == 0:  # every network has moved, each by its own rate
            for p, q in zip(method.parameters(), reference.parameters(), strict=True):
                q.grad = p.grad.double()
            for optimizer in make_optimizers(reference, config).values():
                optimizer.step()
            for (name, p), q in zip(method.named_parameters(), reference.parameters(), strict=True):
                assert relative(p, q) < 10 * CLOSE, name
        reference.prior.base.observe(z_pos)
        reference.prior_start.observe(neg)
        for (name, a), b in zip(method.named_buffers(), reference.buffers(), strict=True):
            assert relative(a, b) < 10 * CLOSE, name


@gpu
def test_a_fit_of_the_mixture_on_the_gpu_is_the_fit_on_the_cpu() -> None:
    bases = [MixtureBase(20, components=5, memory=50).to(device) for device in ("cpu", DEVICE)]
    for i in range(200):
        z = torch.randn(40, 20, generator=torch.Generator().manual_seed(i)) * (1 + i % 3) + i % 3
        for base in bases:
            base.observe(z.to(base.mean.device))
    for base in bases:
        base.refit()
    for (name, a), b in zip(bases[0].named_buffers(), bases[1].buffers(), strict=True):
        assert relative(b.cpu(), a) < 1e-3, name


@gpu
@modes()
def test_captured_updates_follow_the_eager_reference_in_float32(settings: list[str]) -> None:
    flows = ["optimizers.flow.rate=1e-4"] if any("kind: flow" in s for s in settings) else []
    common = ["precision=float32", "training.updates=12", *sized(settings, 16, 500), *flows]
    config = resolve("digits/paper", common)
    quick, eager = train(config, device="cuda"), train(resolve(config, ["engine=reference"]), device="cuda")
    for (name, p), q in zip(quick.named_parameters(), eager.parameters(), strict=True):
        assert relative(p, q) < 1e-2, name  # 12 steps of Adam, the first by the gradient's sign, from other sums


@gpu
@modes()
def test_the_captured_bf16_update_computes_what_the_reference_does(settings: list[str]) -> None:
    """One update from the same weights: likelihood, latents and the gradients of all networks, over 100 images."""
    config = resolve("svhn/paper", sized(settings, chains=1000)).at(0)
    method = build(config).to(DEVICE)
    reference, x, index = copy.deepcopy(method), images(config, 100), torch.arange(100, device=DEVICE)
    optimizers, rng = make_optimizers(method, config, capturable=True), stream(1, "chain", DEVICE)
    engine = fast.make_update(method, optimizers, rng, x, index, clip=config.training.clip)
    assert isinstance(engine.step, FusedStep)
    for p, q in zip(method.parameters(), reference.parameters(), strict=True):
        assert torch.equal(p, q)  # warming up has moved nothing
    for a, b in zip(method.buffers(), reference.buffers(), strict=True):
        assert torch.equal(a, b)
    engine(x, index)
    eager = make_optimizers(reference, config)
    update(reference, Batch(to_x(x), index), eager, stream(1, "chain", DEVICE), config.training.clip)
    ours, theirs = method.last, reference.last
    assert float(ours.log_px) == pytest.approx(float(theirs.log_px), rel=0.02)
    for draws, others in ((ours.pos, theirs.pos), (ours.neg, theirs.neg)):
        for name in ("z", "z0"):
            a, b = getattr(draws, name), getattr(others, name)
            assert float(a.square().mean()) == pytest.approx(
                float(b.square().mean()), rel=0.1
            )  # 10,000 numbers, other noise
    for name, net in method.networks().items():
        for (part, p), q in zip(net.named_parameters(), reference.networks()[name].parameters(), strict=True):
            assert p.grad is not None and torch.isfinite(p.grad).all(), (name, part)
            assert float(p.grad.norm()) == pytest.approx(float(q.grad.norm()), rel=0.5, abs=1e-3), (name, part)


@gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_changed_coefficient_changes_a_captured_update(precision: str) -> None:
    config = resolve("digits/paper")
    x, index, grads = images(config, 100), torch.arange(100, device=DEVICE), []
    for l2 in (0.0, 3.0):
        method = build(config).to(DEVICE)
        optimizers, rng = make_optimizers(method, config, capturable=True), stream(1, "chain", DEVICE)
        engine = fast.make_update(method, optimizers, rng, x, index, precision=precision)
        method.coefficients()["energy_l2"].fill_(l2)
        engine(x, index)
        grads.append(method.prior.energy.linear()[0].weight.grad.clone())
    assert relative(grads[1], grads[0]) > 0.01


@gpu
@modes("encoder", "encoder, a chain joins later", "replay over a whitened base", "networks alone")
def test_a_resumed_run_draws_what_it_would_have_drawn(settings: list[str], tmp_path: Path) -> None:
    every = ["training.log_every=5", "training.checkpoint_every=10", *sized(settings, 16, 300)]
    train(resolve("digits/paper", [*every, "training.updates=20"]), run=tmp_path / "a", device="cuda")
    train(resolve("digits/paper", [*every, "training.updates=10"]), run=tmp_path / "b", device="cuda")
    train(resolve("digits/paper", [*every, "training.updates=20"]), run=tmp_path / "b", device="cuda", resume=True)
    a, b = (Run(tmp_path / name).rows() for name in "ab")
    for left, right in zip(a, b, strict=True):
        for key in ("log_px", "mse", "z_sq_pos", "z_sq_neg"):
            assert left[key] == pytest.approx(right[key], rel=2e-3), (left["step"], key)

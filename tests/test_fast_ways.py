"""The fast engine's ways to draw z against the reference, in Triton's interpreter on a CPU and captured on a GPU."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from test_fast import CLOSE, DEVICE, gpu, images, interpreted, noise, relative, shaken, small  # first: it asks for the interpreter

from lebm.config import Prior, resolve
from lebm.fast.engine import Captured, FusedStep
from lebm.generators.image import to_x
from lebm.learn import learn_step, make_optimizer
from lebm.log import read as read_log
from lebm.model import LatentEBM
from lebm.prior import GaussianPrior
from lebm.rng import stream
from lebm.sampler import tamed
from lebm.training import train

MODES = {
    "warm": ["draw.posterior=warm"],
    "persistent over a fitted base": ["draw.prior=persistent", "prior.base=fitted"],
    "warm and persistent, clipped": ["draw.posterior=warm", "draw.prior=persistent", "learning.clip=0.5", "learning.l2=0.1"],
    "warm both, following": ["draw.posterior=warm", "draw.prior=warm", "encoder.teach=follow"],
    "warm, with a schedule": [
        "draw.posterior=warm",
        "encoder.teach=follow",
        "chains.posterior.first_steps=[0.2]",
        "chains.posterior.noise=0.5",
        "chains.posterior.bound=0.01",
    ],
    "warm, a chain joins later": ["draw.posterior=warm", "encoder.teach=follow", "draw.alone=15"],
    "networks alone": ["draw.posterior=amortised", "draw.prior=flow"],
    "networks alone over a mixture": ["draw.posterior=amortised", "draw.prior=flow", "prior.base=mixture", "prior.parts=3"],
}


def modes(*names):
    def flows(settings):
        return any(s in ("draw.prior=flow", "draw.prior=warm") for s in settings)

    return pytest.mark.parametrize("settings", [pytest.param(MODES[n], id=n, marks=[needs_zuko] if flows(MODES[n]) else []) for n in names or MODES])


def _zuko_is_there() -> bool:
    try:
        import zuko  # noqa: F401
    except ImportError:
        return False
    return True


needs_zuko = pytest.mark.skipif(not _zuko_is_there(), reason="needs zuko")


@interpreted
@modes("warm and persistent, clipped", "warm both, following", "warm, with a schedule", "networks alone", "networks alone over a mixture")
def test_one_step_equals_the_reference_with_the_same_noise(settings: list[str]) -> None:
    rows, settings = 5, [*settings, "draw.chains=7", "chains.prior.steps=2", "chains.posterior.steps=2"]
    config = small("digits", "training.batch=5", "encoder.width=3", "flow.width=8", "flow.layers=2", *settings)
    model = LatentEBM(config).to(DEVICE)
    shaken(model)
    for _ in range(2 if model.prior.fitted else 0):  # a p_0 that is not N(0, I)
        for i in range(1000):
            model.prior.see(torch.randn(50, config.nz, generator=torch.Generator().manual_seed(i)) * 2 + 1)
        model.prior.refit()
    k0, k1, chain = config.chains.prior.steps, config.chains.posterior.steps, config.chains.posterior
    fused = FusedStep(model, make_optimizer(model, config.learning), stream(1, "chain", DEVICE), rows, torch.float32)
    for round_ in range(2 if config.draw.prior == "persistent" else 1):  # the second finds kept chains and moments
        reference = copy.deepcopy(model).double()
        x = images(config, rows).flip(round_)
        seen, xx = fused(x), to_x(x).double()
        e = noise(fused.seeds[1:], rows, k1, config.nz).double()
        z = start = reference.inference.start(e[0], xx)
        score = partial(reference.posterior_score, xx)
        assert relative(seen.z0_pos, start) < 10 * CLOSE
        with torch.no_grad():
            for k in range(k1):
                s = 0.2 if k < len(chain.first_steps) else 0.1
                drift = 0.5 * s * s * score(z)
                if chain.bound:
                    long = drift.square().mean(1, keepdim=True).sqrt()
                    assert bool((long > chain.bound).any())  # or nothing is tested
                    drift = drift * (chain.bound / long).clamp_max(1)
                z = z + drift + s * chain.noise * e[k + 1]
        assert relative(seen.z_pos, z) < 10 * CLOSE
        z_pos, z_neg, e_neg = seen.z_pos.double(), seen.z_neg.double(), fused.e_neg.double()
        if config.draw.prior != "langevin":
            e = noise(fused.seeds[:1], rows, k0, config.nz).double()
            z = reference.start_prior(e_neg)
            assert relative(seen.z0_neg, z) < 10 * CLOSE
            with torch.no_grad():
                for k in range(k0):
                    z = z + 0.08 * reference.prior.score(z) + 0.4 * e[k + 1]
            assert relative(z_neg, z) < 10 * CLOSE
        f_pos, f_neg = reference.prior.f(z_pos), reference.prior.f(z_neg)
        log_px = reference.generator.log_prob(xx, z_pos).mean()
        (f_neg.mean() - f_pos.mean() - log_px + config.learning.l2 * (f_pos.square().mean() + f_neg.square().mean())).backward()
        reference.learn_synthesis(e_neg, z_neg)
        reference.inference.learn(fused.e_pos.double(), z_pos, tamed(score, chain), xx)
        if config.learning.clip:
            for net in reference.networks().values():
                torch.nn.utils.clip_grad_norm_(net.parameters(), config.learning.clip)
        for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
            assert p.grad is not None and q.grad is not None, name
            if float(q.grad.norm()) > 1e-6:
                assert relative(p.grad, q.grad) < 50 * CLOSE, name
        if round_ == 0:  # every network has moved, each by its own rate
            for p, q in zip(model.parameters(), reference.parameters(), strict=True):
                q.grad = p.grad.double()
            make_optimizer(reference, config.learning).step()
            for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
                assert relative(p, q) < 10 * CLOSE, name
        reference.prior.see(z_pos)
        for (name, a), b in zip(model.named_buffers(), reference.buffers(), strict=True):
            assert relative(a, b) < 10 * CLOSE, name


@gpu
def test_a_fit_of_the_mixture_on_the_gpu_is_the_fit_on_the_cpu() -> None:
    priors = [GaussianPrior(20, Prior(kind="gaussian", base="mixture", parts=5, memory=50)).to(device) for device in ("cpu", DEVICE)]
    for i in range(200):
        z = torch.randn(40, 20, generator=torch.Generator().manual_seed(i)) * (1 + i % 3) + i % 3
        for prior in priors:
            prior.see(z.to(prior.mean.device))
    for prior in priors:
        prior.refit()
    for (name, a), b in zip(priors[0].named_buffers(), priors[1].buffers(), strict=True):
        assert relative(b.cpu(), a) < 1e-3, name


@gpu
@modes()
def test_captured_steps_follow_the_eager_reference_in_float32(settings: list[str]) -> None:
    config = resolve(
        "digits", ["precision=float32", "training.steps=12", "draw.chains=500", "encoder.width=16", "learning.flow_rate=1e-4", *settings]
    )
    fast_model, eager = train(config, device="cuda"), train(resolve(config, ["engine=reference"]), device="cuda")
    for (name, p), q in zip(fast_model.named_parameters(), eager.parameters(), strict=True):
        assert relative(p, q) < 1e-2, name  # 12 steps of Adam, whose first ones follow the gradient's sign, from sums in another order


@gpu
@modes()
def test_the_captured_bf16_step_sees_what_the_reference_sees(settings: list[str]) -> None:
    """One step from the same weights: likelihood, latents and the encoder's gradient, over 100 images."""
    config = resolve("svhn", ["draw.chains=1000", *settings])
    model = LatentEBM(config).to(DEVICE)
    reference, x = copy.deepcopy(model), images(config, 100)
    optimizer, rng = make_optimizer(model, config.learning, capturable=True), stream(1, "chain", DEVICE)
    engine = Captured(FusedStep(model, optimizer, rng, 100), model, optimizer, rng, x)
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(p, q)  # warming up has moved nothing
    for a, b in zip(model.buffers(), reference.buffers(), strict=True):
        assert torch.equal(a, b)
    seen = engine(x)
    other = learn_step(reference, to_x(x), make_optimizer(reference, config.learning), config.chains, config.learning, stream(1, "chain", DEVICE))
    assert float(seen.log_px) == pytest.approx(float(other.log_px), rel=0.02)
    for name in ("z_pos", "z_neg", "z0_pos", "z0_neg"):
        a, b = getattr(seen, name), getattr(other, name)
        assert float(a.square().mean()) == pytest.approx(float(b.square().mean()), rel=0.1), name  # 10,000 numbers, other noise
    for name, net in model.networks().items():
        for (part, p), q in zip(net.named_parameters(), reference.networks()[name].parameters(), strict=True):
            assert p.grad is not None and torch.isfinite(p.grad).all(), (name, part)
            assert float(p.grad.norm()) == pytest.approx(float(q.grad.norm()), rel=0.5, abs=1e-3), (name, part)


@gpu
@modes("warm", "warm, a chain joins later", "persistent over a fitted base", "networks alone")
def test_a_resumed_run_draws_what_it_would_have_drawn(settings: list[str], tmp_path: Path) -> None:
    every = ["training.log_every=5", "training.checkpoint_every=10", "draw.chains=300", "encoder.width=16", *settings]
    train(resolve("digits", [*every, "training.steps=20"]), run=tmp_path / "a", device="cuda")
    train(resolve("digits", [*every, "training.steps=10"]), run=tmp_path / "b", device="cuda")
    train(resolve("digits", [*every, "training.steps=20"]), run=tmp_path / "b", device="cuda", resume=True)
    a, b = (read_log(tmp_path / name / "log.jsonl") for name in "ab")
    for left, right in zip(a, b, strict=True):
        for key in ("log_px", "mse", "z_sq_pos", "z_sq_neg"):
            assert left[key] == pytest.approx(right[key], rel=2e-3), (left["step"], key)

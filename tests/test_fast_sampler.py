"""The engine behind `Method.sample`: the same draws whatever is asked for, near the reference."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

# First: it asks for the interpreter.
from test_fast import CLOSE, DEVICE, gpu, interpreted, move_base, noise, relative, shaken, small

from lebm import fast
from lebm.config import resolve
from lebm.config.build import build
from lebm.core.errors import DataError
from lebm.fast import sampler
from lebm.fast.prior import FastPrior
from lebm.fast.sampler import Sampler
from lebm.generators import ImageGenerator


@pytest.fixture
def few(monkeypatch):
    """Small pieces, so that several are needed."""
    monkeypatch.setattr(sampler, "ROWS", 8)
    monkeypatch.setattr(sampler, "PIECE", 4)


def made(*settings):
    method = shaken(build(small("digits/paper", "method.prior_chain.steps=3", *settings)).to(DEVICE))
    move_base(method.prior.base)
    return method, Sampler(method, torch.float32)


@interpreted
@pytest.mark.parametrize("base", ["standard", "whitened", "mixture"])
def test_samples_are_what_the_generator_makes_of_the_kernel_s_chains(few, monkeypatch, base) -> None:
    method, engine = made(f"method.base.kind={base}")
    numbers, chain = [], FastPrior.chain

    def listen(self, out, start, seed, *rest):
        numbers.append((seed.clone(), len(out)))
        return chain(self, out, start, seed, *rest)

    monkeypatch.setattr(FastPrior, "chain", listen)
    x = engine.sample(11, seed=3)
    assert x.shape == (11, 1, 8, 8) and x.dtype == torch.float32 and x.abs().max() <= 1
    assert [rows for _, rows in numbers] == [8, 3] and not torch.equal(numbers[0][0], numbers[1][0])
    reference = copy.deepcopy(method).double()
    z = []
    for seed, rows in numbers:
        e = noise(seed, rows, 3, 20).double()
        u = reference.prior.base.transform(e[0])
        with torch.no_grad():
            for k in range(3):
                u = u + 0.08 * reference.prior.score_white(u) + 0.4 * e[k + 1]
        z.append(reference.prior.base.unwhiten(u))
    assert relative(x, reference.decode(torch.cat(z))) < 5 * CLOSE


@interpreted
def test_the_first_samples_of_a_seed_are_always_the_same(few) -> None:
    method, engine = made()
    x, steps = engine.sample(11, seed=3), []
    assert torch.equal(engine.sample(5, 3), x[:5]) and torch.equal(engine.sample(9, 3), x[:9])
    assert not torch.equal(engine.sample(5, 4), x[:5]) and not torch.equal(x[:3], x[8:])
    assert torch.equal(engine.sample(11, 3, progress=lambda done, n: steps.append((done, n))), x)
    assert steps == [(4, 11), (8, 11), (11, 11)]
    with torch.no_grad():  # it never lags behind the weights
        method.generator.layers[-1].bias.add_(0.5)
    assert not torch.equal(engine.sample(5, 3), x[:5])
    with pytest.raises(DataError, match="at least 1"):
        engine.sample(0)


@interpreted
def test_what_the_kernel_cannot_draw_is_drawn_by_the_reference(few) -> None:
    method, engine = made("method.prior_start={kind: replay, chains: 200}")
    spec = method.choose("prior")
    assert not engine.runs(spec) and engine.runs(method.choose("prior", "noise", 2))
    assert not engine.runs(method.choose("prior", "noise", 10**8))  # more random numbers than the kernel counts
    assert engine.runs(replace(method.choose("prior", "noise"), steps=0))
    assert relative(engine.sample(6, 2, spec), method.sample(6, 2, spec)) < CLOSE
    for settings in (
        ["method.prior_chain.noise=0.5"],
        ["method.energy.depth=3"],
        ["method.energy=null", "method.prior_chain.steps=0"],
    ):
        method, engine = made(*settings)
        assert not engine.runs(method.choose("prior"))
        assert relative(engine.sample(6, 2), method.sample(6, 2)) < CLOSE


@interpreted
def test_a_method_with_an_engine_samples_by_it_and_can_be_copied(few) -> None:
    method, engine = made()
    method.engine = engine
    x = method.sample(5, 1)
    assert torch.equal(x, engine.sample(5, 1).cpu())
    other = copy.deepcopy(method)
    with torch.no_grad():
        other.generator.layers[-1].bias.add_(0.5)
    assert not torch.equal(other.sample(5, 1), x) and torch.equal(method.sample(5, 1), x)


def test_an_engine_is_for_images_on_cuda_in_bfloat16_alone() -> None:
    method = build(small("digits/paper"))
    if DEVICE == "cpu":
        assert not fast.accelerate(method) and method.engine is None
    assert not fast.accelerate(method.to(DEVICE), "float32") and method.engine is None
    assert sampler.applies(method)
    method.generator = type("Mine", (ImageGenerator,), {})(20, 8, 1, 5)
    assert not sampler.applies(method)


@gpu
@pytest.mark.parametrize("preset", ["svhn/paper", "svhn/warm", "mnist/paper"])
def test_on_a_gpu_samples_are_as_the_reference_s(preset: str) -> None:
    method = build(resolve(preset)).to(DEVICE)
    eager = method.sample(2000, 1, on_device=True)
    assert fast.accelerate(method) and method.engine.precision == "bfloat16"
    x = method.sample(2000, 1, on_device=True)
    assert x.device.type == "cuda" and torch.equal(method.sample(1100, 1, on_device=True), x[:1100])
    for a, b in ((x, eager), (x.flatten(1), eager.flatten(1))):
        assert float(a.std()) == pytest.approx(float(b.std()), rel=0.05)
    z = torch.cat(list(method.sample_z(500, 1)))
    with torch.no_grad():
        exact = copy.deepcopy(method.generator).double().decode(z.double())
    decoded = method.engine._decode(torch.cat([z, z]), method.engine._layers(method.generator), method.generator.leak)
    assert relative(decoded[:500], exact) < 0.05

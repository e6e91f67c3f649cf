"""The text engine: graphs a width, the same numbers as the reference. What needs a GPU is skipped without one."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from test_fast import DEVICE, gpu  # first: it asks for the interpreter

from lebm import bench, fast, train
from lebm.config import resolve
from lebm.data import load
from lebm.fast import text as fast_text
from lebm.fast.words import log_words
from lebm.learn import learn_step, make_optimizer
from lebm.listing import TextListing
from lebm.model import LatentEBM
from lebm.rng import stream
from lebm.words import END, PAD, lengths

SMALL = ["generator.dropout=0.2", "chains.prior.steps=5", "chains.posterior.steps=4", "training.batch=16"]


def made(*settings, device="cpu"):
    config = resolve("text-demo", [*SMALL, *settings])
    splits, model = load(config), LatentEBM(config)
    model.generator.take(splits.facts)
    return config, model.to(device), splits.train.to(device)


class Plain:
    """Stands for a captured graph: runs the iteration itself."""

    def __init__(self, iterate, model, optimizer, rng, example, pool):
        if example.shape[1] == 12:
            raise RuntimeError("out of memory\nmore")
        self.iterate, self.shape = iterate, example.shape

    def __call__(self, rows):
        assert rows.shape == self.shape
        return self.iterate(rows)


def test_a_graph_a_width_and_none_where_none_fits(monkeypatch):
    monkeypatch.setattr(fast_text, "Captured", Plain)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    config, model, rows = made("precision=float32")
    optimizer, rng = make_optimizer(model, config.learning), torch.Generator().manual_seed(1)
    engine = fast.make_engine(model, optimizer, rng, rows[:8, :16])
    assert list(engine.graphs) == [(8, 16)]
    for width in (16, 20, 16):
        assert torch.isfinite(engine(rows[:8, :width]).log_px)
    assert list(engine.graphs) == [(8, 16), (8, 20)]
    with pytest.warns(UserWarning, match="batches of 12 words are learned without a graph"):
        engine(rows[:8, :12])
    engine(rows[:8, :12])  # said once
    assert model.text()._log_words is None


@pytest.mark.parametrize("vocabulary", [5, 128, 1100])  # less than a tile, a whole one, more than the kernel reads at once
def test_log_words_are_the_softmax_s_and_so_are_their_gradients(vocabulary):
    rng = torch.Generator().manual_seed(vocabulary)
    h, w, b = (torch.randn(shape, generator=rng).to(DEVICE).requires_grad_() for shape in ((9, 16), (vocabulary, 16), (vocabulary,)))
    words = torch.randint(0, vocabulary, (9,), generator=rng).to(DEVICE)
    words[[2, 7]] = -2  # padding
    scale = torch.rand(9, generator=rng).to(DEVICE)
    exact = [t.detach().double().requires_grad_() for t in (h, w, b)]
    expected = -F.cross_entropy(F.linear(*exact), words, ignore_index=-2, reduction="none")
    found = log_words(h, w, b, words, torch.float32)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert found[2] == found[7] == 0
    gradients = torch.autograd.grad((found * scale).sum(), (h, w, b))
    for mine, theirs in zip(gradients, torch.autograd.grad((expected * scale).sum(), exact), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(log_words(h, w, b, words, torch.float32), found)
    torch.testing.assert_close(log_words(h, w, b, words).double(), expected, rtol=0.02, atol=0.05)  # in bf16


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_a_generator_with_an_engine_s_log_words(dtype, close):
    _, model, rows = made(device=DEVICE)
    g, z = model.text(), torch.randn(8, 16, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    exact, score = g.log_prob(rows[:8], z), g.score(rows[:8], z)
    with g.working(partial(log_words, dtype=dtype)):
        near, near_score = g.log_prob(rows[:8], z), g.score(rows[:8], z)
        torch.testing.assert_close(near, exact, rtol=close / 10, atol=close)
        assert float(torch.cosine_similarity(near_score.flatten(), score.flatten(), 0)) > 1 - close / 5
        near.sum().backward()
    there = {n: p.grad.clone() for n, p in g.named_parameters()}
    g.zero_grad()
    g.log_prob(rows[:8], z).sum().backward()
    for name, p in g.named_parameters():
        assert float((there[name] - p.grad).norm() / p.grad.norm()) < close, name
    assert torch.equal(g.log_prob(rows[:8], z), exact)


def test_schedules_within_the_prior_chain_are_not_for_the_fused_image_kernels():
    assert fast.plain_prior_chain(resolve("svhn", ["chains.posterior.first_steps=[0.2]", "chains.posterior.bound=0.5"]))
    assert not fast.plain_prior_chain(resolve("svhn", ["chains.prior.noise=0.5"]))
    assert not fast.plain_prior_chain(resolve("svhn", ["chains.prior.bound=0.5"]))


# --- the bench ------------------------------------------------------------------------------------------------------------


def test_the_bench_has_sentences():
    x = bench.example(resolve("ptb"), 50)
    assert x.shape == (50, 32) and bool(((x == END).sum(1) == 1).all()) and 16 <= int(lengths(x).min()) <= int(lengths(x).max()) <= 32
    assert bool((x.masked_fill(x == PAD, END) >= END).all())


def test_the_plain_loop_follows_the_reference_without_noise(monkeypatch):
    config, model, rows = made("chains.posterior.first_steps=[0.5, 0.3]", "generator.dropout=0")
    listing = TextListing(config, torch.device("cpu"))
    listing.text.take(model.text().facts())
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    z = torch.randn(6, 16, generator=torch.Generator().manual_seed(2))
    expected = z
    for s in (0.5, 0.3, 0.05, 0.05):
        expected = expected + 0.5 * s * s * model.posterior_score(rows[:6], expected).detach()
    torch.testing.assert_close(listing.posterior(z, rows[:6]), expected, rtol=1e-5, atol=1e-5)


def test_operations_of_text_by_hand():
    config = resolve("text-demo", ["chains.prior.steps=2", "chains.posterior.steps=3"])
    word = 2 * (4 * 64 * (32 + 16 + 64) + 64 * 200)
    energy = 2 * (16 * 100 + 100 * 100 + 100)
    assert bench.flops(config, 1) == 2 * 2 * energy + 3 * (2 * 24 * word + 2 * energy) + 3 * 24 * word + 6 * energy


# --- on a GPU -------------------------------------------------------------------------------------------------------------


@gpu
def test_captured_steps_follow_the_eager_reference_in_float32():
    config = resolve("text-demo", [*SMALL, "precision=float32", "training.steps=12"])
    quick, eager = train(config, device="cuda"), train(resolve(config, ["engine=reference"]), device="cuda")
    for (name, p), q in zip(quick.named_parameters(), eager.parameters(), strict=True):
        assert float((p - q).detach().norm() / q.detach().norm()) < 1e-2, name


@gpu
def test_a_captured_step_in_bf16_sees_what_the_reference_sees():
    config, model, rows = made(device="cuda")
    reference, x = copy.deepcopy(model), rows[:16, :16].contiguous()
    reference.text().lstm.flatten_parameters()  # a copy's weights lie apart
    optimizer, rng = make_optimizer(model, config.learning, capturable=True), stream(1, "chain", "cuda")
    engine = fast.make_engine(model, optimizer, rng, x)
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(p, q)  # warming up has moved nothing
    seen = engine(x)
    other = learn_step(reference, x, make_optimizer(reference, config.learning), config.chains, config.learning, stream(1, "chain", "cuda"))
    assert float(seen.log_px) == pytest.approx(float(other.log_px), rel=0.02)
    torch.testing.assert_close(seen.z_pos, other.z_pos, rtol=0.1, atol=0.1)
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert torch.isfinite(p).all() and float((p - q).detach().abs().max()) < 0.02, name

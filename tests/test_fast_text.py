"""The text engine: a graph for every width, and the same numbers as the reference."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from test_fast import DEVICE, gpu  # first: it asks for the interpreter

from lebm import fast
from lebm.config import resolve
from lebm.config.build import build, make_optimizers
from lebm.core.rng import stream
from lebm.data import load
from lebm.fast import graphs
from lebm.fast.words import log_words
from lebm.method import Batch, update
from lebm.training.train import train

SMALL = [
    "generator.dropout=0.2",
    "method.prior_chain.steps=5",
    "method.posterior_chain.steps=4",
    "training.batch=16",
]


def made(*settings, device="cpu"):
    config = resolve("text-demo/paper", [*SMALL, *settings])
    splits, method = load(config), build(config)
    method.generator.set_facts(splits.facts)
    return config, method.to(device), splits.train.to(device)


class Plain:
    """Stands for a captured graph: makes the update itself."""

    def __init__(self, step, state, rows, index, pool):
        if rows.shape[1] == 12:
            raise RuntimeError("out of memory\nmore")
        self.step, self.shape = step, rows.shape

    def __call__(self, rows, index):
        assert rows.shape == self.shape
        self.step(rows, index)


def test_a_graph_for_every_width_and_none_where_none_fits(monkeypatch):
    monkeypatch.setattr(graphs, "Graph", Plain)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    config, method, rows = made("precision=float32")
    optimizers, rng, index = make_optimizers(method, config), torch.Generator().manual_seed(1), torch.arange(8)
    engine = fast.make_update(method, optimizers, rng, rows[:8, :16], index, precision=config.precision)
    assert list(engine.graphs) == [(8, 16)]
    for width in (16, 20, 16):
        engine(rows[:8, :width], index)
        assert torch.isfinite(method.last.log_px)
    assert list(engine.graphs) == [(8, 16), (8, 20)]
    with pytest.warns(UserWarning, match=r"\(8, 12\) are learned without a graph"):
        engine(rows[:8, :12], index)
    engine(rows[:8, :12], index)  # reported once
    assert method.generator.log_words is None


def test_the_word_kernel_is_installed_during_the_update_alone(monkeypatch):
    monkeypatch.setattr(graphs, "Graph", Plain)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    calls = []
    monkeypatch.setattr(
        "lebm.fast.words.log_words", lambda h, *rest: (calls.append(len(h)), log_words(h, *rest, torch.float32))[1]
    )
    config, method, rows = made(device=DEVICE)
    index = torch.arange(8, device=DEVICE)
    engine = fast.make_update(method, make_optimizers(method, config), stream(1, "chain", DEVICE), rows[:8, :16], index)
    engine(rows[:8, :16], index)
    assert len(calls) == 5 and method.generator.log_words is None  # four posterior steps and the update


@pytest.mark.parametrize(
    "vocabulary", [5, 128, 1100]
)  # less than a tile, a whole one, more than the kernel reads at once
def test_log_words_are_those_of_the_softmax_and_so_are_their_gradients(vocabulary):
    rng = torch.Generator().manual_seed(vocabulary)
    shapes = ((9, 16), (vocabulary, 16), (vocabulary,))
    h, w, b = (torch.randn(shape, generator=rng).to(DEVICE).requires_grad_() for shape in shapes)
    words = torch.randint(0, vocabulary, (9,), generator=rng).to(DEVICE)
    words[[2, 7]] = -2  # padding
    scale = torch.rand(9, generator=rng).to(DEVICE)
    exact = [t.detach().double().requires_grad_() for t in (h, w, b)]
    expected = -F.cross_entropy(F.linear(*exact), words, ignore_index=-2, reduction="none")
    result = log_words(h, w, b, words, torch.float32)
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)
    assert result[2] == result[7] == 0
    gradients = torch.autograd.grad((result * scale).sum(), (h, w, b))
    for mine, theirs in zip(gradients, torch.autograd.grad((expected * scale).sum(), exact), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(log_words(h, w, b, words, torch.float32), result)
    torch.testing.assert_close(log_words(h, w, b, words).double(), expected, rtol=0.02, atol=0.05)  # in bf16


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_a_generator_with_an_engine_s_log_words(dtype, close):
    _, method, rows = made(device=DEVICE)
    g, z = method.generator, torch.randn(8, 16, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    exact, score = g.log_prob(rows[:8], z), g.score(rows[:8], z)
    g.log_words = partial(log_words, dtype=dtype)
    near, near_score = g.log_prob(rows[:8], z), g.score(rows[:8], z)
    torch.testing.assert_close(near, exact, rtol=close / 10, atol=close)
    assert float(torch.cosine_similarity(near_score.flatten(), score.flatten(), 0)) > 1 - close / 5
    near.sum().backward()
    g.log_words = None
    there = {n: p.grad.clone() for n, p in g.named_parameters()}
    g.zero_grad()
    g.log_prob(rows[:8], z).sum().backward()
    for name, p in g.named_parameters():
        assert float((there[name] - p.grad).norm() / p.grad.norm()) < close, name
    assert torch.equal(g.log_prob(rows[:8], z), exact)


# --- on a GPU --------------------------------------------------------------------------------------------------------


@gpu
def test_captured_updates_follow_the_eager_reference_in_float32():
    config = resolve("text-demo/paper", [*SMALL, "precision=float32", "training.updates=12"])
    quick, eager = train(config, device="cuda"), train(resolve(config, ["engine=reference"]), device="cuda")
    for (name, p), q in zip(quick.named_parameters(), eager.parameters(), strict=True):
        assert float((p - q).detach().norm() / q.detach().norm()) < 1e-2, name


@gpu
def test_a_captured_update_in_bf16_computes_what_the_reference_does():
    config, method, rows = made(device="cuda")
    reference, x, index = copy.deepcopy(method), rows[:16, :16].contiguous(), torch.arange(16, device="cuda")
    reference.generator.lstm.flatten_parameters()  # the weights of a copy lie apart
    optimizers, rng = make_optimizers(method, config, capturable=True), stream(1, "chain", "cuda")
    engine = fast.make_update(method, optimizers, rng, x, index)
    for p, q in zip(method.parameters(), reference.parameters(), strict=True):
        assert torch.equal(p, q)  # warming up has moved nothing
    engine(x, index)
    update(reference, Batch(x, index), make_optimizers(reference, config), stream(1, "chain", "cuda"))
    assert float(method.last.log_px) == pytest.approx(float(reference.last.log_px), rel=0.02)
    torch.testing.assert_close(method.last.pos.z, reference.last.pos.z, rtol=0.1, atol=0.1)
    for (name, p), q in zip(method.named_parameters(), reference.parameters(), strict=True):
        assert torch.isfinite(p).all() and float((p - q).detach().abs().max()) < 0.02, name

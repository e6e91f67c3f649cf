"""The benchmark must time the right thing: its listing is held against the reference, its counts against known ones."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
import torch

from lebm.config import resolve
from lebm.config.build import build
from lebm.core.errors import ConfigError
from lebm.core.words import END, PAD, lengths
from lebm.data import load
from lebm.measure.result import KEYS

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import learning_step as bench
from listing import Listing, TextListing

CPU = torch.device("cpu")
SHORT = ["method.prior_chain.steps=2", "method.posterior_chain.steps=2", "training.batch=4"]
TINY = ["generator.ngf=2", "method.energy.width=8", *SHORT]


def quick(monkeypatch):
    """Every call is made once and takes two milliseconds."""
    monkeypatch.setattr(bench, "milliseconds", lambda call, seconds=0: (call(), 2.0)[1])


@pytest.mark.parametrize(
    ("preset", "teraflops"), [("svhn/paper", 0.6), ("celeba64/paper", 3.5), ("cifar10/paper", 18.1)]
)
def test_the_count_of_operations_is_the_known_one(preset, teraflops):
    assert bench.flops(resolve(preset), 100) / 1e12 == pytest.approx(teraflops, rel=0.01)


def test_operations_by_hand():
    """digits at ngf 2: first layer 16 -> 8 x 4 x 4, last layer 8 -> 1 under 16 taps at 16 pixels; energy 16-8-8-1."""
    config = resolve("digits/paper", TINY)
    forward = 2 * (16 * 8 * 16) + 2 * (16 * 8 * 16)
    energy = 2 * (16 * 8 + 8 * 8 + 8)
    paper = 2 * 2 * energy + 2 * (2 * forward + 2 * energy) + 3 * forward + 6 * energy
    assert bench.flops(config, 1) == paper
    encoder = 2 * (4 * 4 * 16 * 1 * 3) + 2 * (4 * 4 * 3 * 32)  # 1 -> 3 channels on 4 x 4, then 48 -> 2 nz
    start = "method.posterior_start={{kind: encoder, width: 3, objective: {}}}"
    by_imitation = resolve("digits/paper", [*TINY, "generator.widths=[1]", start.format("forward_kl")])
    assert (
        bench.flops(by_imitation, 1)
        == bench.flops(resolve("digits/paper", [*TINY, "generator.widths=[1]"]), 1) + 4 * encoder
    )
    by_score = resolve(by_imitation, ["method.posterior_start.objective=reverse_kl"])
    forward = 2 * (16 * 2 * 16) + 2 * (16 * 2 * 16)
    assert bench.flops(by_score, 1) == bench.flops(by_imitation, 1) + 2 * forward + 2 * energy


def test_operations_of_text_by_hand():
    config = resolve("text-demo/paper", ["method.prior_chain.steps=2", "method.posterior_chain.steps=3"])
    word = 2 * (4 * 64 * (32 + 16 + 64) + 64 * 200)
    energy = 2 * (16 * 100 + 100 * 100 + 100)
    chains = 2 * 2 * energy + 3 * (2 * 24 * word + 2 * energy)
    assert bench.flops(config, 1) == chains + 3 * 24 * word + 6 * energy


def test_the_listing_runs_the_reference_chains_without_noise(monkeypatch):
    """Without noise a chain is deterministic: the listing's eager autograd must follow the closed-form scores."""
    config = resolve("digits/paper", TINY)
    listing, method = Listing(config, CPU), build(config)
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    rng = torch.Generator().manual_seed(1)
    z, x = torch.randn(4, 16, generator=rng), torch.rand(4, 1, 8, 8, generator=rng) * 2 - 1
    prior = posterior = z
    with torch.no_grad():
        for _ in range(2):
            prior = prior + 0.08 * method.prior.score(prior)
            posterior = posterior + 0.005 * method.posterior_score(x, posterior)
    column = z[:, :, None, None]
    torch.testing.assert_close(listing.prior(column).flatten(1), prior, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(listing.posterior(column, x).flatten(1), posterior, rtol=1e-5, atol=1e-5)


def test_the_plain_loop_of_text_runs_the_reference_chain_without_noise(monkeypatch):
    steps = ["method.prior_chain.steps=5", "method.posterior_chain.steps=4"]
    config = resolve(
        "text-demo/paper", [*steps, "method.posterior_chain.first_steps=[0.5, 0.3]", "generator.dropout=0"]
    )
    splits, method, listing = load(config), build(config), TextListing(config, CPU)
    for generator in (method.generator, listing.text):
        generator.set_facts(splits.facts)
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    rows, z = splits.train[:6], torch.randn(6, 16, generator=torch.Generator().manual_seed(2))
    expected = z
    for s in (0.5, 0.3, 0.05, 0.05):
        expected = expected + 0.5 * s * s * method.posterior_score(rows, expected).detach()
    torch.testing.assert_close(listing.posterior(z, rows), expected, rtol=1e-5, atol=1e-5)


def test_the_listing_moves_its_weights_uphill():
    config = resolve("digits/paper", [*TINY, "optimizers.prior.rate=1e-3", "optimizers.generator.rate=1e-3"])
    listing = Listing(config, CPU)
    x, z_pos, z_neg = torch.zeros(4, 1, 8, 8), torch.ones(4, 16, 1, 1), -torch.ones(4, 16, 1, 1)
    gap = lambda: float((listing.e(z_pos.squeeze()).mean() - listing.e(z_neg.squeeze()).mean()).detach())  # noqa: E731
    error = lambda: float((listing.g(z_pos) - x).square().mean().detach())  # noqa: E731
    before = gap(), error()
    for _ in range(5):
        listing.update(x, z_pos, z_neg)
    assert gap() > before[0] and error() < before[1]


def test_rows_of_text_are_sentences():
    x = bench.example(resolve("ptb/paper"), 50)
    assert x.shape == (50, 32) and bool(((x == END).sum(1) == 1).all())
    assert 16 <= int(lengths(x).min()) <= int(lengths(x).max()) <= 32
    assert bool((x.masked_fill(x == PAD, END) >= END).all())


def test_milliseconds_counts_the_time_of_one_call():
    assert bench.milliseconds(lambda: time.sleep(0.003), 0.1) == pytest.approx(3, rel=0.5)


def test_a_benchmark_writes_a_result_with_every_field(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "BATCHES", (2, 4))
    monkeypatch.setattr(bench, "LENGTHS", (1, 2))
    quick(monkeypatch)
    bench.benchmark(["digits/paper"], "cpu", tmp_path / "b.json", True, TINY)
    result = json.loads((tmp_path / "b.json").read_text())
    assert tuple(result) == KEYS and result["name"] == "bench-cpu"
    assert result["config"]["digits/paper"] == resolve("digits/paper", TINY).to_dict()
    m = result["metrics"]["digits/paper"]
    assert m["listing_ms"] == 2 and m["ours_ms"] == pytest.approx(2.02) and m["prior_ratio"] == 1
    assert m["ratio"] == m["listing_ms"] / m["ours_ms"]
    assert m["images_per_s"] == 250_000
    assert m["floor_ms"] == pytest.approx(1e3 * m["flops"] / m["matrix_flops_per_s"])
    assert set(m["sweep"]) == {"batch", "k0", "k1"} and set(m["sweep"]["k1"]) == {"1", "2"}
    screen = capsys.readouterr().out
    assert "the paper's listing" in screen and "floor" in screen


def test_ours_is_the_update_of_training_with_the_chain_that_refines(monkeypatch):
    """A stage may leave the first updates without a posterior chain; those are not the ones that are timed."""
    config = resolve(
        "digits/paper",
        [
            *TINY,
            "method.posterior_start={kind: encoder, objective: reverse_kl, width: 2}",
            "training.stages=[{until: 5, set: {method.posterior_chain.steps: 0}}]",
            "method.prior_start.kind=replay",
        ],
    )
    quick(monkeypatch)
    chains = []
    monkeypatch.setattr(bench, "langevin", lambda score, z, chain, rng: chains.append((z.shape, chain.steps)))
    ours = bench.Ours(config, bench.example(config, 4), CPU)
    ours()
    pos = ours.method.last.pos
    assert float((pos.z - pos.z0).square().sum()) > 0 and int(ours.method.prior_start.rows) == 4
    assert ours.parts() == {"prior_ms": 2.0, "posterior_ms": 2.0} and chains == [((4, 16), 2)]


def test_what_training_would_only_warn_of_is_refused(tmp_path, monkeypatch):
    quick(monkeypatch)
    with pytest.raises(ConfigError, match="precision bfloat16"):
        bench.benchmark(["digits/paper"], "cpu", tmp_path / "b.json", False, [*TINY, "precision=bfloat16"])
    assert not list(tmp_path.iterdir())


def test_kernels_that_do_not_run_are_refused_once(monkeypatch):
    """Training would go on without them; a benchmark reports that, and not that the reference is measured."""
    pytest.importorskip("triton")
    config = resolve("digits/paper", TINY)
    monkeypatch.setattr("lebm.training.engine.wanted", lambda *_: True)
    monkeypatch.setattr("lebm.config.build._optimizer", lambda section, params, *_: torch.optim.Adam(params))
    monkeypatch.setattr("lebm.fast.fused.FusedStep", lambda *_, **__: 1 / 0)
    with pytest.raises(ConfigError) as e:
        bench.Ours(config, bench.example(config, 4), CPU)
    assert str(e.value).count("would not measure") == 1
    assert "division by zero" in str(e.value) and "reference (" not in str(e.value)


def test_a_prior_without_energy_is_refused():
    with pytest.raises(ConfigError, match="svhn/gaussian"):
        bench.benchmark(["svhn/gaussian"], "cpu", None, False, [])

"""The bench: it must time the right thing, so its listing is held against the reference, and its counts against known ones."""

import io
import json

import pytest
import torch
from rich.console import Console

from lebm import bench
from lebm.config import resolve
from lebm.errors import ConfigError
from lebm.listing import Listing
from lebm.model import LatentEBM
from lebm.results import KEYS

CPU = torch.device("cpu")
TINY = ["generator.ngf=2", "prior.width=8", "chains.prior.steps=2", "chains.posterior.steps=2", "training.batch=4"]


@pytest.mark.parametrize(("preset", "teraflops"), [("svhn", 0.6), ("celeba64", 3.5), ("cifar10", 18.1)])
def test_the_count_of_operations_is_the_known_one(preset, teraflops):
    assert bench.flops(resolve(preset), 100) / 1e12 == pytest.approx(teraflops, rel=0.01)


def test_operations_by_hand():
    """digits at ngf 2: first layer 16 -> 8 x 4 x 4, last layer 8 -> 1 under 16 taps at 16 pixels; energy 16-8-8-1."""
    config = resolve("digits", TINY)
    forward = 2 * (16 * 8 * 16) + 2 * (16 * 8 * 16)
    energy = 2 * (16 * 8 + 8 * 8 + 8)
    assert bench.flops(config, 1) == 2 * 2 * energy + 2 * (2 * forward + 2 * energy) + 3 * forward + 6 * energy


def test_the_listing_runs_the_reference_chains_without_noise(monkeypatch):
    """With the noise silenced a chain is deterministic: the listing's eager autograd must follow the closed-form scores."""
    config = resolve("digits", TINY)
    listing, model = Listing(config, CPU), LatentEBM(config)
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    rng = torch.Generator().manual_seed(1)
    z, x = torch.randn(4, 16, generator=rng), torch.rand(4, 1, 8, 8, generator=rng) * 2 - 1
    prior = posterior = z
    with torch.no_grad():
        for _ in range(2):
            prior = prior + 0.08 * model.prior.score(prior)
            posterior = posterior + 0.005 * model.posterior_score(x, posterior)
    torch.testing.assert_close(listing.prior(z[:, :, None, None]).flatten(1), prior, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(listing.posterior(z[:, :, None, None], x).flatten(1), posterior, rtol=1e-5, atol=1e-5)


def test_the_listing_moves_its_weights_uphill():
    config = resolve("digits", [*TINY, "learning.prior_rate=1e-3", "learning.generator_rate=1e-3"])
    listing = Listing(config, CPU)
    x, z_pos, z_neg = torch.zeros(4, 1, 8, 8), torch.ones(4, 16, 1, 1), -torch.ones(4, 16, 1, 1)
    gap = lambda: float((listing.e(z_pos.squeeze()).mean() - listing.e(z_neg.squeeze()).mean()).detach())  # noqa: E731
    error = lambda: float((listing.g(z_pos) - x).square().mean().detach())  # noqa: E731
    before = gap(), error()
    for _ in range(5):
        listing.update(x, z_pos, z_neg)
    assert gap() > before[0] and error() < before[1]


def test_milliseconds_counts_the_time_of_one_call():
    import time

    assert bench.milliseconds(lambda: time.sleep(0.003), CPU, 0.1) == pytest.approx(3, rel=0.5)


def test_a_bench_writes_a_result_with_every_field(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "BATCHES", (2, 4))
    monkeypatch.setattr(bench, "LENGTHS", (1, 2))
    monkeypatch.setattr(bench, "milliseconds", lambda call, device, seconds=0: (call(), 2.0)[1])
    screen = io.StringIO()
    bench.bench(["digits"], "cpu", tmp_path / "b.json", True, TINY, Console(file=screen, width=120))
    result = json.loads((tmp_path / "b.json").read_text())
    assert tuple(result) == KEYS and result["experiment"] == "bench-cpu"
    assert result["config"]["digits"] == resolve("digits", TINY).to_dict()
    m = result["metrics"]["digits"]
    assert m["listing_ms"] == m["ours_ms"] == 2 and m["ratio"] == m["prior_ratio"] == 1
    assert m["images_per_s"] == 250_000 and m["floor_ms"] == pytest.approx(1e3 * m["flops"] / m["matrix_flops_per_s"])
    assert set(m["sweep"]) == {"batch", "k0", "k1"} and set(m["sweep"]["k1"]) == {"1", "2"}
    assert "the paper's listing" in screen.getvalue() and "floor" in screen.getvalue()


def test_ours_is_the_step_of_training_with_the_chain_that_refines(monkeypatch):
    """draw.alone leaves the first updates without a posterior chain; those are not the ones that are timed."""
    warm = resolve("digits", [*TINY, "draw.posterior=warm", "encoder.teach=follow", "encoder.width=2", "draw.alone=5", "draw.prior=persistent"])
    monkeypatch.setattr(bench, "milliseconds", lambda call, device, seconds=0: (call(), 2.0)[1])
    walked = []
    monkeypatch.setattr(bench, "langevin", lambda score, z, chain, rng: walked.append((z.shape, chain.steps)))
    ours = bench.Ours(warm, bench.example(warm, 4), CPU, pytest.fail)
    step = ours.engine(ours.rows)
    assert float((step.z_pos - step.z0_pos).square().sum()) > 0 and int(ours.model.synthesis.rows) == 4
    assert ours.parts() == {"prior_ms": 2.0, "posterior_ms": 2.0} and walked == [((4, 16), 2)]


def test_what_training_would_only_warn_of_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="would not measure what was asked for: precision bfloat16 needs the fast engine"):
        bench.bench(["digits"], "cpu", tmp_path / "b.json", False, [*TINY, "precision=bfloat16"], Console(file=io.StringIO()))
    assert not list(tmp_path.iterdir())


def test_kernels_that_do_not_run_are_refused_once(monkeypatch):
    """Training would go on without them; a bench says so, and not that the reference is measured."""
    pytest.importorskip("triton")
    config = resolve("digits", TINY)
    monkeypatch.setattr("lebm.fast.wanted", lambda *_: True)
    monkeypatch.setattr("lebm.fast.engine.FusedStep", lambda *_, **__: 1 / 0)
    with pytest.raises(ConfigError) as e:
        bench.Ours(config, bench.example(config, 4), CPU, bench._refuse)
    assert str(e.value).count("the bench would not measure") == 1 and "division by zero" in str(e.value) and "reference (" not in str(e.value)


def test_a_gaussian_prior_is_refused():
    with pytest.raises(ConfigError, match="Gaussian"):
        bench.bench(["svhn-gaussian"], "cpu", None, False, [], Console(file=io.StringIO()))

"""The sampler against laws that are known exactly at every finite number of steps."""

import json
import math

import pytest
import torch

from lebm.config import LatentEBMConfig
from lebm.core.errors import DataError
from lebm.extensions.tempered_chain import TemperedChain
from lebm.sampler import Chain, SamplerSpec, langevin

N = 200_000  # values behind every moment


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


def gaussian_score(mu, v):
    return lambda z: (mu - z) / v


def assert_moments(values, mean, var):
    """Within 5 standard errors: sqrt(var/n) of the mean and var sqrt(2/(n - 1)) of the variance of a Gaussian
    sample."""
    n = values.numel()
    assert abs(values.mean().item() - mean) < 5 * math.sqrt(var / n)
    assert abs(values.var().item() - var) < 5 * var * math.sqrt(2 / (n - 1))


def law(z0, mu, v, chain):
    """Mean and variance of an unadjusted chain on N(mu, v) after its K steps from z0: Gaussian, with a = 1 -
    s^2/(2v)."""
    s, k = chain.step_size, chain.steps
    a = 1 - s * s / (2 * v)
    return mu + a**k * (z0 - mu), s * s * (1 - a ** (2 * k)) / (1 - a * a)


CASES = [  # (mu, v, s); the last overshoots in every step (a = -0.44)
    (0.0, 1.0, 0.4),
    (1.3, 0.5, 0.4),
    (-0.7, 0.09, 0.1),
    (0.5, 0.5, 1.2),
]


@pytest.mark.parametrize("steps", [1, 2, 5, 20, 60])
@pytest.mark.parametrize(("mu", "v", "s"), CASES)
def test_gaussian_target_has_the_exact_law_at_every_length(mu, v, s, steps):
    chain, z0 = Chain(steps, s), -2.0
    z = langevin(gaussian_score(mu, v), torch.full((N // 4, 4), z0, dtype=torch.float64), chain, rng(steps))
    assert z.dtype == torch.float64
    assert_moments(z, *law(z0, mu, v, chain))


def test_the_bound_catches_two_percent_more_noise():
    """The tolerance above is tight enough: the same chain with s e -> 1.02 s e lies outside it."""
    mu, v, s, steps = 1.3, 0.5, 0.4, 20
    noisy = rng()
    z = torch.full((N,), -2.0, dtype=torch.float64)
    for _ in range(steps):
        z = z + 0.5 * s * s * (mu - z) / v + 1.02 * s * torch.randn(N, generator=noisy, dtype=torch.float64)
    with pytest.raises(AssertionError):
        assert_moments(z, *law(-2.0, mu, v, Chain(steps, s)))


def test_step_size_is_s_with_drift_half_s_squared():
    """0.4 is the s of (s^2/2) grad + s e: a unit score moves by 0.08 and the noise has deviation 0.4,
    not the paper's s grad + sqrt(2 s) e, which would move by 0.4 with deviation 0.89."""
    start = torch.zeros(N, 1, dtype=torch.float64)
    drifted = langevin(torch.ones_like, start, Chain(1, 0.4), rng())
    still = langevin(torch.zeros_like, start, Chain(1, 0.4), rng())
    torch.testing.assert_close(drifted - still, torch.full_like(start, 0.08), rtol=0, atol=1e-15)
    assert_moments(still, 0.0, 0.16)


def test_published_step_sizes_are_the_defaults():
    method = LatentEBMConfig()
    assert Chain() == Chain(60, 0.4)
    assert (method.prior_chain.steps, method.prior_chain.step_size) == (60, 0.4)
    assert (method.posterior_chain.steps, method.posterior_chain.step_size) == (20, 0.1)


def test_equals_the_recursion_written_out():
    score = gaussian_score(torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64), 0.7)
    z = start = torch.randn(5, 3, generator=rng(2), dtype=torch.float64)
    noise = rng(3)
    for _ in range(7):
        z = z + 0.1**2 / 2 * score(z) + 0.1 * torch.randn(5, 3, generator=noise, dtype=torch.float64)
    torch.testing.assert_close(langevin(score, start, Chain(7, 0.1), rng(3)), z, rtol=0, atol=1e-14)


def test_rows_and_coordinates_are_independent():
    """Correlations of n independent pairs have standard error 1/sqrt(n)."""
    z = langevin(gaussian_score(0.0, 1.0), torch.zeros(N, 2, dtype=torch.float64), Chain(5, 0.4), rng())
    coordinates = torch.corrcoef(z.t())[0, 1].item()
    neighbours = torch.corrcoef(torch.stack([z[:-1, 0], z[1:, 0]]))[0, 1].item()
    assert abs(coordinates) < 5 / math.sqrt(N)
    assert abs(neighbours) < 5 / math.sqrt(N)


def test_same_generator_same_path_other_generator_other_path():
    start, chain = torch.zeros(3, 2, dtype=torch.float64), Chain(5, 0.4)
    one, again, other = (langevin(torch.neg, start, chain, rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not (one == other).any()


def test_global_seed_is_neither_used_nor_moved():
    state = torch.random.get_rng_state()
    langevin(torch.neg, torch.zeros(3, 2), Chain(5, 0.4), rng())
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("shared", [False, True])
def test_no_steps_return_the_start(shared):
    start = torch.randn(4, 3, generator=rng())
    generator = rng()
    state = generator.get_state()
    assert torch.equal(langevin(torch.neg, start, Chain(0, 0.4), generator, shared_noise=shared), start)
    assert torch.equal(generator.get_state(), state)


# --- shared noise -----------------------------------------------------------------------------------------------------


def test_shared_noise_gives_equal_rows_from_equal_starts_and_plain_noise_does_not():
    start = torch.full((4, 3), 0.5, dtype=torch.float64)
    shared = langevin(torch.neg, start, Chain(9, 0.4), rng(), shared_noise=True)
    plain = langevin(torch.neg, start, Chain(9, 0.4), rng())
    assert torch.equal(shared, shared[:1].expand(4, -1))
    assert len(plain.unique()) == plain.numel()
    assert len(shared[0].unique()) == 3  # the coordinates still have noise of their own


def test_shared_noise_makes_a_row_independent_of_its_neighbours():
    start = torch.randn(6, 3, generator=rng(5), dtype=torch.float64)
    together = langevin(gaussian_score(1.0, 0.3), start, Chain(9, 0.2), rng(), shared_noise=True)
    for i in range(6):
        alone = langevin(gaussian_score(1.0, 0.3), start[i : i + 1], Chain(9, 0.2), rng(), shared_noise=True)
        assert torch.equal(together[i : i + 1], alone)


def test_a_row_under_shared_noise_has_the_same_law():
    mu, v, chain = 1.3, 0.5, Chain(20, 0.4)
    z = langevin(gaussian_score(mu, v), torch.full((2, N), -2.0, dtype=torch.float64), chain, rng(), shared_noise=True)
    assert_moments(z[1], *law(-2.0, mu, v, chain))


# --- watch ------------------------------------------------------------------------------------------------------------


def test_watch_is_given_every_state_from_the_start_to_the_end():
    start = torch.randn(3, 2, generator=rng(4), dtype=torch.float64)
    seen: list[tuple[int, torch.Tensor]] = []
    end = langevin(torch.neg, start, Chain(6, 0.4), rng(), watch=lambda k, z: seen.append((k, z)))
    assert [k for k, _ in seen] == list(range(7))
    assert torch.equal(seen[0][1], start)
    assert torch.equal(seen[-1][1], end)
    for k, z in seen:  # a shorter chain of the same generator is a prefix; earlier states are not overwritten
        assert torch.equal(z, langevin(torch.neg, start, Chain(k, 0.4), rng()))


def test_start_is_left_as_it_was():
    start = torch.ones(3, 2, dtype=torch.float64)
    langevin(torch.neg, start, Chain(3, 0.4), rng())
    assert torch.equal(start, torch.ones(3, 2, dtype=torch.float64))


# --- chunks and preconditioning ---------------------------------------------------------------------------------------


def test_noise_of_a_whole_chunk_makes_a_path_independent_of_how_many_rows_follow():
    start = torch.randn(7, 3, generator=rng(5), dtype=torch.float64)
    many = langevin(gaussian_score(1.0, 0.3), start, Chain(9, 0.2), rng(), chunk=7)
    few = langevin(gaussian_score(1.0, 0.3), start[:3], Chain(9, 0.2), rng(), chunk=7)
    assert torch.equal(many[:3], few)
    assert torch.equal(many, langevin(gaussian_score(1.0, 0.3), start, Chain(9, 0.2), rng()))


# --- tempered chains --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [2, 3, 8])
def test_first_steps_and_less_noise_have_their_exact_law(steps):
    """mean <- mu + a_k (mean - mu), var <- a_k^2 var + (noise s_k)^2, with a_k = 1 - s_k^2/(2v)."""
    mu, v, z0, chain = 0.7, 0.8, -2.0, TemperedChain(steps, 0.2, (0.9, 0.6, 0.5), 0.3)
    mean, var = z0, 0.0
    for s in [0.9, 0.6, 0.5, *[0.2] * 5][:steps]:
        a = 1 - s * s / (2 * v)
        mean, var = mu + a * (mean - mu), a * a * var + (0.3 * s) ** 2
    z = langevin(gaussian_score(mu, v), torch.full((N,), z0, dtype=torch.float64), chain, rng(steps))
    assert_moments(z, mean, var)


def test_a_drift_limit_shortens_long_drifts_and_leaves_short_ones():
    """A gradient of 1,000 a coordinate would move a row by 320 at s = 0.8; limited, by 1 in its direction. Short drifts
    keep the exact law."""
    steep = torch.tensor([[600.0, -800.0], [0.0, 0.0]], dtype=torch.float64)
    z = langevin(lambda z: steep, torch.zeros(2, 2, dtype=torch.float64), TemperedChain(1, 0.8, (), 0.0, 1.0), rng())
    torch.testing.assert_close(z[0], steep[0] / 1000 * math.sqrt(2))
    assert torch.equal(z[1], torch.zeros(2, dtype=torch.float64))
    start, score = torch.randn(50, 3, generator=rng(2), dtype=torch.float64), gaussian_score(0.3, 0.7)
    limited = langevin(score, start, TemperedChain(5, 0.2, (), 1.0, 10.0), rng(3))
    assert torch.equal(limited, langevin(score, start, Chain(5, 0.2), rng(3)))


def test_a_chain_without_tempering_is_the_papers():
    plain, tempered = Chain(6, 0.3), TemperedChain(6, 0.3)
    score, start = gaussian_score(0.3, 0.7), torch.randn(5, 3, generator=rng(2), dtype=torch.float64)
    assert torch.equal(langevin(score, start, plain, rng(3)), langevin(score, start, tempered, rng(3)))
    assert plain.reach == tempered.reach == pytest.approx(6 * 0.3**2 / 2)
    assert TemperedChain(3, 0.1, (1.0,)).reach == pytest.approx((1 + 2 * 0.01) / 2)


# --- how a draw is described ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "samples", "words"),
    [
        (SamplerSpec("prior", "noise", 60, 0.4), 1, "60 steps of 0.4 from N(0, I)"),
        (SamplerSpec("prior", "noise", 1, 0.4), 1, "1 step of 0.4 from N(0, I)"),
        (SamplerSpec("prior", base="a mixture"), 1, "drawn from a mixture"),
        (SamplerSpec("posterior", "encoder", 0, 0.1), 1, "by the encoder alone"),
        (SamplerSpec("posterior", "encoder", 20, 0.1), 1, "20 steps of 0.1 from the encoder's proposal"),
        (SamplerSpec("prior", "flow"), 1, "by the flow alone"),
        (SamplerSpec("prior", "replay", 3, 0.4, replay_chains=30), 30, "3 steps of 0.4 continuing the replayed chains"),
        (SamplerSpec("prior", "replay", 3, 0.4, replay_chains=30), 40, "3 to 6 steps of 0.4 continuing the replayed"),
    ],
)
def test_a_sampler_is_put_into_words(spec, samples, words):
    assert spec.in_words(samples).startswith(words)


def test_a_sampler_survives_json():
    spec = SamplerSpec("prior", "replay", 5, 0.1, options={"first_steps": (0.3, 0.2), "noise": 0.5}, replay_chains=30)
    plain = json.loads(json.dumps(spec.to_dict()))
    assert SamplerSpec.from_dict(plain).to_dict() == spec.to_dict()
    assert plain["options"] == {"first_steps": [0.3, 0.2], "noise": 0.5}
    assert [spec.rounds(n) for n in (1, 30, 31, 100)] == [1, 1, 2, 4] and SamplerSpec("prior").rounds(100) == 1
    for wrong in ({}, {"target": "x"}, {"target": "prior", "by": "langevin"}, ["prior"]):
        with pytest.raises(DataError, match="sampler"):
            SamplerSpec.from_dict(wrong)

"""log Z and log p(x) against what is known in closed form or by quadrature."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from lebm import build
from lebm.config import resolve
from lebm.core.errors import DataError, NotDefined
from lebm.core.rng import stream
from lebm.extensions.encoder_start import EncoderStart
from lebm.extensions.tempered_chain import TemperedChain
from lebm.latent_ebm import LatentEBM
from lebm.measure import ais
from lebm.measure.ais import LogZ, anneal, ladder, log_mean, log_z, pilot
from lebm.measure.likelihood import bits_per_dimension, log_likelihood
from lebm.method import Method
from lebm.prior import EnergyNetwork, EnergyPrior, StandardNormal
from lebm.sampler import Chain

EXACT = LogZ(0.0, 0.0, 1.0, 1, 1)


class Energy(nn.Module):
    """f by its value and gradient."""

    def __init__(self, f, gradient):
        super().__init__()
        self.f, self.score = f, gradient

    def forward(self, z):
        return self.f(z)


def tilted(nz, f, gradient):
    return EnergyPrior(StandardNormal(nz), Energy(f, gradient)).double()


def linear(alpha):
    return tilted(len(alpha), lambda z: z @ alpha, lambda z: alpha.expand_as(z))


def agrees(estimate, truth, slack=0.02):
    assert abs(estimate.value - truth) < 4 * estimate.error + slack, f"{estimate} against {truth}"
    assert estimate.error < 0.2


@pytest.mark.parametrize("size", [0.5, 2.0, 4.0])
def test_a_linear_tilt_moves_the_gaussian(size):
    """f = alpha.z: Z = exp(|alpha|^2 / 2)."""
    alpha = torch.full((8,), size / math.sqrt(8), dtype=torch.float64)
    agrees(log_z(linear(alpha), chains=500, temperatures=150), size**2 / 2)


@pytest.mark.parametrize("a", [1.5, -0.4])
def test_a_quadratic_tilt_changes_its_width(a):
    """f = -a |z|^2 / 2: Z = (1 + a)^(-d/2)."""
    prior = tilted(6, lambda z: -0.5 * a * z.square().sum(-1), lambda z: -a * z)
    agrees(log_z(prior, chains=500, temperatures=150), -3 * math.log(1 + a))


@pytest.mark.parametrize("nz", [1, 2])
def test_an_energy_network_against_quadrature(nz):
    torch.manual_seed(3)
    prior = EnergyPrior(StandardNormal(nz), EnergyNetwork(nz)).double()
    for p in prior.parameters():
        p.data.mul_(1.6)
    side = torch.linspace(-9, 9, 1501 if nz == 1 else 151, dtype=torch.float64)
    grid = torch.cartesian_prod(*[side] * nz).view(-1, nz)
    with torch.no_grad():
        truth = float(prior.log_prob(grid).logsumexp(0)) + nz * math.log(float(side[1] - side[0]))
    assert abs(truth) > 0.1  # something to find
    agrees(log_z(prior, chains=500, temperatures=60), truth)


def test_two_far_modes():
    """f = log cosh(4 z_1) is two Gaussians at +-4: Z = exp(8)."""
    f = lambda z: torch.logaddexp(4 * z[..., 0], -4 * z[..., 0]) - math.log(2)  # noqa: E731
    gradient = lambda z: torch.cat([4 * torch.tanh(4 * z[..., :1]), torch.zeros_like(z[..., 1:])], -1)  # noqa: E731
    agrees(log_z(tilted(3, f, gradient), chains=1000, temperatures=300), 8.0)


def test_a_wrong_score_does_not_bias_the_chains():
    """The moves are Metropolis-adjusted: a bad gradient only slows them, as it should."""
    alpha = torch.tensor([1.0, -1.0], dtype=torch.float64)
    prior = tilted(2, lambda z: z @ alpha, lambda z: -0.5 * alpha.expand_as(z))
    agrees(log_z(prior, chains=1000, temperatures=300), 1.0)


def test_the_fixed_prior_has_log_z_zero():
    z = log_z(EnergyPrior(StandardNormal(5)), chains=10, temperatures=3)
    assert (z.value, z.error, round(z.ess, 3)) == (0.0, 0.0, 10.0)


def test_more_temperatures_make_the_error_smaller():
    alpha = torch.full((20,), 0.8, dtype=torch.float64)
    rough, fine = (log_z(linear(alpha), chains=500, temperatures=t) for t in (10, 150))
    assert fine.error < rough.error and fine.ess > 3 * rough.ess
    assert rough.value < 6.4  # biased low, as the module says


def test_a_few_chains_are_the_first_of_many(monkeypatch):
    seen = []
    monkeypatch.setattr(ais, "log_mean", lambda w: seen.append(w) or log_mean(w))
    alpha = torch.tensor([1.0], dtype=torch.float64)
    log_z(linear(alpha), chains=600, temperatures=3)
    log_z(linear(alpha), chains=20, temperatures=3)
    assert torch.equal(seen[0][:20], seen[1]) and len(seen[0]) == 600 and seen[0][:500].unique().numel() == 500


def test_chains_end_in_their_last_density():
    """After many moves at b near 1 the chains are draws of `end`: mean 2 and variance 1/4 here."""
    start = lambda z: (-0.5 * z.square().sum(-1), -z)  # noqa: E731
    end = lambda z: (-2 * (z - 2).square().sum(-1), -4 * (z - 2))  # noqa: E731
    rng = stream(0, "test")
    z = torch.randn(4000, 1, generator=rng, dtype=torch.float64)
    betas = ladder(60) + [1.0] * 40
    sizes = pilot(start, end, z, betas, rng)
    _, z = anneal(start, end, z, betas, sizes, rng)
    assert abs(float(z.mean()) - 2) < 5 * 0.5 / math.sqrt(4000)
    assert abs(float(z.var()) - 0.25) < 5 * 0.25 * math.sqrt(2 / 4000)


@pytest.mark.parametrize(("chains", "temperatures"), [(1, 10), (10, 0)])
def test_too_few_are_refused(chains, temperatures):
    with pytest.raises(DataError, match="at least"):
        log_z(EnergyPrior(StandardNormal(2)), chains=chains, temperatures=temperatures)


# --- log p(x) ---------------------------------------------------------------------------------------------------------


class Linear(nn.Module):
    """x = W z + sigma e: p(x) is a Gaussian that can be written down. No score: autograd must do."""

    def __init__(self, w, sigma=0.5):
        super().__init__()
        self.w, self.sigma = nn.Parameter(w), sigma

    def decode(self, z):
        return z @ self.w.T

    def log_prob(self, x, z):
        d = x.shape[-1]
        return -(x - self.decode(z)).square().sum(-1) / (2 * self.sigma**2) - 0.5 * d * math.log(
            2 * math.pi * self.sigma**2
        )


@pytest.fixture
def known():
    """A linear model on a linear tilt: z ~ N(alpha, I), so x ~ N(W alpha, W W^T + sigma^2 I)."""
    torch.manual_seed(1)
    w, alpha = torch.randn(5, 3, dtype=torch.float64), torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
    model = LatentEBM(linear(alpha), Linear(w), posterior_chain=Chain(20, 0.2)).double()
    x = torch.randn(7, 5, dtype=torch.float64)
    law = torch.distributions.MultivariateNormal(w @ alpha, w @ w.T + 0.25 * torch.eye(5, dtype=torch.float64))
    return model, x, law.log_prob(x), LogZ(float(alpha.square().sum() / 2), 0.0, 1.0, 1, 1)


@pytest.mark.parametrize("temperatures", [1, 20])
def test_log_p_of_x_in_a_linear_model(known, temperatures):
    model, x, truth, z = known
    px = log_likelihood(model, x, z, particles=100, temperatures=temperatures)
    assert float((px.values - truth).abs().max()) < 0.1
    assert float(px.ess.min()) > 30


class Exact(nn.Module):
    """An encoder that knows the posterior's mean."""

    def __init__(self, w, alpha):
        super().__init__()
        self.gain = torch.linalg.inv(torch.eye(3, dtype=torch.float64) + w.T @ w / 0.25).detach()
        self.w, self.alpha = w.detach(), alpha

    def draw(self, e, x):
        return (self.alpha + x @ self.w / 0.25) @ self.gain + 0.3 * e, None


def test_chains_that_only_refine_start_from_the_encoder(known):
    """Steps of 0.02 do not come from N(0, I) to a posterior that lies 30 away in a hundred steps."""
    model, x, _, z = known
    w, alpha = model.generator.module.w.detach(), torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
    x = x + 30 * w.sum(1)
    law = torch.distributions.MultivariateNormal(w @ alpha, w @ w.T + 0.25 * torch.eye(5, dtype=torch.float64))
    model.posterior_chain = TemperedChain(20, 0.02, drift_limit=0.5)
    far = log_likelihood(model, x, z, particles=100, temperatures=20)
    model.posterior_start = EncoderStart(Exact(w, alpha), "reverse_kl")
    near = log_likelihood(model, x, z, particles=100, temperatures=20)
    assert float((near.values - law.log_prob(x)).abs().max()) < 0.3 and float(near.ess.min()) > 30
    assert float((far.values - law.log_prob(x)).abs().min()) > 3


def test_a_rows_likelihood_does_not_depend_on_its_neighbours(known):
    model, x, _, z = known
    together = log_likelihood(model, x, z, particles=200, temperatures=4).values  # two rows at a time
    alone = log_likelihood(model, x[4:5], z, particles=200, temperatures=4).values
    assert abs(float(together[4] - alone[0])) < 1e-6


def test_log_z_is_subtracted_and_its_error_counts(known):
    model, x, *_ = known
    plain = log_likelihood(model, x, EXACT, particles=8, temperatures=1)
    tilted = log_likelihood(model, x, LogZ(2.0, 3.0, 1.0, 1, 1), particles=8, temperatures=1)
    assert torch.allclose(plain.values - 2, tilted.values)
    assert tilted.error**2 == pytest.approx(plain.error**2 + 9) and tilted.mean == pytest.approx(plain.mean - 2)


def test_images_of_a_real_generator_have_a_likelihood():
    model = build(resolve("digits"))
    z = log_z(model.prior, chains=20, temperatures=5)
    px = log_likelihood(model, torch.zeros(3, 1, 8, 8), z, particles=4, temperatures=3, steps=4)
    assert px.values.shape == px.ess.shape == (3,) and bool(torch.isfinite(px.values).all())


def test_a_method_without_a_density_of_z_is_refused(known):
    """It has a sampler of z, and nothing else that an estimate needs."""
    model, x, *_ = known

    class Other(Method):
        def __init__(self):
            super().__init__()
            self.generator = model.generator

        def samplers(self):
            return model.samplers()

    with pytest.raises(NotDefined, match="the method Other has no energy-based prior"):
        log_likelihood(Other(), x, EXACT)


def test_particles_are_needed(known):
    with pytest.raises(DataError, match="particles"):
        log_likelihood(known[0], known[1], EXACT, particles=1)


def test_bits_per_dimension():
    """A uniform density on [-1, 1] needs all 8 bits (up to 255 against 256 levels); twice the density one bit less."""
    assert bits_per_dimension(10 * math.log(0.5), 10) == pytest.approx(math.log2(255))
    assert bits_per_dimension(0.0, 10) == pytest.approx(math.log2(255) - 1)


def test_effective_number_of_weights():
    value, ess = log_mean(torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, -900.0, -900.0, -900.0]]))
    assert np.allclose(value, [0, -math.log(4)]) and np.allclose(ess, [4, 1])

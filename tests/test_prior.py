"""The prior: closed-form scores against autograd, constants against quadrature."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm
from torch import nn

from lebm.prior import EnergyNetwork, EnergyPrior, StandardNormal, log_normal

ACTIVATIONS = {
    "leaky_relu": lambda leak: nn.LeakyReLU(leak),
    "gelu": lambda _: nn.GELU(),
    "silu": lambda _: nn.SiLU(),
    "tanh": lambda _: nn.Tanh(),
}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def energy(nz, seed=0, scale=1.0, base=None, **network):
    """A float64 prior whose weights AND biases are away from zero."""
    prior = EnergyPrior(base or StandardNormal(nz), EnergyNetwork(nz, **network)).double()
    for i, p in enumerate(prior.parameters()):
        p.data = scale * normal(*p.shape, seed=seed + i) / math.sqrt(p.shape[-1])
    return prior


def plain(prior):
    """The same f as PyTorch's own layers in a row."""
    *hidden, last = prior.energy.layers
    act = ACTIVATIONS[prior.energy.activation](prior.energy.leak)
    return nn.Sequential(*itertools.chain.from_iterable((layer, act) for layer in hidden), last)


def autograd_score(prior, z):
    """grad of f + log N(0, I), both written with PyTorch's own parts."""
    z = z.detach().requires_grad_()
    log_p = plain(prior)(z).sum() + torch.distributions.Normal(0.0, 1.0).log_prob(z).sum()
    return torch.autograd.grad(log_p, z)[0]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("depth", "width", "leak"), [(1, 1, 0.2), (1, 16, 0.0), (2, 8, 0.2), (3, 5, 0.01), (5, 4, 0.7)]
)
def test_score_is_the_gradient(activation, depth, width, leak):
    prior = energy(6, seed=depth, activation=activation, depth=depth, width=width, leak=leak)
    z = 2 * normal(50, 6, seed=9)
    torch.testing.assert_close(prior.score(z), autograd_score(prior, z), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(prior.f(z), plain(prior)(z)[:, 0], rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 9),
    nz=st.integers(1, 12),
    width=st.integers(1, 20),
    depth=st.integers(1, 4),
    leak=st.floats(0, 0.99),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    scale=st.floats(0.1, 4),
    seed=st.integers(0, 1000),
)
def test_score_is_the_gradient_at_any_shape(n, nz, width, depth, leak, activation, scale, seed):
    prior = energy(nz, seed, scale, activation=activation, depth=depth, width=width, leak=leak)
    z = 2 * normal(n, nz, seed=seed + 99)
    score, expected = prior.score(z), autograd_score(prior, z)
    assert score.shape == (n, nz)
    assert prior.f(z).shape == prior.log_prob(z).shape == (n,)
    # weights of size `scale` multiply to about scale^(depth + 1), and rounding with them
    torch.testing.assert_close(score, expected, rtol=1e-10, atol=1e-10 * max(1.0, scale) ** (depth + 1))


def test_log_prob_is_f_plus_the_whole_normal_density():
    prior, z = energy(5, width=7), 2 * normal(30, 5, seed=3)
    log_n = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(1)
    torch.testing.assert_close(log_normal(z), log_n, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(prior.log_prob(z), plain(prior)(z)[:, 0] + log_n, rtol=1e-12, atol=1e-12)


def test_f_is_the_negative_energy():
    """Raising f raises log_prob by the same amount, and the score climbs f: a prior tilted to the right pushes
    right."""
    prior, z = energy(3, width=6), normal(20, 3)
    before = prior.log_prob(z)
    prior.energy.layers[-1].bias.data += 1.5
    torch.testing.assert_close(prior.log_prob(z) - before, torch.full_like(before, 1.5), rtol=0, atol=1e-13)
    tilted, one = linear(0.8, 0.0), torch.ones(1, 1, dtype=torch.float64)
    assert tilted.f(one).item() == pytest.approx(0.8, abs=1e-15)
    assert tilted.score(one / 4).item() == pytest.approx(0.8 - 0.25, abs=1e-15)


# --- constants: Z = E over N(0, I) of exp f, by quadrature of exp(log_prob) in one dimension --------------------------


def linear(slope, shift, leak=0.2):
    """f(z) = slope z + shift from two leaky units: lrelu(u) - lrelu(-u) = (1 + leak) u."""
    prior = EnergyPrior(StandardNormal(1), EnergyNetwork(1, width=2, depth=1, leak=leak)).double()
    values = ([[1.0], [-1.0]], [0.0, 0.0], [[slope / (1 + leak), -slope / (1 + leak)]], [shift])
    for p, value in zip(prior.parameters(), values, strict=True):
        p.data = torch.tensor(value, dtype=torch.float64)
    return prior


def integral(prior):
    """The integral of exp(log_prob), in two pieces because a leaky unit has its kink at 0."""

    def density(z):
        return prior.log_prob(torch.tensor([[z]], dtype=torch.float64)).exp().item()

    return sum(quad(density, a, b, epsabs=1e-13, epsrel=1e-12, limit=200)[0] for a, b in ((-12, 0), (0, 12)))


@pytest.mark.parametrize(("slope", "shift"), [(0.0, 0.0), (0.0, -1.7), (1.3, 0.0), (-0.6, 0.4)])
def test_linear_f_has_its_closed_normalising_constant(slope, shift):
    """E exp(c z + b) = exp(b + c^2/2)."""
    assert math.log(integral(linear(slope, shift))) == pytest.approx(shift + slope**2 / 2, abs=1e-10)


@pytest.mark.parametrize(("slope", "leak"), [(0.9, 0.2), (-1.4, 0.05)])
def test_one_leaky_unit_has_its_closed_normalising_constant(slope, leak):
    """f = c lrelu(z): E exp f = exp(c^2/2) Phi(c) + exp((lc)^2/2) Phi(-lc)."""
    prior = EnergyPrior(StandardNormal(1), EnergyNetwork(1, width=1, depth=1, leak=leak)).double()
    for p, value in zip(prior.parameters(), (1.0, 0.0, slope, 0.0), strict=True):
        p.data.fill_(value)
    low = leak * slope
    closed = math.exp(slope**2 / 2) * norm.cdf(slope) + math.exp(low**2 / 2) * norm.cdf(-low)
    assert integral(prior) == pytest.approx(closed, rel=1e-10)


def test_any_f_integrates_to_the_expectation_of_its_exponential():
    """The same constant as a trapezoid sum of exp(f) times SciPy's density, exact to rounding for a smooth f."""
    prior = energy(1, seed=4, width=6, activation="tanh")
    z = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    expected = (plain(prior)(z[:, None])[:, 0].exp() * torch.from_numpy(norm.pdf(z.numpy()))).sum().item() * 0.005
    assert integral(prior) == pytest.approx(expected, rel=1e-10)


# --- without an energy, and where chains start ------------------------------------------------------------------------


def test_without_an_energy_f_is_zero():
    prior, z = EnergyPrior(StandardNormal(4)).double(), normal(7, 4)
    assert torch.equal(prior.f(z), torch.zeros(7, dtype=torch.float64))
    assert torch.equal(prior.score(z), -z)
    log_n = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(1)
    torch.testing.assert_close(prior.log_prob(z), log_n, rtol=1e-13, atol=1e-13)
    assert list(prior.parameters()) == []
    assert prior.state_dict() == {} == prior.networks()
    assert integral(EnergyPrior(StandardNormal(1)).double()) == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("network", [EnergyNetwork(2, width=3), None], ids=["energy", "no energy"])
def test_chains_start_at_the_standard_normal(network):
    """200,000 values: 5 standard errors of mean (1/sqrt(n)), variance (sqrt(2/n)) and correlation (1/sqrt(n))."""
    base = EnergyPrior(StandardNormal(2), network).double().base
    z = base.draw(100_000, torch.Generator().manual_seed(1))
    assert z.shape == (100_000, 2)
    assert z.dtype == torch.float64
    assert abs(z.mean().item()) < 5 / math.sqrt(z.numel())
    assert abs(z.var().item() - 1) < 5 * math.sqrt(2 / z.numel())
    assert abs(torch.corrcoef(z.t())[0, 1].item()) < 5 / math.sqrt(len(z))
    assert torch.equal(z, base.noise(100_000, torch.Generator().manual_seed(1)))


def test_the_standard_base_leaves_z_as_it_is():
    base, z = StandardNormal(3).double(), normal(5, 3)
    out = torch.empty_like(z)
    assert base.whiten(z) is z and base.unwhiten(z) is z and base.unwhiten(z, out) is out and torch.equal(out, z)
    assert base.root is None and base.log_det() == 0 and base.follows() and not list(base.phases(z, z))


def test_network_has_the_asked_for_layers_and_xavier_weights():
    network = EnergyNetwork(100, width=200, depth=2)
    assert [tuple(layer.weight.shape) for layer in network.layers] == [(200, 100), (200, 200), (1, 200)]
    w = network.layers[1].weight.detach().double()
    # variance 2/(fan in + fan out) of 40,000 values, within 5 standard errors
    assert abs(w.var().item() * 200 - 1) < 5 * math.sqrt(2 / w.numel())

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

from lebm.config import Chain, Prior
from lebm.likelihood import log_z
from lebm.prior import PRIORS, EnergyPrior, GaussianPrior, log_normal

ACTIVATIONS = {"leaky_relu": lambda leak: nn.LeakyReLU(leak), "gelu": lambda _: nn.GELU(), "silu": lambda _: nn.SiLU(), "tanh": lambda _: nn.Tanh()}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def energy(nz, seed=0, scale=1.0, **config):
    """A float64 prior whose weights AND biases are away from zero."""
    prior = EnergyPrior(nz, Prior(**config)).double()
    for i, p in enumerate(prior.parameters()):
        p.data = scale * normal(*p.shape, seed=seed + i) / math.sqrt(p.shape[-1])
    return prior


def plain(prior):
    """The same f as PyTorch's own layers in a row."""
    *hidden, last = prior.layers
    act = ACTIVATIONS[prior.config.activation](prior.config.leak)
    return nn.Sequential(*itertools.chain.from_iterable((layer, act) for layer in hidden), last)


def autograd_score(prior, z):
    """grad of f + log N(0, I), both written with PyTorch's own parts."""
    z = z.detach().requires_grad_()
    log_p = plain(prior)(z).sum() + torch.distributions.Normal(0.0, 1.0).log_prob(z).sum()
    return torch.autograd.grad(log_p, z)[0]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("depth", "width", "leak"), [(1, 1, 0.2), (1, 16, 0.0), (2, 8, 0.2), (3, 5, 0.01), (5, 4, 0.7)])
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
    """Raising f raises log_prob by the same amount, and the score climbs f: a prior tilted to the right pushes right."""
    prior, z = energy(3, width=6), normal(20, 3)
    before = prior.log_prob(z)
    prior.layers[-1].bias.data += 1.5
    torch.testing.assert_close(prior.log_prob(z) - before, torch.full_like(before, 1.5), rtol=0, atol=1e-13)
    tilted, one = linear(0.8, 0.0), torch.ones(1, 1, dtype=torch.float64)
    assert tilted.f(one).item() == pytest.approx(0.8, abs=1e-15)
    assert tilted.score(one / 4).item() == pytest.approx(0.8 - 0.25, abs=1e-15)


# --- constants: Z = E over N(0, I) of exp f, by quadrature of exp(log_prob) in one dimension --------------------------


def linear(slope, shift, leak=0.2):
    """f(z) = slope z + shift from two leaky units: lrelu(u) - lrelu(-u) = (1 + leak) u."""
    prior = EnergyPrior(1, Prior(width=2, depth=1, leak=leak)).double()
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
    prior = EnergyPrior(1, Prior(width=1, depth=1, leak=leak)).double()
    for p, value in zip(prior.parameters(), (1.0, 0.0, slope, 0.0), strict=True):
        p.data.fill_(value)
    low = leak * slope
    assert integral(prior) == pytest.approx(math.exp(slope**2 / 2) * norm.cdf(slope) + math.exp(low**2 / 2) * norm.cdf(-low), rel=1e-10)


def test_any_f_integrates_to_the_expectation_of_its_exponential():
    """The same constant as a trapezoid sum of exp(f) times SciPy's density, exact to rounding for a smooth f."""
    prior = energy(1, seed=4, width=6, activation="tanh")
    z = torch.linspace(-12, 12, 4801, dtype=torch.float64)
    expected = (plain(prior)(z[:, None])[:, 0].exp() * torch.from_numpy(norm.pdf(z.numpy()))).sum().item() * 0.005
    assert integral(prior) == pytest.approx(expected, rel=1e-10)


# --- the Gaussian prior, and where chains start -----------------------------------------------------------------------


def test_gaussian_prior_is_f_zero():
    prior, z = GaussianPrior(4).double(), normal(7, 4)
    assert torch.equal(prior.f(z), torch.zeros(7, dtype=torch.float64))
    assert torch.equal(prior.score(z), -z)
    torch.testing.assert_close(prior.log_prob(z), torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(1), rtol=1e-13, atol=1e-13)
    assert list(prior.parameters()) == []
    assert prior.state_dict() == {}
    assert integral(GaussianPrior(1).double()) == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("kind", PRIORS)
def test_chains_start_at_the_standard_normal(kind):
    """200,000 values: 5 standard errors of mean (1/sqrt(n)), variance (sqrt(2/n)) and correlation (1/sqrt(n))."""
    prior = PRIORS[kind](2, Prior(width=3)).double()
    z = prior.draw_base(100_000, torch.Generator().manual_seed(1))
    assert z.shape == (100_000, 2)
    assert z.dtype == torch.float64
    assert abs(z.mean().item()) < 5 / math.sqrt(z.numel())
    assert abs(z.var().item() - 1) < 5 * math.sqrt(2 / z.numel())
    assert abs(torch.corrcoef(z.t())[0, 1].item()) < 5 / math.sqrt(len(z))
    assert torch.equal(z, prior.draw_base(100_000, torch.Generator().manual_seed(1)))


def test_network_has_the_asked_for_layers_and_xavier_weights():
    prior = EnergyPrior(100, Prior(width=200, depth=2))
    assert [tuple(layer.weight.shape) for layer in prior.layers] == [(200, 100), (200, 200), (1, 200)]
    w = prior.layers[1].weight.detach().double()
    # variance 2/(fan in + fan out) of 40,000 values, within 5 standard errors
    assert abs(w.var().item() * 200 - 1) < 5 * math.sqrt(2 / w.numel())


# --- a fitted p_0 -----------------------------------------------------------------------------------------------------


def fitted(nz, seed=0, **config):
    """A prior over N(m, S) with a known m and S = L L'."""
    prior = energy(nz, seed, base="fitted", **config)
    root = torch.tril(normal(nz, nz, seed=seed + 50), -1) / nz + torch.diag(0.5 + normal(nz, seed=seed + 51).abs())
    prior.mean.copy_(normal(nz, seed=seed + 52))
    prior.root.copy_(root)
    prior.inverse.copy_(torch.linalg.inv(root))
    return prior, torch.distributions.MultivariateNormal(prior.mean, scale_tril=root)


def test_a_fitted_base_is_the_gaussian_it_was_fitted_to():
    prior, p_0 = fitted(6, width=8, activation="tanh")
    z = (2 * normal(40, 6, seed=3)).requires_grad_()
    u = torch.linalg.solve(prior.root, (z - prior.mean).T).T
    log_p = plain(prior)(u)[:, 0] + p_0.log_prob(z)
    torch.testing.assert_close(prior.log_prob(z), log_p, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(prior.score(z), torch.autograd.grad(log_p.sum(), z)[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(prior.place(prior.white(z)), z, rtol=1e-12, atol=1e-12)


def test_a_fitted_prior_integrates_to_the_expectation_of_its_exponential():
    prior, p_0 = fitted(1, seed=4, width=6, activation="tanh")
    z = torch.linspace(-20, 20, 8001, dtype=torch.float64)[:, None]
    expected = (plain(prior)(prior.white(z))[:, 0] + p_0.log_prob(z)).exp().sum().item() * 0.005
    assert prior.log_prob(z).exp().sum().item() * 0.005 == pytest.approx(expected, rel=1e-10)


def test_the_base_follows_what_it_sees():
    """Batches of N(m, S), longer than the memory: mean and covariance within 5 standard errors of the rows in memory."""
    prior = GaussianPrior(3, Prior(kind="gaussian", base="fitted")).double()
    _, p_0 = fitted(3, seed=2)
    for i in range(8000):
        prior.see(p_0.loc + normal(20, 3, seed=i) @ p_0.scale_tril.T)
    assert torch.equal(prior.root, torch.eye(3, dtype=torch.float64))  # only a refit moves it
    prior.refit()
    rows = 20 * 2 / 1e-3  # of an average that forgets
    variance = p_0.covariance_matrix.diagonal()
    assert bool(((prior.mean - p_0.loc).abs() < 5 * (variance / rows).sqrt() + 1e-3).all())
    found = prior.root @ prior.root.T
    error = (torch.outer(variance, variance) + p_0.covariance_matrix.square()).div(rows).sqrt()
    assert bool(((found - p_0.covariance_matrix).abs() < 5 * error + 2e-3).all())
    e = normal(100_000, 3, seed=1)
    torch.testing.assert_close(torch.cov(prior.place(e).T), found, rtol=0.03, atol=0.02)
    torch.testing.assert_close(prior.inverse @ prior.root, torch.eye(3, dtype=torch.float64), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("base", ["fitted", "mixture"])
@pytest.mark.parametrize(("memory", "before"), [(20, 0), (1000, 0), (1000, 5000), (30, 5000)])
def test_a_base_looks_back_on_half_of_what_it_has_seen_and_on_its_memory_at_most(base, memory, before):
    """z = 1, seen for 50 updates after 0: of the mean the share 1 - product of (1 - 1/window) has moved."""
    prior = GaussianPrior(2, Prior(kind="gaussian", base=base, parts=2, memory=memory)).double()
    prior.updates += before
    for _ in range(50):
        prior.see(torch.ones(7, 2, dtype=torch.float64))
    share = 1 - math.prod(1 - 1 / min(memory, 20 + (before + t) / 2) for t in range(50))
    torch.testing.assert_close(prior.first, torch.full((2,), share, dtype=torch.float64), rtol=1e-5, atol=0)
    if prior.mixture is not None:
        torch.testing.assert_close(
            prior.mixture.first.sum(0) - (1 - share) * prior.mixture.centres.sum(0) / 2,
            torch.full((2,), share, dtype=torch.float64),
            rtol=1e-5,
            atol=0,
        )


def test_small_batches_are_looked_back_on_for_longer():
    """A covariance wants many rows for each of its directions, whatever the batch."""
    prior = GaussianPrior(50, Prior(kind="gaussian", base="fitted"))
    prior.see(torch.ones(2, 50))
    torch.testing.assert_close(prior.first, torch.full((50,), 1 / 500))


def test_a_base_that_cannot_be_fitted_stays():
    prior = GaussianPrior(2, Prior(kind="gaussian", base="fitted"))
    prior.second.fill_(float("nan"))
    prior.refit()
    assert torch.equal(prior.root, torch.eye(2)) and torch.equal(prior.mean, torch.zeros(2))


def test_the_chain_of_a_fitted_prior_has_its_finite_law():
    """f = 0: u <- (1 - s^2/2) u + s e at every step, whatever S is; 5 standard errors."""
    prior, p_0 = fitted(4, seed=6, width=3)
    with torch.no_grad():
        prior.layers[-1].weight.zero_()
    n, s, k = 100_000, 0.4, 5
    seen = {}
    z0 = p_0.loc.expand(n, -1)  # u = 0
    with torch.no_grad():
        z = prior.walk(z0, Chain(k, s), torch.Generator().manual_seed(3), watch=lambda i, z: seen.update({i: z}))
    a = 1 - s * s / 2
    variance = s * s * (1 - a ** (2 * k)) / (1 - a * a)
    torch.testing.assert_close(torch.cov(z.T) / variance, p_0.covariance_matrix, rtol=0.03, atol=0.03)
    assert abs(prior.white(z).var().item() / variance - 1) < 5 * math.sqrt(2 / z.numel())
    assert set(seen) == set(range(k + 1))
    torch.testing.assert_close(seen[0], z0, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(seen[k], z, rtol=0, atol=0)


# --- a mixture as p_0 -------------------------------------------------------------------------------------------------


def mixed(nz, parts, seed=0, **config):
    """A prior over a known mixture of Gaussians of u, itself over a known whitening; and the mixture as a density of u."""
    prior = energy(nz, seed, base="mixture", parts=parts, **config)
    root = torch.tril(normal(nz, nz, seed=seed + 50), -1) / nz + torch.diag(0.5 + normal(nz, seed=seed + 51).abs())
    prior.mean.copy_(normal(nz, seed=seed + 52))
    prior.root.copy_(root)
    prior.inverse.copy_(torch.linalg.inv(root))
    weights = torch.softmax(normal(parts, seed=seed + 53), 0)
    centres = 2 * normal(parts, nz, seed=seed + 54)
    roots = torch.tril(normal(parts, nz, nz, seed=seed + 55), -1) / nz + torch.diag_embed(0.3 + normal(parts, nz, seed=seed + 56).abs())
    prior.mixture.set(weights, centres, roots)
    D = torch.distributions
    return prior, D.MixtureSameFamily(D.Categorical(weights), D.MultivariateNormal(centres, scale_tril=roots))


def test_a_mixture_base_has_the_density_and_the_score_it_says():
    prior, p_0 = mixed(5, 4, width=8, activation="tanh")
    z = (2 * normal(40, 5, seed=3)).requires_grad_()
    u = torch.linalg.solve(prior.root, (z - prior.mean).T).T
    log_p = plain(prior)(u)[:, 0] + p_0.log_prob(u) - prior.root.diagonal().log().sum()
    torch.testing.assert_close(prior.log_prob(z), log_p, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(prior.score(z), torch.autograd.grad(log_p.sum(), z)[0], rtol=1e-10, atol=1e-10)


def test_draws_of_a_mixture_follow_it():
    """Shares, means and covariances of the Gaussians by which rows are made, told apart by their distance; and the noise is used up whole."""
    prior, _ = mixed(3, 4, seed=9, width=3)
    n = 200_000
    with torch.no_grad():
        prior.mixture.centres.mul_(20)  # far apart: the nearest centre made the row
        u = prior.white(prior.place(normal(n, 3, seed=1)))
    near = torch.cdist(u, prior.mixture.centres).argmin(1)
    for k, weight in enumerate(prior.mixture.weights.tolist()):
        rows = u[near == k] - prior.mixture.centres[k]
        assert abs(len(rows) / n - weight) < 5 * math.sqrt(weight * (1 - weight) / n)
        spread = prior.mixture.roots[k] @ prior.mixture.roots[k].T
        assert bool((rows.mean(0).abs() < 5 * (spread.diagonal() / len(rows)).sqrt()).all())
        error = (torch.outer(spread.diagonal(), spread.diagonal()) + spread.square()).div(len(rows)).sqrt()
        assert bool(((torch.cov(rows.T) - spread).abs() < 5 * error).all())


def test_a_mixture_base_finds_the_mixture_it_sees():
    """Two clusters: log likelihood of new rows within 0.15 nats of the truth (what all have in common pulls a little), where one Gaussian loses more than half a nat."""
    D = torch.distributions
    truth = D.MixtureSameFamily(
        D.Categorical(torch.tensor([0.3, 0.7])),
        D.MultivariateNormal(torch.tensor([[4.0, 1.0], [-2.0, 0.0]]), torch.tensor([[[0.5, 0.2], [0.2, 0.4]], [[1.0, -0.6], [-0.6, 1.0]]])),
    )
    torch.manual_seed(0)
    new, found = truth.sample((5000,)), {}
    for base in ("fitted", "mixture"):
        prior = GaussianPrior(2, Prior(kind="gaussian", base=base, parts=3))
        for i in range(6000):
            prior.see(truth.sample((50,)))
            if i % 100 == 99:
                prior.refit()
        found[base] = float(truth.log_prob(new).mean() - prior.log_prob(new).mean())
    assert found["mixture"] < 0.15 < 0.5 < found["fitted"]


def test_no_two_gaussians_of_a_mixture_start_alike():
    for nz, parts in ((1, 9), (2, 10), (3, 6)):
        centres = GaussianPrior(nz, Prior(kind="gaussian", base="mixture", parts=parts)).mixture.centres
        assert len(torch.unique(centres, dim=0)) == parts


def test_a_mixture_that_cannot_be_fitted_stays():
    prior = GaussianPrior(2, Prior(kind="gaussian", base="mixture", parts=3))
    before = {k: v.clone() for k, v in prior.mixture.named_buffers()}
    prior.mixture.second.fill_(float("nan"))
    prior.refit()
    for name in ("weights", "centres", "roots", "inverses", "shift", "constant"):
        assert torch.equal(getattr(prior.mixture, name), before[name])


def test_log_z_over_a_mixture_is_that_of_quadrature():
    prior, p_0 = mixed(1, 3, seed=4, width=6, activation="tanh")
    u = torch.linspace(-40, 40, 40_001, dtype=torch.float64)[:, None]
    expected = (prior.tilt(u) + p_0.log_prob(u)).logsumexp(0).item() + math.log(0.002)
    found = log_z(prior, seed=0)
    assert abs(found.value - expected) < 5 * found.error + 0.01

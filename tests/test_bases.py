"""Bases that an energy tilts instead of N(0, I): their densities, scores and draws, and how they follow posterior
draws."""

import math

import pytest
import torch
from test_prior import energy, normal, plain
from torch import nn

from lebm.extensions.bases import FlowBase, MixtureBase, WhitenedGaussian
from lebm.generators import TableGenerator
from lebm.latent_ebm import LatentEBM
from lebm.prior import EnergyNetwork, EnergyPrior
from lebm.sampler import Chain

BASES = {"whitened": WhitenedGaussian, "mixture": lambda nz, memory=1000: MixtureBase(nz, 2, memory)}


# --- a whitened Gaussian ----------------------------------------------------------------------------------------------


def place(base, seed=0):
    """Give the base a known mean m and a known root L with S = L L'."""
    nz = base.nz
    root = torch.tril(normal(nz, nz, seed=seed + 50), -1) / nz + torch.diag(0.5 + normal(nz, seed=seed + 51).abs())
    base.mean.copy_(normal(nz, seed=seed + 52))
    base.root.copy_(root)
    base.inverse.copy_(torch.linalg.inv(root))


def whitened(nz, seed=0, **network):
    """A prior over N(m, S) with a known m and S = L L'."""
    prior = energy(nz, seed, base=WhitenedGaussian(nz), **network)
    place(prior.base, seed)
    return prior, torch.distributions.MultivariateNormal(prior.base.mean, scale_tril=prior.base.root)


def test_a_whitened_base_is_its_gaussian():
    prior, p_0 = whitened(6, width=8, activation="tanh")
    z = (2 * normal(40, 6, seed=3)).requires_grad_()
    u = torch.linalg.solve(prior.base.root, (z - prior.base.mean).T).T
    log_p = plain(prior)(u)[:, 0] + p_0.log_prob(z)
    torch.testing.assert_close(prior.log_prob(z), log_p, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(prior.score(z), torch.autograd.grad(log_p.sum(), z)[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(prior.base.unwhiten(prior.base.whiten(z)), z, rtol=1e-12, atol=1e-12)


def test_a_prior_over_it_integrates_to_the_expectation_of_its_exponential():
    prior, p_0 = whitened(1, seed=4, width=6, activation="tanh")
    z = torch.linspace(-20, 20, 8001, dtype=torch.float64)[:, None]
    expected = (plain(prior)(prior.base.whiten(z))[:, 0] + p_0.log_prob(z)).exp().sum().item() * 0.005
    assert prior.log_prob(z).exp().sum().item() * 0.005 == pytest.approx(expected, rel=1e-10)


def test_the_base_follows_what_it_observes():
    """Batches of N(m, S), longer than the memory: mean and covariance within 5 standard errors of the rows in
    memory."""
    base = WhitenedGaussian(3).double()
    _, p_0 = whitened(3, seed=2)
    for i in range(8000):
        base.observe(p_0.loc + normal(20, 3, seed=i) @ p_0.scale_tril.T)
    assert torch.equal(base.root, torch.eye(3, dtype=torch.float64))  # only a refit moves it
    base.refit()
    rows = 20 * 2 / 1e-3  # of an average that forgets
    variance = p_0.covariance_matrix.diagonal()
    assert bool(((base.mean - p_0.loc).abs() < 5 * (variance / rows).sqrt() + 1e-3).all())
    fitted = base.root @ base.root.T
    error = (torch.outer(variance, variance) + p_0.covariance_matrix.square()).div(rows).sqrt()
    assert bool(((fitted - p_0.covariance_matrix).abs() < 5 * error + 2e-3).all())
    draws = base.draw(100_000, torch.Generator().manual_seed(1))
    torch.testing.assert_close(torch.cov(draws.T), fitted, rtol=0.03, atol=0.02)
    torch.testing.assert_close(base.inverse @ base.root, torch.eye(3, dtype=torch.float64), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize(("memory", "before"), [(20, 0), (1000, 0), (1000, 5000), (30, 5000)])
def test_a_base_looks_back_on_half_of_what_it_observed_and_on_its_memory_at_most(kind, memory, before):
    """z = 1, observed for 50 updates after 0: of the mean the share 1 - product of (1 - 1/window) has moved."""
    base = BASES[kind](2, memory=memory).double()
    base.updates += before
    for _ in range(50):
        base.observe(torch.ones(7, 2, dtype=torch.float64))
    share = 1 - math.prod(1 - 1 / min(memory, 20 + (before + t) / 2) for t in range(50))
    moved = torch.full((2,), share, dtype=torch.float64)
    torch.testing.assert_close(base.first, moved, rtol=1e-5, atol=0)
    if kind == "mixture":
        left = (1 - share) * base.mixture.centres.sum(0) / 2
        torch.testing.assert_close(base.mixture.first.sum(0) - left, moved, rtol=1e-5, atol=0)


def test_small_batches_are_looked_back_on_for_longer():
    """A covariance wants many rows for each of its directions, whatever the batch."""
    base = WhitenedGaussian(50)
    base.observe(torch.ones(2, 50))
    torch.testing.assert_close(base.first, torch.full((50,), 1 / 500))


def test_a_base_that_cannot_be_fitted_stays_and_says_so():
    base = WhitenedGaussian(2)
    base.second.fill_(float("nan"))
    assert base.follows()
    base.refit()
    assert torch.equal(base.root, torch.eye(2)) and torch.equal(base.mean, torch.zeros(2))
    assert not base.follows()


def test_the_chain_over_a_whitened_base_has_its_finite_law():
    """f = 0: u <- (1 - s^2/2) u + s e at every step, whatever S is; 5 standard errors."""
    prior, p_0 = whitened(4, seed=6, width=3)
    with torch.no_grad():
        prior.energy.layers[-1].weight.zero_()
    method = LatentEBM(prior, TableGenerator(4))
    n, s, k = 100_000, 0.4, 5
    states = {}
    z0 = p_0.loc.expand(n, -1)  # u = 0
    with torch.no_grad():
        rng = torch.Generator().manual_seed(3)
        z = method.run_prior_chain(z0, Chain(k, s), rng, watch=lambda i, z: states.update({i: z}))
    a = 1 - s * s / 2
    variance = s * s * (1 - a ** (2 * k)) / (1 - a * a)
    torch.testing.assert_close(torch.cov(z.T) / variance, p_0.covariance_matrix, rtol=0.03, atol=0.03)
    assert abs(prior.base.whiten(z).var().item() / variance - 1) < 5 * math.sqrt(2 / z.numel())
    assert set(states) == set(range(k + 1))
    torch.testing.assert_close(states[0], z0, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(states[k], z, rtol=0, atol=0)


# --- a mixture -------------------------------------------------------------------------------------------------------


def mixed(nz, components, seed=0, **network):
    """A prior over a known mixture of Gaussians of u, itself over a known whitening; and the mixture as a density
    of u."""
    prior = energy(nz, seed, base=MixtureBase(nz, components), **network)
    place(prior.base, seed)
    weights = torch.softmax(normal(components, seed=seed + 53), 0)
    centres = 2 * normal(components, nz, seed=seed + 54)
    roots = torch.tril(normal(components, nz, nz, seed=seed + 55), -1) / nz
    roots = roots + torch.diag_embed(0.3 + normal(components, nz, seed=seed + 56).abs())
    prior.base.mixture.set(weights, centres, roots)
    D = torch.distributions
    return prior, D.MixtureSameFamily(D.Categorical(weights), D.MultivariateNormal(centres, scale_tril=roots))


def test_a_mixture_base_has_the_density_and_the_score_it_says():
    prior, p_0 = mixed(5, 4, width=8, activation="tanh")
    z = (2 * normal(40, 5, seed=3)).requires_grad_()
    u = torch.linalg.solve(prior.base.root, (z - prior.base.mean).T).T
    log_p = plain(prior)(u)[:, 0] + p_0.log_prob(u) - prior.base.root.diagonal().log().sum()
    torch.testing.assert_close(prior.log_prob(z), log_p, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(prior.score(z), torch.autograd.grad(log_p.sum(), z)[0], rtol=1e-10, atol=1e-10)


def test_draws_of_a_mixture_follow_it():
    """Shares, means and covariances of the Gaussians that make rows, which lie far apart; and the noise is used up
    whole."""
    base = mixed(3, 4, seed=9, width=3)[0].base
    mixture, n = base.mixture, 200_000
    with torch.no_grad():
        mixture.centres.mul_(20)  # far apart: the nearest centre made the row
        u = base.whiten(base.unwhiten(base.transform(normal(n, 3, seed=1))))
    near = torch.cdist(u, mixture.centres).argmin(1)
    for k, weight in enumerate(mixture.weights.tolist()):
        rows = u[near == k] - mixture.centres[k]
        assert abs(len(rows) / n - weight) < 5 * math.sqrt(weight * (1 - weight) / n)
        spread = mixture.roots[k] @ mixture.roots[k].T
        assert bool((rows.mean(0).abs() < 5 * (spread.diagonal() / len(rows)).sqrt()).all())
        error = (torch.outer(spread.diagonal(), spread.diagonal()) + spread.square()).div(len(rows)).sqrt()
        assert bool(((torch.cov(rows.T) - spread).abs() < 5 * error).all())


def test_a_mixture_base_learns_the_mixture_that_it_observes():
    """Two clusters: the log likelihood of new rows lies within 0.15 nats of the truth (what all components share pulls
    a little), where one Gaussian loses more than half a nat."""
    D = torch.distributions
    truth = D.MixtureSameFamily(
        D.Categorical(torch.tensor([0.3, 0.7])),
        D.MultivariateNormal(
            torch.tensor([[4.0, 1.0], [-2.0, 0.0]]),
            torch.tensor([[[0.5, 0.2], [0.2, 0.4]], [[1.0, -0.6], [-0.6, 1.0]]]),
        ),
    )
    torch.manual_seed(0)
    new, gap = truth.sample((5000,)), {}
    for kind, base in (("whitened", WhitenedGaussian(2)), ("mixture", MixtureBase(2, 3))):
        prior = EnergyPrior(base)
        for i in range(6000):
            base.observe(truth.sample((50,)))
            if i % 100 == 99:
                base.refit()
        gap[kind] = float(truth.log_prob(new).mean() - prior.log_prob(new).mean())
    assert gap["mixture"] < 0.15 < 0.5 < gap["whitened"]


def test_no_two_gaussians_of_a_mixture_start_alike():
    for nz, components in ((1, 9), (2, 10), (3, 6)):
        centres = MixtureBase(nz, components).mixture.centres
        assert len(torch.unique(centres, dim=0)) == components


def test_a_mixture_that_cannot_be_fitted_stays():
    base = MixtureBase(2, 3)
    before = {k: v.clone() for k, v in base.mixture.named_buffers()}
    base.mixture.second.fill_(float("nan"))
    base.refit()
    for name in ("weights", "centres", "roots", "inverses", "shift", "constant"):
        assert torch.equal(getattr(base.mixture, name), before[name])
    assert not base.follows()


def test_log_z_over_a_mixture_is_that_of_quadrature():
    from lebm.measure.ais import log_z

    prior, p_0 = mixed(1, 3, seed=4, width=6, activation="tanh")
    u = torch.linspace(-40, 40, 40_001, dtype=torch.float64)[:, None]
    expected = (prior.f_white(u) + p_0.log_prob(u)).logsumexp(0).item() + math.log(0.002)
    estimate = log_z(prior, seed=0)
    assert abs(estimate.value - expected) < 5 * estimate.error + 0.01


# --- a flow that learns by gradient -----------------------------------------------------------------------------------


class Affine(nn.Module):
    """q(z) = N(shift, scale^2), as a flow of one coordinate."""

    def __init__(self, shift, log_scale):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(shift, dtype=torch.float64))
        self.log_scale = nn.Parameter(torch.tensor(log_scale, dtype=torch.float64))

    def draw(self, e, x=None):
        z = self.shift + self.log_scale.exp() * e
        return z, self.log_prob(z)

    def log_prob(self, z, x=None):
        return torch.distributions.Normal(self.shift, self.log_scale.exp()).log_prob(z[:, 0])


def test_a_flow_base_has_the_density_and_the_score_of_its_flow():
    prior = EnergyPrior(FlowBase(1, Affine(0.4, -0.3)), EnergyNetwork(1, 6, activation="tanh")).double()
    z = normal(20, 1, seed=3).requires_grad_()
    m, s = torch.tensor([0.4, math.exp(-0.3)], dtype=torch.float64)
    log_p = plain(prior)(z)[:, 0] + torch.distributions.Normal(m, s).log_prob(z[:, 0])
    torch.testing.assert_close(prior.log_prob(z), log_p, rtol=1e-12, atol=1e-12)
    expected = torch.autograd.grad(log_p.sum(), z)[0]
    with torch.no_grad():  # as inside a chain
        torch.testing.assert_close(prior.score(z), expected, rtol=1e-10, atol=1e-10)
    draws = prior.base.draw(100_000, torch.Generator().manual_seed(1))
    assert abs(draws.mean().item() - 0.4) < 5 * math.exp(-0.3) / math.sqrt(len(draws))
    assert not draws.requires_grad and set(prior.networks()) == {"prior", "base"}


def test_the_phase_of_a_flow_base_is_the_gradient_of_the_likelihood():
    """Of mean log p_alpha(z_pos) = f + log q - log Z, where the gradient of log Z is an expectation over p_alpha: here
    by quadrature on one side, and by draws of the normalised density on the other."""
    flow = Affine(0.4, -0.3)
    prior = EnergyPrior(FlowBase(1, flow), EnergyNetwork(1, 6, activation="tanh")).double()
    for i, p in enumerate(prior.energy.parameters()):
        p.data = normal(*p.shape, seed=i)
    z_pos, grid = normal(30, 1, seed=9), torch.linspace(-9, 9, 3601, dtype=torch.float64)[:, None]
    log_z = prior.log_prob(grid).logsumexp(0)
    expected = torch.autograd.grad(log_z - prior.log_prob(z_pos).mean(), list(flow.parameters()))
    p = (prior.log_prob(grid) - log_z).exp().detach()
    n = 200_000  # draws from the normalised density, as exact prior chains would give
    z_neg = grid[torch.multinomial(p, n, replacement=True, generator=torch.Generator().manual_seed(2))]
    ((names, loss),) = prior.base.phases(z_pos, z_neg)
    assert names == ("base",)
    white = ((z_neg - flow.shift) * (-flow.log_scale).exp()).detach()
    deviations = (white.std() * math.exp(0.3), white.square().std())  # of the gradients of log q, over rows
    got = torch.autograd.grad(loss, list(flow.parameters()))
    for g, e, deviation in zip(got, expected, deviations, strict=True):
        assert abs(g - e) < 5 * deviation / math.sqrt(n)
        assert abs(e) > 50 * deviation / math.sqrt(n)  # the test could fail


def test_a_prior_chain_is_preconditioned_by_its_base():
    """z <- z + (s^2/2) L L' grad log p(z) + s L e, written out, for a whitened base with a known root L."""
    prior, _ = whitened(4, seed=6, width=3, activation="tanh")
    method = LatentEBM(prior, TableGenerator(4, 3).double())
    chain, z, root = Chain(7, 0.4), normal(5, 4, seed=8), prior.base.root
    noise, expected = torch.Generator().manual_seed(3), z
    with torch.no_grad():
        for _ in range(chain.steps):
            e = torch.randn(5, 4, generator=noise, dtype=torch.float64)
            expected = expected + 0.4**2 / 2 * prior.score(expected) @ root @ root.T + 0.4 * e @ root.T
        result = method.run_prior_chain(z, chain, torch.Generator().manual_seed(3))
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)

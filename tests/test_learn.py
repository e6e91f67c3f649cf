"""Algorithm 1 against likelihoods that are known: closed forms for a linear model, quadrature for nonlinear ones."""

import copy
import math

import pytest
import torch
from torch import nn

from lebm.generators import Generator, ImageGenerator
from lebm.latent_ebm import Iteration, LatentEBM
from lebm.method import Batch, update
from lebm.prior import EnergyNetwork, EnergyPrior, StandardNormal
from lebm.sampler import Chain
from lebm.start import Draws


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def log_normal(r):
    return -0.5 * (r.square() + math.log(2 * math.pi)).sum(-1)


# --- a. the linear tilt: f = alpha.z and x = z + sigma e --------------------------------------------------------------


class LinearTilt(nn.Module):
    """exp(alpha.z) N(z; 0, I) is N(alpha, I)."""

    def __init__(self, nz):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(nz, dtype=torch.float64))

    def forward(self, z):
        return z @ self.alpha

    def score(self, z):
        return self.alpha.expand(len(z), -1)


class Shifted(Generator):
    """x = z + sigma e."""

    def __init__(self, sigma):
        super().__init__()
        self.sigma = sigma

    def decode(self, z):
        return z

    def log_prob(self, x, z, *masks):
        return log_normal((x - z) / self.sigma) - x.shape[-1] * math.log(self.sigma)

    def score(self, x, z, *masks):
        return (x - z) / self.sigma**2


def tilted(generator, *chains):
    """A method whose prior is N(alpha, I)."""
    return LatentEBM(EnergyPrior(StandardNormal(2), LinearTilt(2)), generator, *chains).double()


def learn(method, x, optimizers, generator, clip=0.0):
    update(method, Batch(x, torch.arange(len(x))), optimizers, generator, clip)
    return method.last


def frozen(method):
    """Optimisers that leave gradients behind and move nothing."""
    return {name: torch.optim.SGD(net.parameters(), lr=0.0) for name, net in method.networks().items()}


def chain_law(precision, chain):
    """A chain from N(0, 1) on a Gaussian of this precision and mean m ends with mean r m and variance v: returns (r,
    v)."""
    s, a = chain.step_size, 1 - chain.step_size**2 * precision / 2
    decay = a ** (2 * chain.steps)
    return 1 - a**chain.steps, decay + s * s * (1 - decay) / (1 - a * a)


@pytest.mark.parametrize(("steps", "sigma"), [(100, 0.5), (4, 0.5), (4, 1.0)])
def test_linear_tilt_learns_the_mean_of_the_data(steps, sigma):
    """p(x) = N(alpha, 1 + sigma^2), so the MLE is mean(x). The posterior has precision q = 1 + 1/sigma^2 and mean
    (alpha + x/sigma^2)/q; the chains end with means r_pos and r_neg times those of their targets, and the step's
    expectation r_pos (alpha + mean(x)/sigma^2)/q - r_neg alpha vanishes at alpha = (r_pos/(q sigma^2)) mean(x) / h with
    h = r_neg - r_pos/q. Long chains (K s^2 = 16) have r = 1 up to exp(-8): the MLE. Short ones stand elsewhere."""
    prior_chain = posterior_chain = Chain(steps, 0.4)
    n, rounds = 500, 100
    x = torch.tensor([0.7, -1.1], dtype=torch.float64) + normal(n, 2)
    q = 1 + sigma**-2
    (r_pos, v_pos), (r_neg, v_neg) = chain_law(q, posterior_chain), chain_law(1, prior_chain)
    h = r_neg - r_pos / q
    fixed = r_pos / (q * sigma**2) * x.mean(0) / h
    distance = (fixed - x.mean(0)).abs().max().item()
    assert distance < 1e-3 if steps == 100 else distance > 0.5
    method = tilted(Shifted(sigma), prior_chain, posterior_chain)
    alpha = method.prior.energy.alpha
    alpha.data += fixed  # the recursion is linear: from its fixed point the mean of the iterates is exact
    optimizers, generator, iterates = {"prior": torch.optim.SGD([alpha], lr=0.5)}, rng(1), []
    for _ in range(rounds):
        learn(method, x, optimizers, generator)
        iterates.append(alpha.detach().clone())
    # the average of T iterates has variance (v_pos + v_neg)/(n T h^2)
    bound = 5 * math.sqrt((v_pos + v_neg) / (n * rounds)) / h
    assert (torch.stack(iterates).mean(0) - fixed).abs().max() < bound
    assert bound < 0.25 * (distance if steps == 4 else x.mean(0).abs().min())


def test_linear_tilt_gets_there_from_afar_with_adam():
    """From alpha = 0 to the MLE: the average of the last T iterates, with standard error sqrt(2/(n T))/h and
    h = 1/(1 + sigma^2)."""
    method = tilted(Shifted(0.5), Chain(100, 0.4), Chain(100, 0.4))
    alpha = method.prior.energy.alpha
    x = torch.tensor([0.7, -1.1], dtype=torch.float64) + normal(500, 2)
    optimizers, generator, iterates = {"prior": torch.optim.Adam([alpha], lr=0.1, betas=(0.5, 0.999))}, rng(2), []
    for _ in range(80):
        learn(method, x, optimizers, generator)
        iterates.append(alpha.detach().clone())
    assert (torch.stack(iterates[40:]).mean(0) - x.mean(0)).abs().max() < 5 * math.sqrt(2 / (500 * 40)) * 1.25


# --- b, c. nonlinear prior and generator against quadrature over z ----------------------------------------------------


class Curve(Generator):
    """A small nonlinear generator of three outputs."""

    def __init__(self, nz, sigma):
        super().__init__()
        self.sigma = sigma
        self.first, self.last = nn.Linear(nz, 4).double(), nn.Linear(4, 3).double()

    def decode(self, z):
        return self.last(torch.tanh(self.first(z)))

    def log_prob(self, x, z, *masks):
        return log_normal((x - self.decode(z)) / self.sigma) - 3 * math.log(self.sigma)

    def score(self, x, z, *masks):
        h = torch.tanh(self.first(z))
        return ((x - self.last(h)) / self.sigma**2 @ self.last.weight * (1 - h * h)) @ self.first.weight


X = torch.tensor([[0.9, -0.4, 0.3], [-0.6, 0.2, 0.8]], dtype=torch.float64)


def nonlinear(nz, chains, sigma=0.5):
    prior = EnergyPrior(StandardNormal(nz), EnergyNetwork(nz, 5, activation="tanh"))
    method = LatentEBM(prior, Curve(nz, sigma), *chains).double()
    for i, p in enumerate(method.parameters()):
        p.data = 0.8 * normal(*p.shape, seed=i)
    return method


class Grid:
    """Points of [-7, 7]^nz for trapezoid sums. A spacing of at most s leaves an error of exp(-2 pi^2) for a density
    blurred by s."""

    def __init__(self, nz, spacing):
        self.axis = torch.arange(-7, 7 + spacing / 2, spacing, dtype=torch.float64)
        self.z = torch.cartesian_prod(*[self.axis] * nz).reshape(-1, nz)
        self.cell = spacing**nz

    def log_integral(self, log_density):
        return torch.logsumexp(log_density, 0) + math.log(self.cell)

    def short_run(self, log_target, chain):
        """Push N(0, I) through `steps` Langevin transitions: p'(y) = sum over z of p(z) N(y; z + (s^2/2) score(z), s^2
        I)."""
        z = self.z.clone().requires_grad_()
        middle = (z + chain.step_size**2 / 2 * torch.autograd.grad(log_target(z).sum(), z)[0]).detach()
        s = chain.step_size
        kernels = [log_normal((self.axis[:, None, None] - m[None, :, None]) / s).exp() / s for m in middle.t()]
        p = log_normal(self.z).exp()
        for _ in range(chain.steps):
            weighted = kernels[0] * (p * self.cell)
            p = (weighted.sum(1) if len(kernels) == 1 else weighted @ kernels[1].t()).flatten()
        assert p.sum().item() * self.cell == pytest.approx(1, abs=1e-6)  # nothing leaves the grid
        return p


def objectives(method, chains, grid):
    """(log p(x), perturbed objective), means over X, as functions of theta; the short-run laws are constants."""
    prior_chain, posterior_chain = chains
    prior = lambda z: method.prior.f(z) + log_normal(z)  # noqa: E731
    log_prior = prior(grid.z) - grid.log_integral(prior(grid.z))

    def kl(p, log_q):
        return (torch.special.xlogy(p, p) - p * log_q).sum() * grid.cell

    negative = kl(grid.short_run(prior, prior_chain), log_prior)
    likelihood = perturbed = 0.0
    for x in X:
        joint = lambda z, x=x: prior(z) + method.generator.log_prob(x, z)  # noqa: E731
        log_joint = log_prior + method.generator.log_prob(x, grid.z)
        log_px = grid.log_integral(log_joint)
        positive = kl(grid.short_run(joint, posterior_chain), log_joint - log_px)
        likelihood = likelihood + log_px / len(X)
        perturbed = perturbed + (log_px - positive + negative) / len(X)
    return likelihood, perturbed


def flat_gradient(method, objective):
    grads = torch.autograd.grad(objective, list(method.parameters()), retain_graph=True, materialize_grads=True)
    return torch.cat([g.flatten() for g in grads])


def learned_gradient(method, batches=40, copies=400):
    """What an update would climb, -grad, averaged over independent batches, with its standard error from their
    spread."""
    x, optimizers, grads = X.repeat(copies, 1), frozen(method), []
    before = copy.deepcopy(method.state_dict())
    for seed in range(batches):
        learn(method, x, optimizers, rng(seed))
        grads.append(-torch.cat([p.grad.flatten() for p in method.parameters()]))
    assert all(torch.equal(a, b) for a, b in zip(before.values(), method.state_dict().values(), strict=True))
    g = torch.stack(grads)
    return g.mean(0), g.std(0) / math.sqrt(batches)


@pytest.mark.parametrize(("k0", "k1"), [(5, 5), (20, 10), (10, 20)])
def test_short_run_gradient_is_that_of_the_perturbed_objective(k0, k1):
    """Equation 12: log p(x) - KL(short-run posterior, posterior) + KL(short-run prior, prior), at the paper's step
    sizes."""
    chains = Chain(k0, 0.4), Chain(k1, 0.1)
    method = nonlinear(1, chains)
    likelihood, perturbed = objectives(method, chains, Grid(1, 0.05))
    expected, exact = flat_gradient(method, perturbed), flat_gradient(method, likelihood)
    mean, se = learned_gradient(method)
    # 5 standard errors; 1e-9 for the biases of the last layer of f, whose gradient is 1 - 1 = 0 without any spread
    assert ((mean - expected).abs() < 5 * se + 1e-9).all()
    # short chains follow another objective than the likelihood, and the test can tell the two apart
    assert ((mean - exact).abs() > 20 * se).any()
    assert se.max() < 0.03 * expected.abs().max()


LONG = {1: ((Chain(180, 0.3), Chain(400, 0.3)), 0.1), 2: ((Chain(180, 0.3), Chain(180, 0.3)), 0.25)}  # K s^2 >= 16


@pytest.mark.parametrize("nz", LONG)
def test_long_chains_follow_the_gradient_of_the_likelihood(nz):
    """The steps' own bias, O(s^2), is known from the chains' law on the grid: small, and a quarter of it at half the
    step."""
    chains, spacing = LONG[nz]
    method = nonlinear(nz, chains, sigma=1.0)  # a posterior whose modes are joined
    grid = Grid(nz, spacing)
    likelihood, perturbed = objectives(method, chains, grid)
    exact, expected = flat_gradient(method, likelihood), flat_gradient(method, perturbed)
    bias = (expected - exact).norm()
    assert bias < 0.1 * exact.norm()
    if nz == 1:
        halved = [Chain(4 * c.steps, c.step_size / 2) for c in chains]
        half = flat_gradient(method, objectives(method, halved, grid)[1])
        assert 3 < bias / (half - exact).norm() < 6  # 4 but for the next order
    mean, se = learned_gradient(method, batches=16)
    assert ((mean - expected).abs() < 6 * se + 1e-9).all()  # 16 batches: Student's tails, so 6
    assert (mean - exact).norm() < bias + 5 * se.norm()
    assert se.norm() < 0.02 * exact.norm()


# --- d. an update's details -------------------------------------------------------------------------------------------


def small(energy=True, l2=0.0):
    """Images of 8x8 pixels."""
    prior = EnergyPrior(StandardNormal(4), EnergyNetwork(4, 8) if energy else None)
    generator = ImageGenerator(4, size=8, channels=1, ngf=3, widths=(4,), sigma=0.2)
    prior_chain = Chain(5 if energy else 0, 0.4)
    return LatentEBM(prior, generator, prior_chain, Chain(4, 0.1), energy_l2=l2).double()


@pytest.fixture
def tiny():
    """(method, a batch of 10 images)."""
    return small(), normal(10, 1, 8, 8).clamp(-1, 1)


def gradients(tiny, seed=0, clip=0.0):
    """The iteration, and the gradients that an update left for the prior and for the generator."""
    method, x = tiny
    last = learn(method, x, frozen(method), rng(seed), clip)
    return last, *(torch.cat([p.grad.flatten() for p in net.parameters()]) for net in (method.prior, method.generator))


def test_an_update_shows_its_chains_and_terms(tiny):
    method, x = tiny
    last, prior, generator = gradients(tiny)
    noise = rng(0)
    assert torch.equal(last.neg.z0, method.prior.base.noise(10, noise))
    assert torch.equal(last.pos.z0, method.prior.base.noise(10, noise))
    assert torch.equal(last.neg.e, last.neg.z0) and torch.equal(last.pos.e, last.pos.z0)
    assert last.neg.x is None and last.pos.x is x is last.x
    for draws, chain, score in (
        (last.neg, method.prior_chain, method.prior.score),
        (last.pos, method.posterior_chain, lambda z: method.posterior_score(x, z)),
    ):
        z = draws.z0
        for _ in range(chain.steps):
            e = torch.randn(10, 4, generator=noise, dtype=torch.float64)
            z = z + chain.step_size**2 / 2 * score(z) + chain.step_size * e
        torch.testing.assert_close(draws.z, z, rtol=1e-12, atol=1e-12)
    f_pos, f_neg = method.prior.f(last.pos.z).mean(), method.prior.f(last.neg.z).mean()
    terms = [f_pos, f_neg, method.generator.log_prob(x, last.pos.z).mean()]
    torch.testing.assert_close([last.f_pos, last.f_neg, last.log_px], terms, rtol=1e-13, atol=1e-13)
    tensors = [*vars(last.neg).values(), *vars(last.pos).values(), last.x, last.f_neg, last.f_pos, last.log_px]
    assert not any(t.requires_grad for t in tensors if t is not None)
    expected = torch.autograd.grad(terms[1] - terms[0] - terms[2], list(method.parameters()))
    expected = torch.cat([g.flatten() for g in expected])
    torch.testing.assert_close(torch.cat([prior, generator]), expected, rtol=1e-12, atol=1e-12)


def test_l2_adds_the_gradient_of_the_mean_squares(tiny):
    method, weight = tiny[0], 0.3
    _, prior, generator = gradients(tiny)
    assert method.coefficients()["energy_l2"] == 0 == small().energy_l2 and small(l2=weight).energy_l2 == weight
    method.coefficients()["energy_l2"].fill_(weight)
    last, with_l2, same = gradients(tiny)
    extra = weight * (method.prior.f(last.pos.z).square().mean() + method.prior.f(last.neg.z).square().mean())
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(extra, list(method.prior.parameters()))])
    torch.testing.assert_close(with_l2 - prior, expected, rtol=1e-10, atol=1e-12)
    assert expected.norm() > 1e-3
    assert torch.equal(same, generator)


def test_clip_bounds_each_network_by_itself(tiny):
    _, prior, generator = gradients(tiny)
    low, high = sorted((prior.norm().item(), generator.norm().item()))
    for clip in (low / 2, (low + high) / 2, 2 * high):
        for raw, clipped in zip((prior, generator), gradients(tiny, clip=clip)[1:], strict=True):
            # PyTorch divides by norm + 1e-6
            torch.testing.assert_close(clipped, raw * min(1, clip / (raw.norm().item() + 1e-6)), rtol=1e-12, atol=0)


def test_a_network_without_an_optimiser_stays_as_it_is(tiny):
    method, x = tiny
    before = copy.deepcopy(method)
    learn(method, x, {"generator": torch.optim.SGD(method.generator.parameters(), lr=0.1)}, rng())
    assert all(torch.equal(a, b) for a, b in zip(method.prior.parameters(), before.prior.parameters(), strict=True))
    assert all(p.grad is None for p in method.prior.parameters())
    moved = zip(method.generator.parameters(), before.generator.parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in moved)


def test_an_update_puts_networks_into_training_mode(tiny):
    method, x = tiny
    method.eval()
    learn(method, x, {}, rng())
    assert method.training and method.generator.training


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_without_an_energy_the_generator_learns_alone(clip):
    method, x = small(energy=False), normal(20, 1, 8, 8).clamp(-1, 1)
    assert list(method.networks()) == ["generator"]
    optimizers = {"generator": torch.optim.Adam(method.generator.parameters(), lr=1e-2, betas=(0.5, 0.999))}
    generator = rng()
    steps = [learn(method, x, optimizers, generator, clip) for _ in range(60)]
    assert all(torch.equal(step.neg.z, step.neg.z0) for step in steps)  # N(0, I) is drawn, not approached
    assert steps[0].f_pos == steps[0].f_neg == 0
    assert steps[-1].log_px > steps[0].log_px + 1


def test_scalars_show_the_iteration(tiny):
    method, x = tiny
    zeros, t = torch.zeros(2, 4, dtype=torch.float64), torch.tensor
    z_neg, z_pos = t([[3.0, 0, 0, 0], [0, 4, 0, 0]]).double(), t([[1.0] * 4, [3.0] * 4]).double()
    neg, pos = Draws(zeros, zeros, z_neg), Draws(zeros, zeros + 1, z_pos, x[:2])
    assert method.scalars() == {}  # before the first update
    method.last = Iteration(x[:2], neg, pos, f_neg=t(0.5), f_pos=t(2.0), log_px=t(-7.0))
    values = method.scalars()
    assert all(value.shape == () and not value.requires_grad for value in values.values())
    assert all(math.isfinite(value) for value in values.values())
    expected = {
        "f_pos": 2, "f_neg": 0.5, "gap": 1.5, "log_px": -7,
        "mse": (x[:2] - method.generator.decode(z_pos)).square().mean().item(),
        "disp_neg": math.sqrt(25 / 8), "z_mean_neg": 7 / 8, "z_sq_neg": 25 / 8, "z_spread_neg": (1.5 + 2) / 4,
        "disp_pos": math.sqrt(2), "z_mean_pos": 2, "z_sq_pos": 5, "z_spread_pos": 1,
    }  # fmt: skip
    assert {k: float(v) for k, v in values.items()} == pytest.approx(expected, rel=1e-12)

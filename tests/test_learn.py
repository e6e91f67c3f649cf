"""Algorithm 1 against likelihoods that are known: closed forms for a linear model, quadrature for nonlinear ones."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from lebm.config import Chain, Chains, Learning, resolve
from lebm.learn import Step, describe, learn_step, make_optimizer
from lebm.model import LatentEBM
from lebm.prior import GaussianPrior

FROZEN = Learning(prior_rate=0.0, generator_rate=0.0)
TINY = ["nz=4", "prior.width=8", "generator.ngf=3", "chains.prior.steps=5", "chains.posterior.steps=4"]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def log_normal(r):
    return -0.5 * (r.square() + math.log(2 * math.pi)).sum(-1)


# --- a. the linear tilt: f = alpha.z and x = z + sigma e ----------------------------------------------------------------


class LinearTilt(GaussianPrior):
    """exp(alpha.z) N(z; 0, I) is N(alpha, I)."""

    def __init__(self, nz):
        super().__init__(nz)
        self.double().alpha = nn.Parameter(torch.zeros(nz, dtype=torch.float64))

    def tilt(self, z):
        return z @ self.alpha

    def white_score(self, z):
        return self.alpha - z


class Shifted(nn.Module):
    """x = z + sigma e."""

    def __init__(self, sigma):
        super().__init__()
        self.sigma = sigma

    def decode(self, z):
        return z

    def log_prob(self, x, z):
        return log_normal((x - z) / self.sigma) - x.shape[-1] * math.log(self.sigma)

    def score(self, x, z):
        return (x - z) / self.sigma**2


def chain_law(precision, chain):
    """A chain from N(0, 1) on a Gaussian of this precision and mean m ends with mean r m and variance v: returns (r, v)."""
    s, a = chain.step_size, 1 - chain.step_size**2 * precision / 2
    decay = a ** (2 * chain.steps)
    return 1 - a**chain.steps, decay + s * s * (1 - decay) / (1 - a * a)


@pytest.mark.parametrize(("steps", "sigma"), [(100, 0.5), (4, 0.5), (4, 1.0)])
def test_linear_tilt_learns_the_mean_of_the_data(steps, sigma):
    """p(x) = N(alpha, 1 + sigma^2), so the MLE is mean(x). The posterior has precision q = 1 + 1/sigma^2 and mean
    (alpha + x/sigma^2)/q; the chains end with means r_pos and r_neg times those of their targets, and the step's
    expectation r_pos (alpha + mean(x)/sigma^2)/q - r_neg alpha vanishes at alpha = (r_pos/(q sigma^2)) mean(x) / h with
    h = r_neg - r_pos/q. Long chains (K s^2 = 16) have r = 1 up to exp(-8): the MLE. Short ones stand elsewhere."""
    chains, n, rounds = Chains(Chain(steps, 0.4), Chain(steps, 0.4)), 500, 100
    x = torch.tensor([0.7, -1.1], dtype=torch.float64) + normal(n, 2)
    q = 1 + sigma**-2
    (r_pos, v_pos), (r_neg, v_neg) = chain_law(q, chains.posterior), chain_law(1, chains.prior)
    h = r_neg - r_pos / q
    fixed = r_pos / (q * sigma**2) * x.mean(0) / h
    distance = (fixed - x.mean(0)).abs().max().item()
    assert distance < 1e-3 if steps == 100 else distance > 0.5
    model = LatentEBM(resolve("digits", ["nz=2"]), Shifted(sigma))
    model.prior = LinearTilt(2)
    model.prior.alpha.data += fixed  # the recursion is linear: from its fixed point the mean of the iterates is exact
    optimizer, generator, seen = torch.optim.SGD(model.prior.parameters(), lr=0.5), rng(1), []
    for _ in range(rounds):
        learn_step(model, x, optimizer, chains, Learning(), generator)
        seen.append(model.prior.alpha.detach().clone())
    # the average of T iterates has variance (v_pos + v_neg)/(n T h^2)
    bound = 5 * math.sqrt((v_pos + v_neg) / (n * rounds)) / h
    assert (torch.stack(seen).mean(0) - fixed).abs().max() < bound
    assert bound < 0.25 * (distance if steps == 4 else x.mean(0).abs().min())


def test_linear_tilt_gets_there_from_afar_with_adam():
    """From alpha = 0 to the MLE: the average of the last T iterates, with standard error sqrt(2/(n T))/h and h = 1/(1 + sigma^2)."""
    chains, model = Chains(Chain(100, 0.4), Chain(100, 0.4)), LatentEBM(resolve("digits", ["nz=2"]), Shifted(0.5))
    model.prior = LinearTilt(2)
    x = torch.tensor([0.7, -1.1], dtype=torch.float64) + normal(500, 2)
    optimizer, generator, seen = make_optimizer(model, Learning(prior_rate=0.1)), rng(2), []
    for _ in range(80):
        learn_step(model, x, optimizer, chains, Learning(), generator)
        seen.append(model.prior.alpha.detach().clone())
    assert (torch.stack(seen[40:]).mean(0) - x.mean(0)).abs().max() < 5 * math.sqrt(2 / (500 * 40)) * 1.25


# --- b, c. nonlinear prior and generator against quadrature over z -------------------------------------------------------


class Curve(nn.Module):
    """A small nonlinear generator of three outputs."""

    def __init__(self, nz, sigma):
        super().__init__()
        self.sigma = sigma
        self.first, self.last = nn.Linear(nz, 4).double(), nn.Linear(4, 3).double()

    def decode(self, z):
        return self.last(torch.tanh(self.first(z)))

    def log_prob(self, x, z):
        return log_normal((x - self.decode(z)) / self.sigma) - 3 * math.log(self.sigma)

    def score(self, x, z):
        h = torch.tanh(self.first(z))
        return ((x - self.last(h)) / self.sigma**2 @ self.last.weight * (1 - h * h)) @ self.first.weight


X = torch.tensor([[0.9, -0.4, 0.3], [-0.6, 0.2, 0.8]], dtype=torch.float64)


def nonlinear(nz, sigma=0.5):
    model = LatentEBM(resolve("digits", [f"nz={nz}", "prior.width=5", "prior.activation=tanh"]), Curve(nz, sigma)).double()
    for i, p in enumerate(model.parameters()):
        p.data = 0.8 * normal(*p.shape, seed=i)
    return model


class Grid:
    """Points of [-7, 7]^nz for trapezoid sums. A spacing of at most s leaves an error of exp(-2 pi^2) for a density blurred by s."""

    def __init__(self, nz, spacing):
        self.axis = torch.arange(-7, 7 + spacing / 2, spacing, dtype=torch.float64)
        self.z = torch.cartesian_prod(*[self.axis] * nz).reshape(-1, nz)
        self.cell = spacing**nz

    def log_integral(self, log_density):
        return torch.logsumexp(log_density, 0) + math.log(self.cell)

    def short_run(self, log_target, chain):
        """Push N(0, I) through `steps` Langevin transitions: p'(y) = sum over z of p(z) N(y; z + (s^2/2) score(z), s^2 I)."""
        z = self.z.clone().requires_grad_()
        middle = (z + chain.step_size**2 / 2 * torch.autograd.grad(log_target(z).sum(), z)[0]).detach()
        kernels = [log_normal((self.axis[:, None, None] - m[None, :, None]) / chain.step_size).exp() / chain.step_size for m in middle.t()]
        p = log_normal(self.z).exp()
        for _ in range(chain.steps):
            weighted = kernels[0] * (p * self.cell)
            p = (weighted.sum(1) if len(kernels) == 1 else weighted @ kernels[1].t()).flatten()
        assert p.sum().item() * self.cell == pytest.approx(1, abs=1e-6)  # nothing leaves the grid
        return p


def objectives(model, chains, grid):
    """(log p(x), perturbed objective), means over X, as functions of theta; the short-run laws are constants."""
    prior = lambda z: model.prior.f(z) + log_normal(z)  # noqa: E731
    log_prior = prior(grid.z) - grid.log_integral(prior(grid.z))

    def kl(p, log_q):
        return (torch.special.xlogy(p, p) - p * log_q).sum() * grid.cell

    negative = kl(grid.short_run(prior, chains.prior), log_prior)
    likelihood = perturbed = 0.0
    for x in X:
        joint = lambda z, x=x: prior(z) + model.generator.log_prob(x, z)  # noqa: E731
        log_joint = log_prior + model.generator.log_prob(x, grid.z)
        log_px = grid.log_integral(log_joint)
        likelihood = likelihood + log_px / len(X)
        perturbed = perturbed + (log_px - kl(grid.short_run(joint, chains.posterior), log_joint - log_px) + negative) / len(X)
    return likelihood, perturbed


def flat_gradient(model, objective):
    return torch.cat([g.flatten() for g in torch.autograd.grad(objective, list(model.parameters()), retain_graph=True, materialize_grads=True)])


def learned_gradient(model, chains, batches=40, copies=400):
    """What learn_step would climb, -grad, averaged over independent batches, with its standard error from their spread."""
    x, optimizer, seen = X.repeat(copies, 1), make_optimizer(model, FROZEN), []
    before = copy.deepcopy(model.state_dict())
    for seed in range(batches):
        learn_step(model, x, optimizer, chains, FROZEN, rng(seed))
        seen.append(-torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    g = torch.stack(seen)
    return g.mean(0), g.std(0) / math.sqrt(batches)


@pytest.mark.parametrize(("k0", "k1"), [(5, 5), (20, 10), (10, 20)])
def test_short_run_gradient_is_that_of_the_perturbed_objective(k0, k1):
    """Equation 12: log p(x) - KL(short-run posterior, posterior) + KL(short-run prior, prior), at the paper's step sizes."""
    model, chains = nonlinear(1), Chains(Chain(k0, 0.4), Chain(k1, 0.1))
    likelihood, perturbed = objectives(model, chains, Grid(1, 0.05))
    expected, exact = flat_gradient(model, perturbed), flat_gradient(model, likelihood)
    mean, se = learned_gradient(model, chains)
    # 5 standard errors; 1e-9 for the biases of the last layer of f, whose gradient is 1 - 1 = 0 without any spread
    assert ((mean - expected).abs() < 5 * se + 1e-9).all()
    assert ((mean - exact).abs() > 20 * se).any()  # short chains follow another objective than the likelihood, and are told apart
    assert se.max() < 0.03 * expected.abs().max()


LONG = {1: (Chains(Chain(180, 0.3), Chain(400, 0.3)), 0.1), 2: (Chains(Chain(180, 0.3), Chain(180, 0.3)), 0.25)}  # K s^2 >= 16


@pytest.mark.parametrize("nz", LONG)
def test_long_chains_follow_the_gradient_of_the_likelihood(nz):
    """The steps' own bias, O(s^2), is known from the chains' law on the grid: small, and a quarter of it at half the step."""
    (chains, spacing), model = LONG[nz], nonlinear(nz, sigma=1.0)  # a posterior whose modes are joined
    grid = Grid(nz, spacing)
    likelihood, perturbed = objectives(model, chains, grid)
    exact, expected = flat_gradient(model, likelihood), flat_gradient(model, perturbed)
    bias = (expected - exact).norm()
    assert bias < 0.1 * exact.norm()
    if nz == 1:
        halved = Chains(*(Chain(4 * c.steps, c.step_size / 2) for c in (chains.prior, chains.posterior)))
        half = flat_gradient(model, objectives(model, halved, grid)[1])
        assert 3 < bias / (half - exact).norm() < 6  # 4 but for the next order
    mean, se = learned_gradient(model, chains, batches=16)
    assert ((mean - expected).abs() < 6 * se + 1e-9).all()  # 16 batches: Student's tails, so 6
    assert (mean - exact).norm() < bias + 5 * se.norm()
    assert se.norm() < 0.02 * exact.norm()


# --- d. the step's details ------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny():
    """(model, its chains, a batch of 10 images) with images of 8x8 pixels."""
    model = LatentEBM(resolve("digits", TINY)).double()
    return model, model.config.chains, normal(10, 1, 8, 8).clamp(-1, 1)


def gradients(tiny, seed=0, **learning):
    """The step, and the gradients it left for the prior and for the generator."""
    model, chains, x = tiny
    step = learn_step(model, x, make_optimizer(model, FROZEN), chains, replace(FROZEN, **learning), rng(seed))
    return step, *(torch.cat([p.grad.flatten() for p in net.parameters()]) for net in (model.prior, model.generator))


def test_step_reports_its_chains_and_terms(tiny):
    model, chains, x = tiny
    step, prior, generator = gradients(tiny)
    noise = rng(0)
    assert torch.equal(step.z0_neg, model.prior.draw_base(10, noise))
    assert torch.equal(step.z0_pos, model.prior.draw_base(10, noise))
    for z0, z, chain, score in (
        (step.z0_neg, step.z_neg, chains.prior, model.prior.score),
        (step.z0_pos, step.z_pos, chains.posterior, lambda z: model.posterior_score(x, z)),
    ):
        for _ in range(chain.steps):
            z0 = z0 + chain.step_size**2 / 2 * score(z0) + chain.step_size * torch.randn(10, 4, generator=noise, dtype=torch.float64)
        torch.testing.assert_close(z, z0, rtol=1e-12, atol=1e-12)
    terms = [model.prior.f(step.z_pos).mean(), model.prior.f(step.z_neg).mean(), model.generator.log_prob(x, step.z_pos).mean()]
    torch.testing.assert_close([step.f_pos, step.f_neg, step.log_px], terms, rtol=1e-13, atol=1e-13)
    assert not any(t.requires_grad for t in vars(step).values())
    expected = torch.autograd.grad(terms[1] - terms[0] - terms[2], list(model.parameters()))
    torch.testing.assert_close(torch.cat([prior, generator]), torch.cat([g.flatten() for g in expected]), rtol=1e-12, atol=1e-12)


def test_l2_adds_the_gradient_of_the_mean_squares(tiny):
    model, weight = tiny[0], 0.3
    _, prior, generator = gradients(tiny)
    step, with_l2, same = gradients(tiny, l2=weight)
    extra = weight * (model.prior.f(step.z_pos).square().mean() + model.prior.f(step.z_neg).square().mean())
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(extra, list(model.prior.parameters()))])
    torch.testing.assert_close(with_l2 - prior, expected, rtol=1e-10, atol=1e-12)
    assert expected.norm() > 1e-3
    assert torch.equal(same, generator)


def test_clip_bounds_each_network_by_itself(tiny):
    _, prior, generator = gradients(tiny)
    small, large = sorted((prior.norm().item(), generator.norm().item()))
    for clip in (small / 2, (small + large) / 2, 2 * large):
        for raw, clipped in zip((prior, generator), gradients(tiny, clip=clip)[1:], strict=True):
            # PyTorch divides by norm + 1e-6
            torch.testing.assert_close(clipped, raw * min(1, clip / (raw.norm().item() + 1e-6)), rtol=1e-12, atol=0)


def test_adam_has_a_rate_for_each_network(tiny):
    """Adam's first step is rate * g / (|g| + 1e-8): every parameter shows its network's rate."""
    model, chains, x = tiny
    learning = Learning(prior_rate=3e-3, generator_rate=7e-4, betas=(0.5, 0.9))
    optimizer, before = make_optimizer(model, learning), [p.detach().clone() for p in model.parameters()]
    assert [group["lr"] for group in optimizer.param_groups] == [3e-3, 7e-4]
    assert [group["betas"] for group in optimizer.param_groups] == [(0.5, 0.9)] * 2
    learn_step(model, x, optimizer, chains, learning, rng())
    rates = [3e-3] * len(list(model.prior.parameters())) + [7e-4] * len(list(model.generator.parameters()))
    for p, old, rate in zip(model.parameters(), before, rates, strict=True):
        torch.testing.assert_close(p.detach() - old, -rate * p.grad / (p.grad.abs() + 1e-8), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_gaussian_prior_learns_its_generator_alone(clip):
    model = LatentEBM(resolve("digits", [*TINY, "prior.kind=gaussian"])).double()
    learning, x = Learning(generator_rate=1e-2, clip=clip), normal(20, 1, 8, 8).clamp(-1, 1)
    optimizer, generator = make_optimizer(model, learning), rng()
    assert [len(group["params"]) for group in optimizer.param_groups] == [0, 4]
    steps = [learn_step(model, x, optimizer, model.config.chains, learning, generator) for _ in range(60)]
    assert all(torch.equal(step.z_neg, step.z0_neg) for step in steps)  # N(0, I) is drawn, not approached
    assert steps[0].f_pos == steps[0].f_neg == 0
    assert steps[-1].log_px > steps[0].log_px + 1
    assert describe(steps[-1], model, x)["grad_prior"] == 0


def test_describe_shows_the_step_in_plain_floats(tiny):
    model, _, x = tiny
    zeros, t = torch.zeros(2, 4, dtype=torch.float64), torch.tensor
    z_neg, z_pos = t([[3.0, 0, 0, 0], [0, 4, 0, 0]]).double(), t([[1.0] * 4, [3.0] * 4]).double()
    shown = describe(Step(zeros, z_neg, zeros + 1, z_pos, t(2.0), t(0.5), t(-7.0)), model, x[:2])
    assert all(type(value) is float and math.isfinite(value) for value in shown.values())
    expected = {
        "f_pos": 2, "f_neg": 0.5, "gap": 1.5, "log_px": -7, "grad_prior": 0, "grad_generator": 0,
        "mse": (x[:2] - model.generator.decode(z_pos)).square().mean().item(),
        "disp_neg": math.sqrt(25 / 8), "z_mean_neg": 7 / 8, "z_sq_neg": 25 / 8, "z_spread_neg": (1.5 + 2) / 4,
        "disp_pos": math.sqrt(2), "z_mean_pos": 2, "z_sq_pos": 5, "z_spread_pos": 1,
    }  # fmt: skip
    assert shown == pytest.approx(expected, rel=1e-12)
    step, prior, generator = gradients(tiny)
    shown = describe(step, model, x)
    assert shown["grad_prior"] == pytest.approx(prior.norm().item(), rel=1e-12)
    assert shown["grad_generator"] == pytest.approx(generator.norm().item(), rel=1e-12)

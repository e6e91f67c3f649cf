"""What goes beyond the paper, against exact answers: gradients by autograd, a linear-Gaussian model, a tilted density
with a known constant."""

import copy
import math
import sys
from functools import partial

import pytest
import torch
from test_learn import LinearTilt, chain_law, frozen, learn, log_normal, normal, rng
from torch import nn

from lebm.config import check_learning, preset_names, resolve
from lebm.config.build import build
from lebm.core.errors import ConfigError, DataError
from lebm.extensions.encoder_start import HIGHEST, LOWEST, EncoderStart, GaussianEncoder
from lebm.extensions.flows import SplineFlow
from lebm.extensions.proposals import OBJECTIVES, LearnedStart
from lebm.extensions.replay_start import ReplayStart
from lebm.generators import Generator, as_generator
from lebm.generators.encoders import FlatNet
from lebm.latent_ebm import LatentEBM
from lebm.prior import EnergyPrior, StandardNormal
from lebm.sampler import Chain
from lebm.start import Draws, Start

zuko = pytest.importorskip("zuko")

TINY = ["nz=4", "method.energy.width=8", "generator.ngf=3", "training.batch=10"]
CHAINS = ["method.prior_chain.steps=5", "method.posterior_chain.steps=4"]
ENCODER = ["method.posterior_start={kind: encoder, width: 2}"]
FORWARD_ENCODER = ["method.posterior_start={kind: encoder, width: 2, objective: forward_kl}"]
ENCODER_ALONE = [*ENCODER, "method.posterior_chain.steps=0"]
FLOW = ["method.prior_start={kind: flow, width: 8, layers: 2}"]
FORWARD_FLOW = ["method.prior_start={kind: flow, width: 8, layers: 2, objective: forward_kl}"]
FLOW_ALONE = [*FLOW, "method.prior_chain.steps=0"]
REPLAY = ["method.prior_start={kind: replay, chains: 20}"]
NO_ENERGY = ["method.energy=null", "method.prior_chain.steps=0"]


def settings_of(*settings):
    return [
        *(s for s in TINY if not any(t.startswith("method.energy=") for t in settings) or "energy" not in s),
        *settings,
    ]


def tiny(*settings):
    return build(resolve("digits/paper", settings_of(*CHAINS, *settings))).double()


def images(n=10):
    return normal(n, 1, 8, 8).clamp(-1, 1)


def gradient(loss, net):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()), materialize_grads=True)])


def left_behind(net):
    """The gradient that the last update left."""
    return torch.cat([p.grad.flatten() for p in net.parameters()])


# --- the objectives ---------------------------------------------------------------------------------------------------


def test_the_encoder_descends_the_variational_bound():
    """Delta in phi: KL(q_phi(z|x) || p(z|x)) = E[log q_phi - log p(x, z)] + const, log Z and log p(x) being
    constants."""
    method, x, e = tiny(*ENCODER_ALONE), images(), normal(10, 4, seed=1)
    q = method.posterior_start.q
    z, log_q = q.draw(e, x)
    expected = gradient((log_q - method.log_joint(x, z)).mean(), q)
    z = z.detach()
    loss = method.posterior_start.loss(Draws(e, z, z, x), partial(method.posterior_score, x))
    torch.testing.assert_close(gradient(loss, q), expected, rtol=1e-9, atol=1e-10)
    assert expected.norm() > 1e-2
    others = [p for net in (method.prior, method.generator) for p in net.parameters()]
    loss = method.posterior_start.loss(Draws(e, z, z, x), partial(method.posterior_score, x))
    assert all(g is None for g in torch.autograd.grad(loss, others, allow_unused=True))


def test_an_encoder_alone_without_an_energy_is_a_vae():
    """Both networks then move by the gradient of E[log p(x|z) + log N(z; 0, I) - log q(z|x)] at the reparametrised z,
    and by nothing else."""
    method, x = tiny(*ENCODER_ALONE, *NO_ENERGY), images()
    before = copy.deepcopy(method)
    learn(method, x, frozen(method), rng())
    noise = rng()
    before.prior.base.noise(10, noise)
    mean, log_std = before.posterior_start.q(x)
    e = before.prior.base.noise(10, noise)
    z = mean + log_std.exp() * e
    bound = before.generator.log_prob(x, z) + log_normal(z) - (log_normal(e) - log_std.sum(1))
    (-bound.mean()).backward()
    for mine, its in ((method.posterior_start.q, before.posterior_start.q), (method.generator, before.generator)):
        for p, q in zip(mine.parameters(), its.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-10)
        assert sum(float(q.grad.square().sum()) for q in its.parameters()) > 1e-4
    assert not list(method.prior.parameters())


def test_the_flow_descends_its_divergence_from_the_prior():
    """Delta in psi: -KL(q_psi || p_alpha) is maximised, that is E[log q_psi - f - log N] descended; alpha is left
    alone."""
    method, e = tiny(*FLOW_ALONE), normal(10, 4, seed=1)
    q = method.prior_start.q
    z, log_q = q.draw(e)
    expected = gradient((log_q - method.prior.log_prob(z)).mean(), q)
    draws = Draws(e, z.detach(), z.detach())
    loss = method.prior_start.loss(draws, method.prior.score_white)
    torch.testing.assert_close(gradient(loss, q), expected, rtol=1e-9, atol=1e-10)
    assert expected.norm() > 1e-2
    loss = method.prior_start.loss(draws, method.prior.score_white)
    assert all(g is None for g in torch.autograd.grad(loss, list(method.prior.parameters()), allow_unused=True))


@pytest.mark.parametrize("base", ["{kind: whitened}", "{kind: mixture, components: 3}"])
def test_over_a_base_that_follows_the_flow_lives_on_the_whitened_z(base):
    """It starts near N(m, S), moves along with it, and its loss is the same divergence as a density of z."""
    method, e = tiny(*FLOW_ALONE, f"method.base={base}"), normal(4000, 4, seed=1)
    mix, prior = normal(4, 4, seed=2), method.prior
    with torch.no_grad():
        prior.base.mean.copy_(torch.arange(4.0))
        root = torch.linalg.cholesky(mix @ mix.T + torch.eye(4))
        prior.base.root.copy_(root)
        prior.base.inverse.copy_(torch.linalg.inv(root))
    q = method.prior_start.q
    z0 = prior.base.unwhiten(method.prior_start(method.start_noise(e)))
    torch.testing.assert_close(z0, torch.arange(4.0) + q.draw(e)[0] @ root.T, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(next(method.sample_z(5)), next(method.sample_z(5, spec=method.choose("prior", "flow"))))
    u, log_q = q.draw(e[:10])
    z = torch.arange(4.0) + u @ root.T
    expected = gradient((log_q - prior.log_prob(z)).mean(), q)
    loss = method.prior_start.loss(Draws(e[:10], u.detach(), u.detach()), prior.score_white)
    torch.testing.assert_close(gradient(loss, q), expected, rtol=1e-8, atol=1e-9)
    assert expected.norm() > 1e-2


def test_gradients_lie_in_memory_as_their_parameters_do():
    method = tiny(*FORWARD_ENCODER, "generator.size=16", "generator.widths=[2, 1]")
    method.posterior_start.to(memory_format=torch.channels_last)
    learn(method, normal(10, 1, 16, 16), frozen(method), rng())
    assert all(p.grad.stride() == p.stride() for p in method.posterior_start.parameters())
    assert any(not p.is_contiguous() for p in method.posterior_start.parameters())


@pytest.mark.parametrize("settings", [FORWARD_ENCODER, FORWARD_FLOW, [*FORWARD_ENCODER, *FORWARD_FLOW]])
def test_forward_kl_learns_the_likelihood_of_the_refined_z(settings):
    method, x = tiny(*settings), images()
    before = copy.deepcopy(method)
    last = learn(method, x, frozen(method), rng())
    for start, old, draws in (
        (method.posterior_start, before.posterior_start, last.pos),
        (method.prior_start, before.prior_start, last.neg),
    ):
        if isinstance(start, LearnedStart):
            expected = gradient(-old.q.log_prob(draws.z, draws.x).mean(), old.q)
            torch.testing.assert_close(left_behind(start.q), expected, rtol=1e-9, atol=1e-12)
            assert expected.norm() > 1e-2
    starts = {"encoder": "encoder" in str(settings), "flow": "flow" in str(settings)}
    assert set(method.networks()) == {"prior", "generator"} | {name for name, there in starts.items() if there}


def test_an_encoder_with_reverse_kl_keeps_to_the_drift_limit_of_its_chain():
    """Every row's score is longer than this limit at s = 0.1, so each counts in the loss with that length and its own
    direction."""
    limit = 1e-3
    method, x = tiny(*ENCODER, f"method.posterior_chain.drift_limit={limit}"), images()
    before = copy.deepcopy(method)
    learn(method, x, frozen(method), rng())
    noise = rng()
    before.prior.base.noise(10, noise)
    z, log_q = before.posterior_start.q.draw(before.prior.base.noise(10, noise), x)
    score = before.posterior_score(x, z.detach())
    size = 0.005 * score.square().mean(1, keepdim=True).sqrt()
    assert size.min() > limit
    expected = gradient((log_q - (score * limit / size * z).sum(1)).mean(), before.posterior_start.q)
    torch.testing.assert_close(left_behind(method.posterior_start.q), expected, rtol=1e-9, atol=1e-10)


def test_alpha_and_beta_learn_from_the_same_samples_whatever_drew_them():
    method, x = tiny(*ENCODER_ALONE, *FLOW_ALONE), images()
    before = copy.deepcopy(method)
    last = learn(method, x, frozen(method), rng())
    noise = rng()
    e_neg, e_pos = before.prior.base.noise(10, noise), before.prior.base.noise(10, noise)
    torch.testing.assert_close(last.neg.z, before.prior_start.q.draw(e_neg)[0].detach())
    torch.testing.assert_close(last.pos.z, before.posterior_start.q.draw(e_pos, x)[0].detach())
    loss = before.prior.f(last.neg.z).mean() - before.prior.f(last.pos.z).mean()
    loss = loss - before.generator.log_prob(x, last.pos.z).mean()
    for name in ("prior", "generator"):
        params = list(before.networks()[name].parameters())
        expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, params, retain_graph=True)])
        torch.testing.assert_close(left_behind(method.networks()[name]), expected, rtol=1e-9, atol=1e-10)


# --- a linear-Gaussian model ------------------------------------------------------------------------------------------


class Linear(Generator):
    """x = W z + b + sigma e. On the prior N(alpha, I): x ~ N(W alpha + b, W W' + sigma^2 I)."""

    def __init__(self, w, b, sigma):
        super().__init__()
        self.w, self.b, self.sigma, self.shape = nn.Parameter(w.clone()), nn.Parameter(b.clone()), sigma, (len(w),)

    def decode(self, z):
        return z @ self.w.t() + self.b

    def log_prob(self, x, z, *masks):
        return log_normal((x - self.decode(z)) / self.sigma) - x.shape[-1] * math.log(self.sigma)

    def score(self, x, z, *masks):
        return (x - self.decode(z)) @ self.w / self.sigma**2


SIGMA = 0.5
W = torch.tensor([[1.2, 0.3], [0.9, -0.6], [-0.4, 0.5], [0.6, 0.2]], dtype=torch.float64)
W = torch.stack([W[:, 0], W[:, 1] - (W[:, 0] @ W[:, 1]) / (W[:, 0] @ W[:, 0]) * W[:, 0]], 1)  # orthogonal columns


def linear_model(w, b, objective, prior_chain, posterior_chain):
    """With an encoder whose mean is linear in x, as that of the exact posterior is."""
    generator = Linear(w, b, SIGMA)
    start = EncoderStart(GaussianEncoder(generator.make_encoder(2, 64, 0), 2), objective)
    prior = EnergyPrior(StandardNormal(2), LinearTilt(2))
    return LatentEBM(prior, generator, prior_chain, posterior_chain, posterior_start=start).double()


def posterior(method, x):
    """Mean and covariance of p(z|x), exact."""
    w, b, alpha = (p.detach() for p in (method.generator.w, method.generator.b, method.prior.energy.alpha))
    cov = torch.linalg.inv(torch.eye(2) + w.t() @ w / SIGMA**2)
    return ((x - b) @ w / SIGMA**2 + alpha) @ cov, cov


def encoder_divergence(method, x):
    """KL(q_phi(z|x) || p(z|x)), exact, averaged over the rows."""
    with torch.no_grad():
        (mean, log_std), (m, cov) = method.posterior_start.q(x), posterior(method, x)
    precision, var = torch.linalg.inv(cov), log_std.exp().square()
    quadratic = ((mean - m) @ precision * (mean - m)).sum(1)
    return 0.5 * ((var @ precision.diag()) - 2 + quadratic + torch.logdet(cov) - 2 * log_std.sum(1)).mean().item()


def likelihood(x, mean, cov):
    return torch.distributions.MultivariateNormal(mean, cov).log_prob(x).mean().item()


def test_an_encoder_alone_reaches_the_maximum_likelihood_and_the_exact_posterior():
    """The maximum likelihood estimate of probabilistic PCA with known sigma: the sample mean, and W W' = U (L -
    sigma^2) U' of the two largest eigenvalues of the sample covariance. A diagonal q loses nothing, for it turns W
    until its columns are orthogonal.

    Tolerances: true parameters would lie d/(2n) nats below the maximum on average (d = 4 + 8 - 1 free numbers), so a
    fifth of that is close; means and covariances within a third of their standard errors."""
    n = 400
    x = normal(n, 2, seed=2) @ W.t() + torch.tensor([0.5, -1, 0, 2]) + SIGMA * normal(n, 4, seed=3)
    centred = x - x.mean(0)
    values, vectors = torch.linalg.eigh(centred.t() @ centred / n)
    best = vectors[:, 2:] @ torch.diag(values[2:] - SIGMA**2) @ vectors[:, 2:].t()
    zeros = torch.zeros(4, dtype=torch.float64)
    method = linear_model(normal(4, 2, seed=4), zeros, "reverse_kl", Chain(40, 0.6), Chain(0, 0.1))
    optimizers = {
        name: torch.optim.Adam(net.parameters(), lr=0.02, betas=(0.9, 0.99)) for name, net in method.networks().items()
    }
    assert set(optimizers) == {"prior", "generator", "encoder"}
    generator, rounds = rng(1), 900
    for k in range(rounds):
        for optimizer in optimizers.values():
            optimizer.param_groups[0]["lr"] = 0.02 * (1 - k / rounds)
        learn(method, x, optimizers, generator)
    w, mean = method.generator.w.detach(), method.generator.decode(method.prior.energy.alpha[None])[0].detach()
    noise = SIGMA**2 * torch.eye(4)
    gap = likelihood(x, x.mean(0), best + noise) - likelihood(x, mean, w @ w.t() + noise)
    assert 0 <= gap < (4 + 8 - 1) / (2 * n) / 5
    cov = best + noise
    assert ((mean - x.mean(0)).abs() < (cov.diag() / n).sqrt() / 3).all()
    assert ((w @ w.t() - best).abs() < ((torch.outer(cov.diag(), cov.diag()) + cov**2) / n).sqrt() / 3).all()
    assert abs(w[:, 0] @ w[:, 1]) < 0.05 * w.square().sum()
    assert encoder_divergence(method, x) < 0.01


def test_draws_are_the_encoders_without_steps_and_the_long_chains_with_many():
    """After K steps from any start the chain on N(m, 1/q) has mean m + a^K (start - m) and the variance of
    test_sampler; at K s^2 q >= 16 nothing of the start is left. The columns of W are orthogonal, so coordinates are
    independent."""
    n, chain = 20_000, Chain(110, 0.2)
    method = linear_model(W, torch.zeros(4, dtype=torch.float64), "forward_kl", Chain(40, 0.4), chain)
    with torch.no_grad():
        shift = torch.tensor([1.0, -1.0, 0.5, 0.5])
        method.posterior_start.q.net.layers[-1].bias += shift  # far from the posterior
    x = torch.tensor([[0.3, -0.2, 0.5, 1.0]], dtype=torch.float64).expand(n, -1)

    def draw(*chosen):
        return method.encode(x, 3, method.choose("posterior", *chosen), shared_noise=False)

    mean, log_std = (t.detach()[0] for t in method.posterior_start.q(x[:1]))
    alone = draw("encoder", 0)
    assert ((alone.mean(0) - mean).abs() < 5 * log_std.exp() / math.sqrt(n)).all()
    assert ((alone.var(0) / log_std.exp().square() - 1).abs() < 5 * math.sqrt(2 / n)).all()
    m, cov = posterior(method, x[:1])
    for start in ("encoder", "noise"):
        z = draw(start)
        for i in range(2):
            precision = 1 / cov[i, i].item()
            assert chain.steps * chain.step_size**2 * precision >= 16
            variance = chain_law(precision, chain)[1]
            assert abs(z[:, i].mean() - m[0, i]) < 5 * math.sqrt(variance / n)
            assert abs(z[:, i].var() / variance - 1) < 5 * math.sqrt(2 / n)
    assert (alone.mean(0) - m).abs().max() > 0.5  # the test could fail


# --- a flow on a known density ----------------------------------------------------------------------------------------


class TwoHills:
    """f(z) = log cosh(2 z_1) - 2 tilts N(0, I) to the mixture of N((2, 0), I) and N((-2, 0), I), with Z = 1."""

    def log_prob(self, z):
        return torch.logaddexp(2 * z[:, 0], -2 * z[:, 0]) - math.log(2) - 2 + log_normal(z)

    def score(self, z):
        return torch.stack([2 * torch.tanh(2 * z[:, 0]), torch.zeros_like(z[:, 0])], 1) - z

    def draw(self, n, seed):
        sign = torch.randint(0, 2, (n,), generator=rng(seed)) * 2 - 1
        return normal(n, 2, seed=seed + 1) + torch.stack([2.0 * sign, torch.zeros(n)], 1)


@pytest.mark.parametrize("objective", ["reverse_kl", "forward_kl"])
def test_a_flow_learns_a_tilted_density(objective):
    """KL below 0.02 nats beyond five standard errors of its estimate, where N(0, I) is at more than 1 and one hill
    alone at log 2."""
    hills, n, forward = TwoHills(), 20_000, objective == "forward_kl"
    torch.manual_seed(0)
    flow = SplineFlow(2, layers=2, width=24).double()
    optimizer, rounds = torch.optim.Adam(flow.parameters()), 300 if forward else 120
    for k in range(rounds):
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - k / rounds)
        e = normal(250, 2, seed=k)
        loss = OBJECTIVES[objective](flow, Draws(e, e, hills.draw(250, 2 * k) if forward else e), hills.score)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        if forward:
            z = hills.draw(n, 8888)
            terms = hills.log_prob(z) - flow.log_prob(z)
        else:
            z, log_q = flow.draw(normal(n, 2, seed=9999))
            terms = log_q - hills.log_prob(z)
            start = normal(n, 2)
            assert (log_normal(start) - hills.log_prob(start)).mean() > 0.5
    assert terms.mean() < 0.02 + 5 * terms.std() / math.sqrt(n)
    assert terms.mean() > -5 * terms.std() / math.sqrt(n)  # a divergence: log_prob is normalised
    assert abs((z[:, 0] > 0).double().mean() - 0.5) < 0.05


@pytest.mark.parametrize("nz", [1, 2, 7])
def test_flow_density_is_that_of_its_draws(nz):
    torch.manual_seed(1)
    flow = SplineFlow(nz, layers=2, width=8).double()
    with torch.no_grad():
        flow.shift += 0.7
        flow.log_scale += 0.4
    e = normal(6, nz)
    z, log_q = flow.draw(e)
    torch.testing.assert_close(flow.log_prob(z), log_q, rtol=1e-9, atol=1e-9)
    for i in range(6):  # the change of variables, by autograd
        jacobian = torch.autograd.functional.jacobian(lambda v: flow.draw(v[None])[0][0], e[i])
        exact = log_normal(e[i]) - torch.linalg.slogdet(jacobian)[1]
        assert log_q[i].item() == pytest.approx(exact.item(), abs=1e-8)


def test_a_flow_without_zuko_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zuko", None)
    with pytest.raises(ConfigError, match=r"pip install 'lebm\[flow\]'"):
        tiny(*FLOW_ALONE)
    tiny(*REPLAY, *ENCODER)  # needs none


# --- encoders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", [p for p in preset_names() if resolve(p).generator.kind == "image"])
def test_an_image_encoder_mirrors_every_generator(preset):
    config = resolve(preset, ["generator.ngf=1", "generator.channels=1"])
    g = config.generator.build(config.nz)
    q = GaussianEncoder(g.make_encoder(config.nz, 1, 2), config.nz)
    mean, log_std = q(torch.zeros(2, 1, g.size, g.size))
    assert mean.shape == log_std.shape == (2, config.nz)
    assert len(q.net.layers) == len(g.convolutions()) - 1 + (g.base == 8)
    assert q.net.head.in_features < 64 * q.net.layers[-1].out_channels  # a map below 8x8
    assert q.net.flops(2) == 2 * q.net.flops(1) > 0


def test_encoder_density_is_a_normal_one():
    q, x, e = GaussianEncoder(FlatNet(6, 3, 8, 2), 3).double(), normal(5, 6), normal(5, 3, seed=1)
    with torch.no_grad():
        q.net.layers[-1].weight.normal_(generator=rng(2))
    (mean, log_std), (z, log_q) = q(x), q.draw(e, x)
    expected = torch.distributions.Normal(mean, log_std.exp()).log_prob(z).sum(1)
    torch.testing.assert_close(log_q, expected)
    torch.testing.assert_close(q.log_prob(z, x), expected)
    with torch.no_grad():
        q.net.layers[-1].bias[3:] = torch.tensor([1e4, -1e4, 0.0])
    log_std = q(x)[1]
    assert log_std[:, 0].max() <= HIGHEST and log_std[:, 1].min() >= LOWEST  # and never beyond


def test_whole_numbers_are_encoded_too():
    assert FlatNet(3, 2, 4, 1)(torch.arange(6).view(2, 3)).shape == (2, 4)


def test_encoders_of_a_users_generators():
    config = resolve("digits/paper", ["nz=2", *ENCODER])

    class Bare(Linear):
        def __init__(self):
            super().__init__(W, W[:, 0], 1.0)
            self.shape = None

    with pytest.raises(ConfigError, match="`shape`.*make_encoder"):
        build(config, Bare())

    class WithAnEncoder(Bare):
        def make_encoder(self, nz, width, depth):
            return nn.Linear(4, 2 * nz)

    method = build(config, WithAnEncoder()).double()
    assert isinstance(method.posterior_start.q.net, nn.Linear) and method.encode(normal(3, 4)).shape == (3, 2)


class Plain(nn.Module):
    """A module with log_prob and decode alone."""

    shape: tuple[int, ...] = (3,)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def decode(self, z):
        return self.layer(z)

    def log_prob(self, x, z):
        return -(x - self.decode(z)).square().sum(1)


def test_a_plain_module_gets_an_encoder_for_its_shape():
    method = build(resolve("digits/paper", settings_of(*ENCODER, *CHAINS)), Plain())
    assert isinstance(method.posterior_start.q.net, FlatNet)
    x = torch.randn(5, 3)
    assert not torch.equal(method.encode(x), method.encode(x, spec=method.choose("posterior", steps=0)))


def test_a_plain_module_may_make_its_own_encoder_and_is_named_where_it_cannot():
    class Own(Plain):
        shape = None

        def make_encoder(self, nz, width, depth):
            return nn.Linear(3, 2 * nz)

    config = resolve("digits/paper", settings_of(*ENCODER, *CHAINS))
    assert isinstance(build(config, Own()).posterior_start.q.net, nn.Linear)
    generator = Plain()
    generator.shape = None
    with pytest.raises(ConfigError, match="the shape of the generator Plain is None"):
        build(config, generator)


@pytest.mark.parametrize("shape", [3, (0,), ("a",), (3.0,)])
def test_a_shape_that_is_none_is_refused(shape):
    generator = as_generator(Plain(), 4)
    generator.shape = shape
    with pytest.raises(ConfigError, match="shape"):
        generator.make_encoder(4, 8, 1)


@pytest.mark.parametrize(
    ("net", "error", "words"),
    [
        (lambda nz: nn.Linear(3, nz), DataError, r"\(20, 4\) .* 8 numbers a row"),
        (lambda nz: nn.Linear(3, 1), DataError, r"\(20, 1\)"),
        (lambda nz: nn.LSTM(3, 2 * nz), DataError, "a tuple of 20 rows"),
        (lambda nz: None, ConfigError, "a NoneType; make_encoder"),
    ],
)
def test_what_a_users_encoder_makes_must_fit(net, error, words):
    class Odd(Generator):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def make_encoder(self, nz, width, depth):
            return net(nz)

        def decode(self, z):
            return self.layer(z)

        def log_prob(self, x, z, *masks):
            return -(x - self.decode(z)).square().sum(1)

    with pytest.raises(error, match=words):
        method = build(resolve("digits/paper", settings_of(*ENCODER)), Odd())
        learn(method, torch.randn(20, 3), frozen(method), rng())


def test_rows_that_an_encoder_does_not_fit_are_refused():
    generator = Plain()
    generator.shape = (63,)
    method = build(resolve("digits/paper", settings_of(*ENCODER)), generator)
    with pytest.raises(DataError, match="3 values, and the generator says 63"):
        learn(method, torch.randn(20, 3), frozen(method), rng())


# --- replayed chains --------------------------------------------------------------------------------------------------


def ended(e, z):
    return Draws(e, e, z)


def test_replayed_chains_continue_from_where_they_were():
    start = ReplayStart(chains=6, nz=2, refresh=0).double()
    e, ends = normal(4, 2), [normal(4, 2, seed=10 + i) for i in range(4)]
    assert torch.equal(start(e), e)  # the first visit of each starts from noise
    start.observe(ended(e, ends[0]))  # chains 0..3
    assert torch.equal(start(e)[:2], e[:2]) and torch.equal(start(e)[2:], ends[0][:2])  # chains 4, 5, then 0, 1
    start.observe(ended(e, ends[1]))
    assert torch.equal(start(e), torch.cat([ends[0][2:], ends[1][:2]]))  # chains 2, 3, 4, 5
    assert start.filled() == 6 and int(start.rows) == 8


def test_replayed_chains_start_anew_at_the_asked_rate():
    start, e, new = ReplayStart(chains=40, nz=1, refresh=0.25), torch.full((10, 1), 7.0), []
    for _ in range(4 * 12):
        z0 = start(e)
        new.append((z0 == 7).flatten())
        start.observe(ended(e, torch.zeros(10, 1)))
    visits = torch.stack(new).view(12, 40)
    assert visits[0].all() and visits[1:9].sum(0).eq(2).all()  # every chain twice in eight visits, never all at once
    assert (visits[1:].sum(1) == 10).all()


def test_samples_continue_replayed_chains_and_more_than_there_are_run_longer():
    """A chain's end says how often it was continued: a run of the chain here adds 1000 to its number."""
    method = tiny("method.prior_start={kind: replay, chains: 30}", "method.prior_chain.steps=2")
    assert method.choose("prior").in_words(100) == "2 steps of 0.4 from N(0, I)"  # no chain yet
    assert method.sample(3).shape == (3, 1, 8, 8)
    with torch.no_grad():
        method.prior_start.z.copy_(torch.arange(30.0).double()[:, None].expand(-1, 4))
        method.prior_start.rows += 30
    noise = method.choose("prior", "noise")
    assert noise.replay_chains == 0
    assert not torch.equal(next(method.sample_z(3, spec=noise)), next(method.sample_z(3)))
    steps = []
    method.run_prior_chain = lambda z, chain, rng: (steps.append(chain.steps), z + 1000)[1]
    z = torch.cat(list(method.sample_z(1100)))
    at = torch.arange(1100).double()
    assert torch.equal(z[:, 0], at % 30 + 1000 * (1 + at // 30))
    assert set(steps) == {2}
    spec = method.choose("prior")
    assert (spec.start, spec.steps, spec.replay_chains, spec.rounds(30), spec.rounds(1100)) == ("replay", 2, 30, 1, 37)
    assert f"2 to {2 * 37} steps" in spec.in_words(1100)
    without = method.choose("prior", steps=0)
    assert torch.equal(next(method.sample_z(30, spec=without))[:, 0] % 1000, at[:30])
    with pytest.raises(DataError, match="31 samples"):
        next(method.sample_z(31, spec=without))


def test_a_replay_buffer_is_filled_by_learning_and_stored():
    method = tiny(*REPLAY)
    last = learn(method, images(), frozen(method), rng())
    assert int(method.prior_start.rows) == 10 and torch.equal(method.prior_start.z[:10], last.neg.z)
    assert {"prior_start.z", "prior_start.rows"} <= set(method.state_dict())
    assert torch.equal(learn(method, images(), frozen(method), rng(1)).neg.z0, last.neg.e) is False


# --- choosing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "target", "start", "steps", "words"),
    [
        ([], "posterior", "encoder", None, "'encoder'.* noise"),
        ([], "prior", "flow", None, "'flow'"),
        (FLOW_ALONE, "prior", "replay", 3, "'replay'.* noise, flow"),
        ([], "posterior", "flow", None, "'flow'"),
        ([], "posterior", "", None, "''"),
        (ENCODER_ALONE, "posterior", "noise", None, "say how many"),
        (ENCODER, "posterior", None, -1, "is -1; it must not be negative"),
    ],
)
def test_a_sampler_that_cannot_be_is_refused(settings, target, start, steps, words):
    with pytest.raises(DataError, match=words):
        tiny(*settings).choose(target, start, steps)


def test_every_sampler_says_what_it_is():
    method = tiny(*FORWARD_ENCODER, *FORWARD_FLOW)
    own = method.choose("posterior")
    assert (own.target, own.start, own.steps, own.step_size, own.base) == ("posterior", "encoder", 4, 0.1, "N(0, I)")
    assert own == method.samplers()["posterior"] == method.choose("posterior", "encoder")
    assert method.choose("posterior", steps=0).in_words() == "by the encoder alone"
    noise = method.choose("prior", "noise", 9)
    assert (noise.start, noise.steps) == ("noise", 9) and noise.in_words() == "9 steps of 0.4 from N(0, I)"
    assert method.starts("prior") == ("noise", "flow") and method.starts("posterior") == ("noise", "encoder")
    assert tiny(*ENCODER_ALONE).choose("posterior", None, 5).steps == 5  # an encoder alone may be refined
    x, from_noise = images(), method.choose("posterior", "noise")
    assert not torch.equal(method.encode(x), method.encode(x, spec=from_noise))
    for call in (method.encode, method.reconstruct, method.anomaly_score):
        torch.testing.assert_close(call(x, spec=own), call(x), rtol=0, atol=0)
        torch.testing.assert_close(call(x)[2:3], call(x[2:3]), rtol=1e-9, atol=1e-9)  # alone as beside others
    spec = method.choose("prior", "flow")
    seven, nine = method.sample(7, spec=spec), method.sample(9, spec=spec)[:7]
    torch.testing.assert_close(seven, nine, rtol=0, atol=1e-12)  # products of 7 and of 9 rows may round apart


def test_a_sampler_names_its_base_and_its_tempering():
    spec = tiny("method.base={kind: mixture, components: 2}", "method.posterior_chain.noise=0.5").samplers()
    assert "mixture" in spec["prior"].in_words() and "N(0, I)" in spec["posterior"].in_words()
    assert spec["posterior"].options["noise"] == 0.5 and spec["prior"].options == {}


def test_configs_that_cannot_be():
    for settings, key in (
        ([*NO_ENERGY, *FLOW], "method.prior_start.kind"),
        (["method.energy=null", "method.prior_chain.steps=3"], "method.prior_chain.steps"),
        (["method.prior_start={kind: replay, chains: 9}"], "method.prior_start.chains"),
        ([*FORWARD_ENCODER, "method.base={kind: whitened}"], "method.posterior_start.objective"),
        (["method.prior_start={kind: replay, refresh: 0.7}"], "method.prior_start.refresh"),
        (["method.prior_start={kind: replay, refresh: 1e-20}"], "method.prior_start.refresh"),
        ([*REPLAY, "method.prior_chain.steps=0"], "method.prior_chain.steps"),
        ([*FORWARD_FLOW, "method.prior_chain.steps=0"], "method.prior_chain.steps"),
        ([*FORWARD_ENCODER, "method.posterior_chain.steps=0"], "method.posterior_chain.steps"),
        (["method.posterior_chain.steps=0"], "method.posterior_chain.steps"),
        (["method.prior_chain.steps=0"], "method.prior_chain.steps"),
        (["training.stages=[{until: 5, set: {method.posterior_chain.steps: 0}}]"], "method.posterior_chain.steps"),
        (
            [*FORWARD_ENCODER, "training.stages=[{until: 5, set: {method.posterior_chain.steps: 0}}]"],
            "method.posterior_chain.steps",
        ),
        (["training.stages=[{until: -1}]"], r"training.stages\[0\].until"),
        (["method.posterior_start.kind=cold"], "method.posterior_start.kind"),
    ):
        with pytest.raises(ConfigError, match=key):
            check_learning(resolve("digits/paper", settings_of(*settings)))
    config = resolve("digits/paper", settings_of(*ENCODER_ALONE, *FLOW_ALONE))
    check_learning(config)
    assert (config.method.posterior_chain.steps, config.method.prior_chain.steps) == (0, 0)
    for setting in (
        "method.posterior_start.kind=noise",
        "method.posterior_start.objective=forward_kl",
        "method.prior_start.kind=noise",
    ):  # as a saved run is changed, whose chains have no steps
        with pytest.raises(ConfigError, match="steps is 0; it must be above 0"):
            check_learning(resolve(config.to_dict(), [setting]))


def test_an_encoder_may_learn_alone_at_first():
    """A stage without posterior steps, then chains from the encoder's proposals: the old networks go on."""
    stages = "training.stages=[{until: 5, set: {method.posterior_chain.steps: 0}}]"
    config = resolve("digits/paper", settings_of(*CHAINS, *ENCODER, stages))
    check_learning(config)
    assert [config.at(k).method.posterior_chain.steps for k in (0, 4, 5, 100)] == [0, 0, 4, 4]
    assert all(config.at(k).method.prior_chain.steps == 5 for k in (0, 5))


def test_the_papers_start_learns_nothing():
    start, e = Start(), normal(3, 2)
    draws = Draws(e, e, e)
    assert start(e) is e and start.networks() == {} == start.scalars(draws) and start.loss(draws, torch.neg) is None
    assert not list(start.phases(draws, torch.neg)) and start.resume(e, 0)[1].tolist() == [1, 1, 1]

"""Ways to draw z against exact answers: gradients by autograd, a linear-Gaussian model, a tilted density with a known constant."""

import copy
import math
import sys
from functools import partial

import pytest
import torch
from test_learn import LinearTilt, chain_law, log_normal, normal, rng
from torch import nn

from lebm.config import Chain, Chains, Encoder, Flow, Learning, check_learning, preset_names, resolve
from lebm.errors import ConfigError, DataError
from lebm.health import diverged, frozen
from lebm.learn import describe, learn_step, make_optimizer
from lebm.methods import Fresh, Persistent, Proposed, follow, imitate
from lebm.methods.encoder import HIGHEST, LOWEST, FlatNet, GaussianEncoder, ImageNet
from lebm.methods.flow import SplineFlow
from lebm.model import LatentEBM

zuko = pytest.importorskip("zuko")
TINY = ["nz=4", "prior.width=8", "generator.ngf=3", "encoder.width=2", "flow.width=8", "flow.layers=2", "draw.chains=20", "training.batch=10"]


def tiny(*settings):
    return LatentEBM(resolve("digits", [*TINY, "chains.prior.steps=5", "chains.posterior.steps=4", *settings])).double()


def images(n=10):
    return normal(n, 1, 8, 8).clamp(-1, 1)


def gradient(loss, net):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()), materialize_grads=True)])


# --- the objective --------------------------------------------------------------------------------------------------------


def test_the_encoder_descends_the_variational_bound():
    """Delta in phi: KL(q_phi(z|x) || p(z|x)) = E[log q_phi - log p(x, z)] + const, log Z and log p(x) being constants."""
    model, x, e = tiny("draw.posterior=amortised"), images(), normal(10, 4, seed=1)
    q = model.inference.q
    z, log_q = q.draw(e, x)
    expected = gradient((log_q - model.log_joint(x, z)).mean(), q)
    model.inference.learn(e, z.detach(), partial(model.posterior_score, x), x)
    got = torch.cat([p.grad.flatten() for p in q.parameters()])
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
    assert expected.norm() > 1e-2
    assert all(p.grad is None for net in (model.prior, model.generator) for p in net.parameters())


def test_an_encoder_alone_over_a_gaussian_prior_is_a_vae():
    """Both networks then move by the gradient of E[log p(x|z) + log N(z; 0, I) - log q(z|x)] at the reparametrised z, and by nothing else."""
    model, x = tiny("draw.posterior=amortised", "prior.kind=gaussian"), images()
    before, learning = copy.deepcopy(model), Learning(generator_rate=0, encoder_rate=0)
    learn_step(model, x, make_optimizer(model, learning), model.config.chains, learning, rng())
    noise = rng()
    before.prior.draw_base(10, noise)
    mean, log_std = before.inference.q(x)
    e = before.prior.draw_base(10, noise)
    z = mean + log_std.exp() * e
    bound = before.generator.log_prob(x, z) + log_normal(z) - (log_normal(e) - log_std.sum(1))
    (-bound.mean()).backward()
    for mine, its in ((model.inference.q, before.inference.q), (model.generator, before.generator)):
        for p, q in zip(mine.parameters(), its.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-10)
        assert sum(float(q.grad.square().sum()) for q in its.parameters()) > 1e-4
    assert not list(model.prior.parameters())


def test_the_flow_descends_its_divergence_from_the_prior():
    """Delta in psi: -KL(q_psi || p_alpha) is maximised, that is E[log q_psi - f - log N] descended; alpha is left alone."""
    model, e = tiny("draw.prior=flow"), normal(10, 4, seed=1)
    q = model.synthesis.q
    z, log_q = q.draw(e)
    expected = gradient((log_q - model.prior.log_prob(z)).mean(), q)
    model.synthesis.learn(e, z.detach(), model.prior.score)
    torch.testing.assert_close(torch.cat([p.grad.flatten() for p in q.parameters()]), expected, rtol=1e-9, atol=1e-10)
    assert expected.norm() > 1e-2 and all(p.grad is None for p in model.prior.parameters())


@pytest.mark.parametrize("base", ["fitted", "mixture"])
def test_over_a_fitted_base_the_flow_lives_on_the_whitened_z(base):
    """It starts near N(m, S), moves along with it, and its lesson is the same divergence as a density of z."""
    model, e = tiny("draw.prior=flow", f"prior.base={base}", "prior.parts=3"), normal(4000, 4, seed=1)
    mix = normal(4, 4, seed=2)
    with torch.no_grad():
        model.prior.mean.copy_(torch.arange(4.0))
        root = torch.linalg.cholesky(mix @ mix.T + torch.eye(4))
        model.prior.root.copy_(root)
        model.prior.inverse.copy_(torch.linalg.inv(root))
    q = model.synthesis.q
    plain = q.draw(e)[0]
    torch.testing.assert_close(model.start_prior(e), torch.arange(4.0) + plain @ root.T, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model.sample_z(5).__next__(), model.sample_z(5, by="flow").__next__())
    u, log_q = q.draw(e[:10])
    z = torch.arange(4.0) + u @ root.T
    expected = gradient((log_q - model.prior.log_prob(z)).mean(), q)
    model.learn_synthesis(e[:10], z.detach())
    torch.testing.assert_close(torch.cat([p.grad.flatten() for p in q.parameters()]), expected, rtol=1e-8, atol=1e-9)
    assert expected.norm() > 1e-2


def test_gradients_lie_in_memory_as_their_parameters_do():
    model, x = tiny("draw.posterior=warm", "generator.size=16", "generator.widths=[2, 1]"), normal(10, 1, 16, 16)
    model.inference.to(memory_format=torch.channels_last)
    model.inference.learn(normal(10, 4), normal(10, 4), None, x)
    assert all(p.grad.stride() == p.stride() for p in model.inference.parameters())
    assert any(not p.is_contiguous() for p in model.inference.parameters())


@pytest.mark.parametrize("settings", [["draw.posterior=warm"], ["draw.prior=warm"], ["draw.posterior=warm", "draw.prior=warm"]])
def test_a_warm_network_learns_the_likelihood_of_the_refined_z(settings):
    model, x = tiny(*settings), images()
    before, learning = copy.deepcopy(model), Learning(prior_rate=0, generator_rate=0, encoder_rate=0, flow_rate=0)
    step = learn_step(model, x, make_optimizer(model, learning), model.config.chains, learning, rng())
    for way, old, z, given in ((model.inference, before.inference, step.z_pos, x), (model.synthesis, before.synthesis, step.z_neg, None)):
        if isinstance(way, Proposed):
            expected = gradient(-old.q.log_prob(z, given).mean(), old.q)
            torch.testing.assert_close(torch.cat([p.grad.flatten() for p in way.q.parameters()]), expected, rtol=1e-9, atol=1e-12)
            assert expected.norm() > 1e-2
    assert {k for k, net in model.networks().items() if k not in ("prior", "generator")} == {
        name for name, key in (("encoder", "draw.posterior=warm"), ("flow", "draw.prior=warm")) if key in settings
    }


def test_an_encoder_that_follows_keeps_to_the_bound_of_its_chain():
    """Every row's score is longer than this bound at s = 0.1, so each counts in the lesson with that length and its own direction."""
    bound = 1e-3
    model, x = tiny("draw.posterior=warm", "encoder.teach=follow", f"chains.posterior.bound={bound}"), images()
    before, learning = copy.deepcopy(model), Learning(prior_rate=0, generator_rate=0, encoder_rate=0)
    learn_step(model, x, make_optimizer(model, learning), model.config.chains, learning, rng())
    noise = rng()
    before.prior.draw_base(10, noise)
    z, log_q = before.inference.q.draw(before.prior.draw_base(10, noise), x)
    score = before.posterior_score(x, z.detach())
    size = 0.005 * score.square().mean(1, keepdim=True).sqrt()
    assert size.min() > bound
    expected = gradient((log_q - (score * bound / size * z).sum(1)).mean(), before.inference.q)
    got = torch.cat([p.grad.flatten() for p in model.inference.q.parameters()])
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)


def test_alpha_and_beta_learn_from_the_same_samples_whatever_drew_them():
    model, x = tiny("draw.posterior=amortised", "draw.prior=flow"), images()
    before, learning = copy.deepcopy(model), Learning(prior_rate=0, generator_rate=0, encoder_rate=0, flow_rate=0)
    step = learn_step(model, x, make_optimizer(model, learning), model.config.chains, learning, rng())
    noise = rng()
    e_neg, e_pos = before.prior.draw_base(10, noise), before.prior.draw_base(10, noise)
    torch.testing.assert_close(step.z_neg, before.synthesis.q.draw(e_neg)[0].detach())
    torch.testing.assert_close(step.z_pos, before.inference.q.draw(e_pos, x)[0].detach())
    loss = before.prior.f(step.z_neg).mean() - before.prior.f(step.z_pos).mean() - before.generator.log_prob(x, step.z_pos).mean()
    for name in ("prior", "generator"):
        got = torch.cat([p.grad.flatten() for p in model.networks()[name].parameters()])
        expected = [g.flatten() for g in torch.autograd.grad(loss, list(before.networks()[name].parameters()), retain_graph=True)]
        torch.testing.assert_close(got, torch.cat(expected), rtol=1e-9, atol=1e-10)


# --- a linear-Gaussian model ------------------------------------------------------------------------------------------------


class Linear(nn.Module):
    """x = W z + b + sigma e. On the prior N(alpha, I): x ~ N(W alpha + b, W W' + sigma^2 I)."""

    def __init__(self, w, b, sigma):
        super().__init__()
        self.w, self.b, self.sigma, self.shape = nn.Parameter(w.clone()), nn.Parameter(b.clone()), sigma, (len(w),)

    def decode(self, z):
        return z @ self.w.t() + self.b

    def log_prob(self, x, z):
        return log_normal((x - self.decode(z)) / self.sigma) - x.shape[-1] * math.log(self.sigma)

    def score(self, x, z):
        return (x - self.decode(z)) @ self.w / self.sigma**2


SIGMA = 0.5
W = torch.tensor([[1.2, 0.3], [0.9, -0.6], [-0.4, 0.5], [0.6, 0.2]], dtype=torch.float64)  # columns with w1.w2 = 0.36 - 0.54 - 0.2 + 0.12
W = torch.stack([W[:, 0], W[:, 1] - (W[:, 0] @ W[:, 1]) / (W[:, 0] @ W[:, 0]) * W[:, 0]], 1)  # made orthogonal


def linear_model(w, b, *settings):
    config = resolve("digits", ["nz=2", "encoder.depth=0", "chains.prior.steps=40", *settings])
    model = LatentEBM(config, Linear(w, b, SIGMA)).double()
    model.prior = LinearTilt(2)
    return model


def posterior(model, x):
    """Mean and covariance of p(z|x), exact."""
    w, b, alpha = model.generator.w.detach(), model.generator.b.detach(), model.prior.alpha.detach()
    cov = torch.linalg.inv(torch.eye(2) + w.t() @ w / SIGMA**2)
    return ((x - b) @ w / SIGMA**2 + alpha) @ cov, cov


def encoder_divergence(model, x):
    """KL(q_phi(z|x) || p(z|x)), exact, averaged over the rows."""
    with torch.no_grad():
        (mean, log_std), (m, cov) = model.inference.q(x), posterior(model, x)
    precision, var = torch.linalg.inv(cov), log_std.exp().square()
    quadratic = ((mean - m) @ precision * (mean - m)).sum(1)
    return 0.5 * ((var @ precision.diag()) - 2 + quadratic + torch.logdet(cov) - 2 * log_std.sum(1)).mean().item()


def likelihood(x, mean, cov):
    return torch.distributions.MultivariateNormal(mean, cov).log_prob(x).mean().item()


def test_amortised_learning_finds_the_maximum_likelihood_and_the_exact_posterior():
    """The maximum likelihood estimate of probabilistic PCA with known sigma: the sample mean, and W W' = U (L - sigma^2) U' of the two
    largest eigenvalues of the sample covariance. A diagonal q loses nothing, for it turns W until its columns are orthogonal.

    Tolerances: true parameters would lie d/(2n) nats below the maximum on average (d = 4 + 8 - 1 free numbers), so a fifth
    of that is close; means and covariances within a third of their standard errors."""
    n = 400
    x = normal(n, 2, seed=2) @ W.t() + torch.tensor([0.5, -1, 0, 2]) + SIGMA * normal(n, 4, seed=3)
    centred = x - x.mean(0)
    values, vectors = torch.linalg.eigh(centred.t() @ centred / n)
    best = vectors[:, 2:] @ torch.diag(values[2:] - SIGMA**2) @ vectors[:, 2:].t()
    model = linear_model(normal(4, 2, seed=4), torch.zeros(4, dtype=torch.float64), "draw.posterior=amortised")
    learning, generator = Learning(prior_rate=0.02, generator_rate=0.02, encoder_rate=0.02, betas=(0.9, 0.99)), rng(1)
    optimizer, chains, rounds = make_optimizer(model, learning), Chains(Chain(40, 0.6), Chain(0, 0.1)), 900
    for k in range(rounds):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * (1 - k / rounds)
        learn_step(model, x, optimizer, chains, learning, generator)
    w, mean = model.generator.w.detach(), (model.generator.decode(model.prior.alpha[None])[0]).detach()
    gap = likelihood(x, x.mean(0), best + SIGMA**2 * torch.eye(4)) - likelihood(x, mean, w @ w.t() + SIGMA**2 * torch.eye(4))
    assert 0 <= gap < (4 + 8 - 1) / (2 * n) / 5
    cov = best + SIGMA**2 * torch.eye(4)
    assert ((mean - x.mean(0)).abs() < (cov.diag() / n).sqrt() / 3).all()
    assert ((w @ w.t() - best).abs() < ((torch.outer(cov.diag(), cov.diag()) + cov**2) / n).sqrt() / 3).all()
    assert abs(w[:, 0] @ w[:, 1]) < 0.05 * w.square().sum()
    assert encoder_divergence(model, x) < 0.01


def test_warm_draws_are_the_network_without_steps_and_the_long_chain_with_many():
    """After K steps from any start the chain on N(m, 1/q) has mean m + a^K (start - m) and the variance of test_sampler; at K s^2 q >= 16
    nothing of the start is left. The columns of W are orthogonal, so coordinates are independent."""
    n, chain = 20_000, Chain(110, 0.2)
    model = linear_model(
        W, torch.zeros(4, dtype=torch.float64), "draw.posterior=warm", f"chains.posterior.steps={chain.steps}", "chains.posterior.step_size=0.2"
    )
    with torch.no_grad():
        model.inference.q.net.layers[-1].bias += torch.tensor([1.0, -1.0, 0.5, 0.5])  # far from the posterior
    x = torch.tensor([[0.3, -0.2, 0.5, 1.0]], dtype=torch.float64).expand(n, -1)
    draw = partial(model.infer, x, seed=3, shared_noise=False)
    assert torch.equal(draw(by="warm", steps=0), draw(by="amortised"))
    mean, log_std = (t.detach()[0] for t in model.inference.q(x[:1]))
    alone = draw(by="amortised")
    assert ((alone.mean(0) - mean).abs() < 5 * log_std.exp() / math.sqrt(n)).all()
    assert ((alone.var(0) / log_std.exp().square() - 1).abs() < 5 * math.sqrt(2 / n)).all()
    m, cov = posterior(model, x[:1])
    for by in ("warm", "langevin"):
        z = draw(by=by)
        for i in range(2):
            precision = 1 / cov[i, i].item()
            assert chain.steps * chain.step_size**2 * precision >= 16
            variance = chain_law(precision, chain)[1]
            assert abs(z[:, i].mean() - m[0, i]) < 5 * math.sqrt(variance / n)
            assert abs(z[:, i].var() / variance - 1) < 5 * math.sqrt(2 / n)
    assert (alone.mean(0) - m).abs().max() > 0.5  # the test could fail


# --- a flow on a known density ----------------------------------------------------------------------------------------------


class TwoHills(nn.Module):
    """f(z) = log cosh(2 z_1) - 2 tilts N(0, I) to the mixture of N((2, 0), I) and N((-2, 0), I), with Z = 1."""

    def log_prob(self, z):
        return torch.logaddexp(2 * z[:, 0], -2 * z[:, 0]) - math.log(2) - 2 + log_normal(z)

    def score(self, z):
        return torch.stack([2 * torch.tanh(2 * z[:, 0]), torch.zeros_like(z[:, 0])], 1) - z

    def draw(self, n, seed):
        sign = torch.randint(0, 2, (n,), generator=rng(seed)) * 2 - 1
        return normal(n, 2, seed=seed + 1) + torch.stack([2.0 * sign, torch.zeros(n)], 1)


@pytest.mark.parametrize("teach", [follow, imitate])
def test_a_flow_learns_a_tilted_density(teach):
    """KL below 0.02 nats beyond five standard errors of its estimate, where N(0, I) is at more than 1 and one hill alone at log 2."""
    hills, n = TwoHills(), 20_000
    torch.manual_seed(0)
    way = Proposed(SplineFlow(2, Flow(layers=2, width=24)), teach).double()
    optimizer, rounds = torch.optim.Adam(way.parameters()), 120 if teach is follow else 300
    for k in range(rounds):
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - k / rounds)
        e = normal(250, 2, seed=k)
        way.learn(e, hills.draw(250, 2 * k) if teach is imitate else e, hills.score)
        optimizer.step()
    with torch.no_grad():
        if teach is follow:
            z, log_q = way.q.draw(normal(n, 2, seed=9999))
            terms = log_q - hills.log_prob(z)
        else:
            z = hills.draw(n, 8888)
            terms = hills.log_prob(z) - way.q.log_prob(z)
        start = normal(n, 2)
        assert (log_normal(start) - hills.log_prob(start)).mean() > 0.5 if teach is follow else True
    print(f"KL {terms.mean():.4f}")
    assert terms.mean() < 0.02 + 5 * terms.std() / math.sqrt(n)
    assert terms.mean() > -5 * terms.std() / math.sqrt(n)  # a divergence: log_prob is normalised
    assert abs((z[:, 0] > 0).double().mean() - 0.5) < 0.05


@pytest.mark.parametrize("nz", [1, 2, 7])
def test_flow_density_is_that_of_its_draws(nz):
    torch.manual_seed(1)
    flow = SplineFlow(nz, Flow(layers=2, width=8)).double()
    with torch.no_grad():
        flow.shift += 0.7
        flow.log_scale += 0.4
    e = normal(6, nz)
    z, log_q = flow.draw(e)
    torch.testing.assert_close(flow.log_prob(z), log_q, rtol=1e-9, atol=1e-9)
    for i in range(6):  # the change of variables, by autograd
        jacobian = torch.autograd.functional.jacobian(lambda v: flow.draw(v[None])[0][0], e[i])
        assert log_q[i].item() == pytest.approx((log_normal(e[i]) - torch.linalg.slogdet(jacobian)[1]).item(), abs=1e-8)


def test_a_flow_without_zuko_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zuko", None)
    with pytest.raises(ConfigError, match=r"pip install 'lebm\[flow\]'"):
        tiny("draw.prior=flow")
    tiny("draw.prior=persistent", "draw.posterior=warm")  # needs none


# --- encoders ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", [p for p in preset_names() if resolve(p).generator.kind == "image"])
def test_an_image_encoder_mirrors_every_generator(preset):
    config = resolve(preset, ["generator.ngf=1", "encoder.width=1", "generator.channels=1"])
    q = GaussianEncoder(ImageNet(config), config.nz)
    g = config.generator
    mean, log_std = q(torch.zeros(2, 1, g.size, g.size))
    assert mean.shape == log_std.shape == (2, config.nz)
    assert len(q.net.layers) == len(LatentEBM(config).generator.convolutions()) - 1 + (g.base == 8)
    assert q.net.head.in_features < 64 * q.net.layers[-1].out_channels  # a map below 8x8


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


def test_own_generators_and_encoders():
    config = resolve("digits", ["nz=2", "draw.posterior=warm"])

    class Bare(Linear):
        def __init__(self):
            super().__init__(W, W[:, 0], 1.0)
            del self.shape

    with pytest.raises(ConfigError, match="`shape`.*make_encoder"):
        LatentEBM(config, Bare())

    class WithItsOwn(Bare):
        def make_encoder(self, nz):
            return nn.Linear(4, 2 * nz)

    model = LatentEBM(config, WithItsOwn()).double()
    assert isinstance(model.inference.q.net, nn.Linear) and model.infer(normal(3, 4)).shape == (3, 2)
    assert Encoder().teach == "imitate"


# --- persistent chains ------------------------------------------------------------------------------------------------------


def test_persistent_chains_go_on_where_they_were():
    way, nothing = Persistent(chains=6, nz=2, refresh=0).double(), None
    e, ends = normal(4, 2), [normal(4, 2, seed=10 + i) for i in range(4)]
    assert torch.equal(way.start(e), e)  # the first lap starts from noise
    way.learn(e, ends[0], nothing)  # chains 0..3
    assert torch.equal(way.start(e)[:2], e[:2]) and torch.equal(way.start(e)[2:], ends[0][:2])  # chains 4, 5, then 0, 1
    way.learn(e, ends[1], nothing)
    assert torch.equal(way.start(e), torch.cat([ends[0][2:], ends[1][:2]]))  # chains 2, 3, 4, 5
    assert way.filled() == 6 and int(way.rows) == 8


def test_persistent_chains_start_anew_at_the_asked_rate():
    way, e, new = Persistent(chains=40, nz=1, refresh=0.25), torch.full((10, 1), 7.0), []
    for _ in range(4 * 12):
        start = way.start(e)
        new.append((start == 7).flatten())
        way.learn(e, torch.zeros(10, 1), None)
    laps = torch.stack(new).view(12, 40)
    assert laps[0].all() and laps[1:9].sum(0).eq(2).all()  # every chain twice in eight laps, and never all at once
    assert (laps[1:].sum(1) == 10).all()


def test_samples_go_on_from_kept_chains_and_more_than_there_are_run_longer():
    """A chain's end says how often it went on: a walk here adds 1000 to the number of its chain."""
    model = tiny("draw.prior=persistent", "draw.chains=30", "chains.prior.steps=2")
    assert model.drawing("prior").protocol(100)["z"] == "a chain from N(0, I)"  # no chain yet
    assert model.sample(3).shape == (3, 1, 8, 8)
    with torch.no_grad():
        model.synthesis.z.copy_(torch.arange(30.0).double()[:, None].expand(-1, 4))
        model.synthesis.rows += 30
    assert not torch.equal(next(model.sample_z(3, by="langevin")), next(model.sample_z(3)))
    steps = []
    model.prior.walk = lambda z, chain, rng: (steps.append(chain.steps), z + 1000)[1]
    z = torch.cat(list(model.sample_z(1100)))
    at = torch.arange(1100).double()
    assert torch.equal(z[:, 0], at % 30 + 1000 * (1 + at // 30))
    assert set(steps) == {2}
    assert model.drawing("prior").protocol(30)["chain_steps"] == 2
    assert model.drawing("prior").protocol(1100)["chain_steps"] == [2, 2 * 37]
    assert torch.equal(next(model.sample_z(30, steps=0))[:, 0] % 1000, at[:30])
    with pytest.raises(DataError, match="31 samples were asked for, but without steps there are only the kept chains"):
        next(model.sample_z(31, steps=0))


# --- choosing ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind", "by", "steps", "words"),
    [
        ([], "posterior", "warm", None, "has no encoder; draw by langevin"),
        ([], "prior", "flow", None, "has no flow"),
        (["draw.prior=flow"], "prior", "persistent", 3, "has no kept chains; draw by flow or langevin"),
        ([], "posterior", "flow", None, "there are langevin, amortised, warm"),
        (["draw.posterior=amortised"], "posterior", None, 5, "amortised draws have no chain, but 5 steps"),
        (["draw.posterior=amortised"], "posterior", "langevin", None, "say how many steps a draw by langevin"),
        (["draw.posterior=warm"], "posterior", None, -1, "is -1; it must not be negative"),
    ],
)
def test_a_way_that_cannot_be_is_said_in_words(settings, kind, by, steps, words):
    with pytest.raises(DataError, match=words):
        tiny(*settings).drawing(kind, by, steps)


def test_every_way_says_what_it_is():
    model = tiny("draw.posterior=warm", "draw.prior=warm")
    assert model.drawing("posterior").protocol() == {"by": "warm", "z": "a chain from the encoder's proposal", "chain_steps": 4}
    assert model.drawing("posterior", "amortised").chain.steps == 0
    assert model.drawing("prior", "langevin", 9).protocol() == {"by": "langevin", "z": "a chain from N(0, I)", "chain_steps": 9}
    assert type(model.drawing("prior", "langevin").way) is Fresh
    x = images()
    assert not torch.equal(model.infer(x), model.infer(x, by="langevin"))
    for call in (model.infer, model.reconstruct, model.anomaly_score):
        torch.testing.assert_close(call(x, by="warm"), call(x), rtol=0, atol=0)
        torch.testing.assert_close(call(x)[2:3], call(x[2:3]), rtol=1e-9, atol=1e-9)  # a row does not depend on its neighbours
    torch.testing.assert_close(
        model.sample(7, by="flow"), model.sample(9, by="flow")[:7], rtol=0, atol=1e-12
    )  # products of 7 and of 9 rows may round apart


def test_configs_that_cannot_be():
    for settings, words in (
        (["prior.kind=gaussian", "draw.prior=flow"], "draw.prior is 'flow'; it must be langevin"),
        (["draw.prior=persistent", "draw.chains=9"], "draw.chains is 9; it must be at least training.batch"),
        (["draw.posterior=warm", "prior.base=fitted"], "encoder.teach is 'imitate'; it must be follow"),
        (["draw.refresh=0.7"], "draw.refresh"),
        (["draw.refresh=1e-20"], "draw.refresh"),
        (["draw.prior=persistent", "chains.prior.steps=0"], "chains.prior.steps"),
        (["draw.prior=warm", "chains.prior.steps=0"], "chains.prior.steps"),
        (["draw.posterior=warm", "chains.posterior.steps=0"], "chains.posterior.steps"),
        (["chains.posterior.steps=0"], "chains.posterior.steps is 0; it must be above 0 where draw.posterior is langevin"),
        (["chains.prior.steps=0"], "chains.prior.steps is 0; it must be above 0 where prior.kind is energy"),
        (["draw.posterior=amortised", "draw.alone=5"], "draw.alone is 5; it must be 0 where draw.posterior is amortised"),
        (["draw.posterior=warm", "draw.alone=5"], "encoder.teach is 'imitate'; it must be follow where draw.alone is above 0"),
        (["draw.alone=-1"], "draw.alone is -1"),
        (["draw.posterior=cold"], "must be one of langevin, amortised, warm"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_learning(resolve("digits", [*TINY, *settings]))
    config = resolve("digits", ["draw.posterior=amortised", "draw.prior=flow"])
    check_learning(config)
    assert (config.chains.posterior.steps, config.chains.prior.steps) == (0, 0)
    for way in ("draw.posterior=langevin", "draw.posterior=warm", "draw.prior=langevin"):  # as a saved run is changed, whose chains have no steps
        with pytest.raises(ConfigError, match=r"steps is 0; it must be above 0"):
            check_learning(resolve(config.to_dict(), [way]))


# --- the guard --------------------------------------------------------------------------------------------------------------


NETWORKS = resolve("digits", ["draw.posterior=amortised", "draw.prior=flow"])


def row(**values):
    model = tiny("draw.posterior=amortised", "draw.prior=flow")
    x, learning = images(), model.config.learning
    step = learn_step(model, x, make_optimizer(model, learning), model.config.chains, learning, rng())
    return {"step": 1000, **describe(step, model, x), **values}


def test_the_log_shows_the_networks_and_a_healthy_run_has_no_warnings():
    seen = row(q_spread_pos=0.5)
    assert {"log_q_pos", "q_spread_pos", "q_std_pos", "log_q_neg", "q_spread_neg", "grad_encoder", "grad_flow"} <= set(seen)
    assert diverged(seen, NETWORKS) is None
    assert list(frozen(seen, Chains(Chain(0, 0.4), Chain(0, 0.1)), 10)) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"q_spread_pos": 0.001}, "the encoder has collapsed"),
        ({"q_spread_pos": 0.07, "q_std_pos": 1.0}, "the encoder has collapsed"),
        ({"q_spread_pos": 0.5, "q_spread_neg": 0.05}, "the flow has collapsed"),
    ],
)
def test_a_collapsed_network_is_reported_in_words(values, words):
    (said,) = frozen(row(**values), Chains(Chain(0, 0.4), Chain(0, 0.1)), 10)
    assert said.startswith(words)
    early = {**row(**values), "step": 10}
    assert list(frozen(early, Chains(Chain(0, 0.4), Chain(0, 0.1)), 10)) == []  # networks start near N(0, I)


def test_of_a_text_the_likelihood_says_whether_z_is_used():
    """Its encoder may spread its means little at first, and still tell a good part of every sentence."""
    assert list(frozen(row(q_spread_pos=0.06, q_std_pos=0.65, z_share=0.4), Chains(Chain(0, 0.4), Chain(0, 0.1)), 10)) == []


def test_a_chain_that_leaves_its_encoder_is_reported():
    chains = Chains(Chain(0, 0.4), Chain(15, 0.1))
    away = row(q_spread_pos=0.5, q_std_pos=0.06, disp_pos=0.24)
    (said,) = frozen(away, chains, 10)
    assert said.startswith("the posterior chain does not stay with the encoder: it moves by 0.24") and "chains.posterior.step_size" in said
    assert list(frozen({**away, "disp_pos": 0.12}, chains, 10)) == list(frozen({**away, "step": 10}, chains, 10)) == []


@pytest.mark.parametrize(
    ("values", "advice"), [({"log_q_neg": -1e9}, "flow_rate"), ({"grad_flow": math.inf}, "flow_rate"), ({"log_q_pos": math.nan}, "encoder_rate")]
)
def test_a_runaway_network_stops_the_run_with_advice(values, advice):
    assert f"learning.{advice}" in diverged(row(**values), NETWORKS)

"""What a person calls: the verbs of a method, against the definitions written out."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import lebm.latent_ebm
import lebm.method
from lebm.core.errors import ConfigError, DataError, NotDefined
from lebm.core.rng import stream
from lebm.generators import ImageGenerator, WrappedGenerator, as_generator
from lebm.latent_ebm import LatentEBM
from lebm.method import Method
from lebm.prior import EnergyNetwork, EnergyPrior, StandardNormal
from lebm.sampler import Chain, SamplerSpec


def image_generator():
    return ImageGenerator(4, size=8, channels=1, ngf=3, widths=(4,), sigma=0.2)


def built(generator=None):
    """From parts, with chains of 7 and 6 steps."""
    prior = EnergyPrior(StandardNormal(4), EnergyNetwork(4, 8))
    return LatentEBM(prior, generator or image_generator(), Chain(7, 0.4), Chain(6, 0.05))


def images(n, seed=0):
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


@pytest.fixture
def model():
    return built().double()


class Plain(nn.Module):
    """A user's generator: log_prob and decode, nothing else."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def decode(self, z):
        return self.inner.decode(z)

    def log_prob(self, x, z):
        return self.inner.log_prob(x, z)


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_log_joint_is_prior_plus_likelihood(model):
    x, z = images(5), torch.randn(5, 4, dtype=torch.float64)
    normal = torch.distributions.Normal
    log_px = normal(model.generator.decode(z), 0.2).log_prob(x).flatten(1).sum(1)
    close(model.log_joint(x, z), model.prior.f(z) + normal(0.0, 1.0).log_prob(z).sum(1) + log_px)
    close(model.log_joint(x, z), model.prior.log_prob(z) + model.generator.log_prob(x, z), 0)


def test_posterior_score_is_the_gradient_of_log_joint(model):
    x, z = images(5), torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    close(model.posterior_score(x, z), torch.autograd.grad(model.log_joint(x, z).sum(), z)[0], 1e-10)


def test_a_plain_module_gets_its_score_by_autograd(model):
    other = built(Plain(image_generator())).double()
    other.prior.load_state_dict(model.prior.state_dict())
    other.generator.module.inner.load_state_dict(model.generator.state_dict())
    x, z = images(5), torch.randn(5, 4, dtype=torch.float64)
    with torch.no_grad():  # as inside a chain
        score = other.posterior_score(x, z)
    assert not score.requires_grad
    close(score, model.posterior_score(x, z), 1e-10)
    close(other.encode(x), model.encode(x), 1e-10)
    close(other.anomaly_score(x), model.anomaly_score(x), 1e-10)


@pytest.mark.parametrize("missing", ["log_prob", "decode"])
def test_a_generator_needs_log_prob_and_decode(missing):
    methods = {name: lambda self, *args: None for name in ("log_prob", "decode") if name != missing}
    with pytest.raises(ConfigError, match=f"generator Odd has no method {missing}"):
        built(type("Odd", (nn.Module,), methods)())


@pytest.mark.parametrize(
    ("decode", "what"),
    [
        (lambda self, z: torch.zeros(3, 5), r"shape \(3, 5\) for 2 rows"),
        (lambda self, z: torch.zeros(()), r"shape \(\)"),
        (lambda self, z: z.numpy(), "ndarray"),
    ],
)
def test_a_decoder_must_give_a_row_for_each_z(decode, what):
    module = type("Odd", (nn.Module,), {"decode": decode, "log_prob": lambda self, x, z: z.sum(1)})()
    with pytest.raises(ConfigError, match=f"decode of Odd .*{what}"):
        as_generator(module, 4)


@pytest.mark.parametrize(
    ("log_prob", "what"),
    [
        (lambda self, x, z: z, r"shape \(5, 4\)"),
        (lambda self, x, z: z.sum(), r"shape \(\)"),
        (lambda self, x, z: z.sum(1, keepdim=True), r"shape \(5, 1\)"),
        (lambda self, x, z: 0.0, "float"),
    ],
)
def test_a_log_prob_must_be_one_number_a_row(log_prob, what):
    module = type("Odd", (nn.Module,), {"decode": lambda self, z: z, "log_prob": log_prob})()
    with pytest.raises(ConfigError, match=rf"log_prob of Odd .*{what} .* of shape \(5,\)"):
        built(module).encode(np.zeros((5, 4), np.float32))


def test_a_generator_is_wrapped_once_and_a_generator_never(model):
    wrapped = as_generator(Plain(image_generator()), 4)
    assert isinstance(wrapped, WrappedGenerator) and as_generator(wrapped, 4) is wrapped
    assert as_generator(model.generator, 4) is model.generator
    assert wrapped.modality == "other" and not wrapped.autoregressive and wrapped.facts() == {}
    assert wrapped.error(images(2), torch.zeros(2, 4)) is None and wrapped.flops(2) is None
    assert wrapped.scalars(images(2), torch.zeros(2, 4)) == {} and wrapped.draw_masks(images(2), stream(1, "x")) == ()


# --- sample -----------------------------------------------------------------------------------------------------------


def test_sample_is_the_chain_written_out(model):
    rng, s = stream(3, "sample/0"), 0.4
    z = torch.randn(500, 4, generator=rng, dtype=torch.float64)
    for _ in range(7):
        z = z + s * s / 2 * model.prior.score(z) + s * torch.randn(500, 4, generator=rng, dtype=torch.float64)
    close(torch.cat(list(model.sample_z(500, seed=3))), z)
    close(model.sample(2, seed=3), model.generator.decode(z[:2]))


@pytest.mark.parametrize("n", [1, 499, 500, 501, 1003])
def test_the_first_samples_of_a_seed_are_always_the_same(model, n):
    many = torch.cat(list(model.sample_z(1100, seed=1)))
    z = torch.cat(list(model.sample_z(n, seed=1)))
    assert torch.equal(z, many[:n])
    assert len(many.unique(dim=0)) == 1100  # no chunk repeats another
    close(
        model.sample(n, seed=1), model.generator.decode(many[:n])
    )  # decode in one piece: another batch, other rounding


def test_decode_does_not_depend_on_its_batch(model):
    z = torch.randn(23, 4, dtype=torch.float64)
    for batch in (1, 5, 23, 100):
        close(model.decode(z, batch=batch), model.generator.decode(z).detach())


def test_sample_without_steps_is_the_standard_normal_through_the_generator(model):
    spec = model.choose("prior", steps=0)
    z = torch.cat(list(model.sample_z(20_000, 5, spec)))
    close(model.sample(600, 5, spec), model.generator.decode(z[:600]))
    # 80,000 values: 5 standard errors of the mean (1/sqrt(n)) and of the variance (sqrt(2/n))
    assert abs(z.mean().item()) < 5 / math.sqrt(z.numel())
    assert abs(z.var().item() - 1) < 5 * math.sqrt(2 / z.numel())


def test_progress_counts_to_the_end(model):
    calls = []
    model.sample(1003, progress=lambda *a: calls.append(a))
    model.encode(images(501), progress=lambda *a: calls.append(a))
    assert calls == [(500, 1003), (1000, 1003), (1003, 1003), (500, 501), (501, 501)]
    calls.clear()
    model.anomaly_score(images(501), progress=lambda *a: calls.append(a))
    assert calls == [(500, 501), (501, 501)]


# --- infer, reconstruct, score ----------------------------------------------------------------------------------------


def test_encode_is_the_posterior_chain_written_out(model):
    """Every row has the same start and the same noise; the gradient comes from autograd here."""
    x, rng, s = images(5), stream(3, "infer"), 0.05
    z = torch.randn(1, 4, generator=rng, dtype=torch.float64).expand(5, -1)
    for _ in range(6):
        leaf = z.detach().requires_grad_()
        gradient = torch.autograd.grad(model.log_joint(x, leaf).sum(), leaf)[0]
        z = z + s * s / 2 * gradient + s * torch.randn(1, 4, generator=rng, dtype=torch.float64)
    close(model.encode(x, seed=3), z, 1e-10)
    close(model.reconstruct(x, seed=3), model.generator.decode(z), 1e-10)


def test_score_is_minus_log_joint_at_the_inferred_z(model):
    x = images(5)
    spec = model.choose("posterior", steps=9)
    score = model.anomaly_score(x, 2, spec)
    close(score, -model.log_joint(x, model.encode(x, 2, spec)))
    assert torch.equal(score, model.anomaly_score(x, 2, spec))
    assert not torch.equal(score, model.anomaly_score(x, 3, spec))
    assert not torch.equal(score, model.anomaly_score(x, 2))
    z = model.encode(x)
    close(model.nll(x, z), -model.generator.log_prob(x, z))


def test_a_rows_score_does_not_depend_on_its_neighbours(model, monkeypatch):
    x = images(7)
    together, z = model.anomaly_score(x), model.encode(x)
    for i in range(7):
        close(model.anomaly_score(x[i : i + 1]), together[i : i + 1])
        close(model.encode(x[i : i + 1]), z[i : i + 1])
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    close(model.anomaly_score(x[order]), together[order])
    for module in (lebm.method, lebm.latent_ebm):
        monkeypatch.setattr(module, "CHUNK", 3)
    close(model.anomaly_score(x), together)


def test_without_shared_noise_equal_rows_get_different_draws(model):
    x = images(1).expand(4, -1, -1, -1)
    assert len(model.encode(x).unique(dim=0)) == 1
    assert len(model.encode(x, shared_noise=False).unique(dim=0)) == 4
    few = model.encode(x[:3], shared_noise=False)  # each row has its noise, whatever number of rows follows
    close(few, model.encode(x, shared_noise=False)[:3])


def test_pixels_and_floats_score_alike():
    model = built()
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    floats = (pixels[:, None] / 127.5 - 1).astype(np.float32)
    torch.testing.assert_close(model.anomaly_score(pixels), model.anomaly_score(floats), rtol=1e-4, atol=1e-3)


BAD = {
    "list": ([[0.0]], "is a list"),
    "empty": (np.zeros((0, 1, 8, 8), np.float32), "no rows"),
    "shape": (np.zeros((2, 1, 8, 9), np.float32), r"shape \(2, 1, 8, 9\); this model takes \(n, 1, 8, 8\)"),
    "nan": (np.full((2, 1, 8, 8), np.nan), "image 0 contains NaN"),
    "range": (np.full((2, 1, 8, 8), 7.0), "from 7 to 7"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("verb", ["encode", "reconstruct", "anomaly_score"])
def test_wrong_inputs_are_told_apart(model, case, verb):
    x, message = BAD[case]
    with pytest.raises(DataError, match=message):
        getattr(model, verb)(x)


def test_nan_is_refused_for_a_generator_without_checks():
    with pytest.raises(DataError, match="NaN or infinity"):
        built(Plain(image_generator())).encode(np.full((2, 1, 8, 8), np.inf, np.float32))


@pytest.mark.parametrize("x", [np.array(0.5), torch.tensor(0.5)], ids=["array", "tensor"])
def test_a_single_number_is_refused(model, x):
    with pytest.raises(DataError):
        model.encode(x)


def test_impossible_counts_are_refused(model):
    for n in (0, -3):
        with pytest.raises(DataError, match=f"samples is {n}; it must be at least 1"):
            model.sample(n)
    for target in ("prior", "posterior"):
        with pytest.raises(DataError, match="steps is -1; it must not be negative"):
            model.choose(target, steps=-1)


def test_bytes_mean_the_same_to_a_users_generator_in_learning_and_inference():
    """Learning reads stored bytes as floats in [-1, 1], and so does inference."""

    class Line(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(5, 4))

        def decode(self, z):
            return z @ self.w.t()

        def log_prob(self, x, z):
            return -(x - self.decode(z)).square().sum(1)

    model, pixels = built(Line()), np.array([[0, 255, 0, 255, 51]], np.uint8)
    floats = torch.tensor([[-1.0, 1.0, -1.0, 1.0, -0.6]])
    torch.testing.assert_close(model.generator.as_input(pixels), floats)
    torch.testing.assert_close(model.generator.from_storage(torch.from_numpy(pixels)), floats)
    torch.testing.assert_close(model.anomaly_score(pixels), model.anomaly_score(pixels / np.float32(127.5) - 1))


# --- modes, defaults, engines -----------------------------------------------------------------------------------------


def test_verbs_run_in_evaluation_mode_and_put_the_mode_back(model):
    modes = []
    decode = model.generator.decode
    model.generator.decode = lambda z: (modes.append(model.generator.training), decode(z))[1]
    for training in (True, False):
        model.train(training)
        for call in (lambda: model.sample(2), lambda: model.reconstruct(images(2)), lambda: model.encode(images(2))):
            call()
            assert model.training is training
    assert modes and not any(modes)


class Constant(Method):
    """The least that a method can be: p(z) is a point, and x is read from z."""

    def __init__(self):
        super().__init__()
        self.generator = as_generator(Plain(image_generator()), 4)

    def infer(self, x, rng, spec=None, shared_noise=True):
        return torch.zeros(len(x), 4)


def test_a_method_has_defaults_and_says_what_it_does_not_define():
    method, x = Constant(), images(3).float()
    assert method.encode(x).shape == (3, 4) and method.reconstruct(x).shape == (3, 1, 8, 8)
    assert torch.equal(method.anomaly_score(x), method.nll(x, torch.zeros(3, 4)))
    assert method.samplers() == method.scalars() == method.coefficients() == {} and method.checks() == ()
    assert method.starts("prior") == () and method.finish(x) is None and method.observe() is None
    for verb, call in {
        "draw": lambda: method.sample(2),
        "infer": lambda: method.choose("posterior"),
        "networks": method.networks,
        "losses": lambda: method.losses(None, None),
        "log_prior": lambda: method.log_prior(x),
        "prior_score": lambda: method.prior_score(x),
    }.items():
        with pytest.raises(NotDefined) as error:
            call()
        assert (error.value.method, error.value.verb) == ("Constant", verb)


class Chainless(Constant):
    """Infers z by an encoder, as a VAE does: its sampler has no step size, and so no chain that could be longer."""

    def samplers(self):
        return {"posterior": SamplerSpec("posterior", "encoder")}


def test_a_method_without_a_chain_takes_no_steps():
    own = Chainless().samplers()["posterior"]
    assert Chainless().choose("posterior") == Chainless().choose("posterior", "encoder", 0) == own
    for start in (None, "encoder"):
        with pytest.raises(DataError, match="posterior without a chain; leave the steps out"):
            Chainless().choose("posterior", start, 50)


def test_an_installed_engine_draws_the_samples(model):
    class Engine:
        def sample(self, n, seed, spec, progress):
            return torch.full((n, 1, 8, 8), float(seed))

    reference = model.sample(2)
    model.engine = Engine()
    assert torch.equal(model.sample(3, 5), torch.full((3, 1, 8, 8), 5.0))
    model.engine = None
    assert torch.equal(model.sample(2), reference) and torch.equal(model.sample(2, on_device=True), reference)


def test_the_parts_are_the_papers_by_default():
    method = LatentEBM(EnergyPrior(StandardNormal(4), EnergyNetwork(4)), image_generator())
    assert (method.prior_chain, method.posterior_chain) == (Chain(60, 0.4), Chain(20, 0.1))
    assert [spec.start for spec in method.samplers().values()] == ["noise", "noise"]
    assert float(method.coefficients()["energy_l2"]) == 0 and method.config is None and method.updates is None
    assert list(method.networks()) == ["prior", "generator"] and method.device.type == "cpu"
    assert torch.equal(method.log_prior(torch.ones(2, 4)), method.prior.log_prob(torch.ones(2, 4)))
    assert torch.equal(method.prior_score(torch.ones(2, 4)), method.prior.score(torch.ones(2, 4)))

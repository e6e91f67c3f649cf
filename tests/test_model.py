"""LatentEBM: what a person calls, against the definitions written out."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lebm.model
from lebm.checkpoint import load_tensors
from lebm.config import Config, resolve
from lebm.errors import CheckpointError, ConfigError, DataError
from lebm.generators.image import ImageGenerator
from lebm.model import LatentEBM, export, load
from lebm.rng import stream

SETTINGS = [
    "nz=4",
    "prior.width=8",
    "generator.ngf=3",
    "generator.sigma=0.2",
    "chains.prior.steps=7",
    "chains.posterior.steps=6",
    "chains.posterior.step_size=0.05",
]
CONFIG = resolve("digits", SETTINGS)


def images(n, seed=0):
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


@pytest.fixture
def model():
    return LatentEBM(CONFIG).double()


class Plain(nn.Module):
    """A person's own generator: log_prob and decode, nothing else."""

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
    expected = model.prior.f(z) + normal(0.0, 1.0).log_prob(z).sum(1) + normal(model.generator.decode(z), 0.2).log_prob(x).flatten(1).sum(1)
    close(model.log_joint(x, z), expected)
    close(model.log_joint(x, z), model.prior.log_prob(z) + model.generator.log_prob(x, z), 0)


def test_posterior_score_is_the_gradient_of_log_joint(model):
    x, z = images(5), torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    close(model.posterior_score(x, z), torch.autograd.grad(model.log_joint(x, z).sum(), z)[0], 1e-10)


def test_a_generator_without_a_score_gets_it_by_autograd(model):
    own = LatentEBM(CONFIG, Plain(ImageGenerator(4, CONFIG.generator))).double()
    own.prior.load_state_dict(model.prior.state_dict())
    own.generator.inner.load_state_dict(model.generator.state_dict())
    x, z = images(5), torch.randn(5, 4, dtype=torch.float64)
    with torch.no_grad():  # as inside a chain
        score = own.posterior_score(x, z)
    assert not score.requires_grad
    close(score, model.posterior_score(x, z), 1e-10)
    close(own.infer(x), model.infer(x), 1e-10)
    close(own.anomaly_score(x), model.anomaly_score(x), 1e-10)


@pytest.mark.parametrize("missing", ["log_prob", "decode"])
def test_a_generator_needs_log_prob_and_decode(missing):
    methods = {name: lambda self, *args: None for name in ("log_prob", "decode") if name != missing}
    with pytest.raises(ConfigError, match=f"generator Odd has no method {missing}"):
        LatentEBM(CONFIG, type("Odd", (nn.Module,), methods)())


def test_weights_depend_on_the_seed_alone():
    state = torch.random.get_rng_state()
    one, other = LatentEBM(CONFIG).state_dict(), LatentEBM(CONFIG.with_values(seed=2)).state_dict()
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(99)
    again = LatentEBM(CONFIG).state_dict()
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert not any(torch.equal(one[k], other[k]) for k in one)


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
    close(model.sample(n, seed=1), model.generator.decode(many[:n]))  # decode in one piece: another batch, other rounding


def test_decode_does_not_depend_on_its_batch(model):
    z = torch.randn(23, 4, dtype=torch.float64)
    for batch in (1, 5, 23, 100):
        close(model.decode(z, batch=batch), model.generator.decode(z).detach())


def test_sample_without_steps_is_the_standard_normal_through_the_generator(model):
    z = torch.cat(list(model.sample_z(20_000, seed=5, steps=0)))
    close(model.sample(600, seed=5, steps=0), model.generator.decode(z[:600]))
    # 80,000 values: 5 standard errors of the mean (1/sqrt(n)) and of the variance (sqrt(2/n))
    assert abs(z.mean().item()) < 5 / math.sqrt(z.numel())
    assert abs(z.var().item() - 1) < 5 * math.sqrt(2 / z.numel())


def test_progress_counts_to_the_end(model):
    seen = []
    model.sample(1003, progress=lambda *a: seen.append(a))
    model.infer(images(501), progress=lambda *a: seen.append(a))
    assert seen == [(500, 1003), (1000, 1003), (1003, 1003), (500, 501), (501, 501)]


# --- infer, reconstruct, score ----------------------------------------------------------------------------------------


def test_infer_is_the_posterior_chain_written_out(model):
    """Every row has the same start and the same noise; the gradient comes from autograd here."""
    x, rng, s = images(5), stream(3, "infer"), 0.05
    z = torch.randn(1, 4, generator=rng, dtype=torch.float64).expand(5, -1)
    for _ in range(6):
        leaf = z.detach().requires_grad_()
        gradient = torch.autograd.grad(model.log_joint(x, leaf).sum(), leaf)[0]
        z = z + s * s / 2 * gradient + s * torch.randn(1, 4, generator=rng, dtype=torch.float64)
    close(model.infer(x, seed=3), z, 1e-10)
    close(model.reconstruct(x, seed=3), model.generator.decode(z), 1e-10)


def test_score_is_minus_log_joint_at_the_inferred_z(model):
    x = images(5)
    score = model.anomaly_score(x, seed=2, steps=9)
    close(score, -model.log_joint(x, model.infer(x, seed=2, steps=9)))
    assert torch.equal(score, model.anomaly_score(x, seed=2, steps=9))
    assert not torch.equal(score, model.anomaly_score(x, seed=3, steps=9))
    assert not torch.equal(score, model.anomaly_score(x, seed=2))


def test_a_rows_score_does_not_depend_on_its_neighbours(model, monkeypatch):
    x = images(7)
    together, z = model.anomaly_score(x), model.infer(x)
    for i in range(7):
        close(model.anomaly_score(x[i : i + 1]), together[i : i + 1])
        close(model.infer(x[i : i + 1]), z[i : i + 1])
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    close(model.anomaly_score(x[order]), together[order])
    monkeypatch.setattr(lebm.model, "CHUNK", 3)
    close(model.anomaly_score(x), together)


def test_without_shared_noise_equal_rows_get_different_draws(model):
    x = images(1).expand(4, -1, -1, -1)
    assert len(model.infer(x).unique(dim=0)) == 1
    assert len(model.infer(x, shared_noise=False).unique(dim=0)) == 4
    close(model.infer(x[:3], shared_noise=False), model.infer(x, shared_noise=False)[:3])  # noise of its own, but not of how many rows follow


def test_pixels_and_floats_score_alike():
    model = LatentEBM(CONFIG)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    floats = (pixels[:, None] / 127.5 - 1).astype(np.float32)
    torch.testing.assert_close(model.anomaly_score(pixels), model.anomaly_score(floats), rtol=1e-4, atol=1e-3)


BAD = {
    "list": ([[0.0]], "the input is a list; give a numpy array or a tensor"),
    "empty": (np.zeros((0, 1, 8, 8), np.float32), "the input has no rows"),
    "shape": (np.zeros((2, 1, 8, 9), np.float32), r"shape \(2, 1, 8, 9\); this model takes \(n, 1, 8, 8\)"),
    "nan": (np.full((2, 1, 8, 8), np.nan), "image 0 contains NaN"),
    "range": (np.full((2, 1, 8, 8), 7.0), "from 7 to 7"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("method", ["infer", "reconstruct", "anomaly_score"])
def test_wrong_inputs_are_told_apart(model, case, method):
    x, message = BAD[case]
    with pytest.raises(DataError, match=message):
        getattr(model, method)(x)


def test_nan_is_refused_for_a_generator_without_checks_of_its_own():
    own = LatentEBM(CONFIG, Plain(ImageGenerator(4, CONFIG.generator)))
    with pytest.raises(DataError, match="contains NaN or infinity"):
        own.infer(np.full((2, 1, 8, 8), np.inf, np.float32))


@pytest.mark.parametrize("x", [np.array(0.5), torch.tensor(0.5)], ids=["array", "tensor"])
def test_a_single_number_is_refused(model, x):
    with pytest.raises(DataError):
        model.infer(x)


def test_impossible_counts_are_refused(model):
    for n in (0, -3):
        with pytest.raises(DataError, match=f"number of samples is {n}; it must be at least 1"):
            model.sample(n)
    for call in (lambda: model.sample(2, steps=-1), lambda: model.infer(images(2), steps=-1), lambda: model.anomaly_score(images(2), steps=-1)):
        with pytest.raises(DataError, match="chain steps is -1; it must not be negative"):
            call()


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["energy", "gaussian"])
def test_save_and_load_are_exact(tmp_path, kind):
    model = LatentEBM(resolve("digits", [*SETTINGS, f"prior.kind={kind}"]))
    model.save(tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    assert isinstance(loaded.config, Config)
    assert loaded.config == model.config
    assert list(loaded.state_dict()) == list(model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), model.state_dict().values(), strict=True))
    assert torch.equal(loaded.sample(3), model.sample(3))
    assert torch.equal(loaded.anomaly_score(images(3)), model.anomaly_score(images(3)))


def test_an_own_generator_is_asked_for_again(tmp_path):
    path, own = tmp_path / "model.safetensors", LatentEBM(CONFIG, Plain(ImageGenerator(4, CONFIG.generator)))
    own.save(path)
    with pytest.raises(CheckpointError, match="a generator of your own; pass it"):
        load(path)
    assert torch.equal(load(path, generator=Plain(ImageGenerator(4, CONFIG.generator))).sample(3), own.sample(3))
    with pytest.raises(CheckpointError, match="does not fit this model"):
        load(path, generator=Plain(ImageGenerator(4, resolve("digits", ["generator.ngf=2"]).generator)))


def test_bytes_mean_the_same_to_an_own_generator_in_learning_and_inference():
    """Learning reads stored bytes as floats in [-1, 1]; without an as_input of its own a generator must be asked the same way."""

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(5, 16))

        def decode(self, z):
            return z @ self.w.t()

        def log_prob(self, x, z):
            return -(x - self.decode(z)).square().sum(1)

    model = LatentEBM(resolve("digits"), Line())
    pixels = np.array([[0, 255, 0, 255, 51]], np.uint8)
    torch.testing.assert_close(model.as_input(pixels), torch.tensor([[-1.0, 1.0, -1.0, 1.0, -0.6]]))
    torch.testing.assert_close(model.anomaly_score(pixels), model.anomaly_score(pixels / np.float32(127.5) - 1))


@pytest.mark.parametrize(("precision", "unit"), [("float32", 0.0), ("float16", 2**-11), ("bfloat16", 2**-8)])
def test_an_exported_model_is_the_same_up_to_rounding(tmp_path, precision, unit):
    model = LatentEBM(resolve("digits"))
    model.save(tmp_path / "a.safetensors", {"step": 12})
    export(tmp_path / "a.safetensors", tmp_path / "b.safetensors", precision)
    back = load(tmp_path / "b.safetensors")
    for p, q in zip(model.parameters(), back.parameters(), strict=True):
        assert q.dtype is torch.float32
        assert bool(((p - q).abs() <= unit * p.abs() + 1e-7).all())
    assert load_tensors(tmp_path / "b.safetensors")[1]["step"] == 12
    size = [(tmp_path / f"{n}.safetensors").stat().st_size for n in "ab"]
    assert size[1] < 0.6 * size[0] or precision == "float32"


@pytest.mark.parametrize("base", ["fitted", "mixture"])
def test_a_rounded_p_0_agrees_with_itself_and_goes_on_following(tmp_path, base):
    """Whitening and colouring undo each other; a refit on what it holds of the draws finds it again, and on new draws of its own stays near it."""
    model = LatentEBM(resolve("digits", [f"prior.base={base}", "prior.parts=3", "prior.memory=50"]))
    rng, nz = torch.Generator().manual_seed(0), model.config.nz
    wide = torch.linspace(0.05, 30, nz)  # second moments whose difference from the mean's square is lost in eight bits
    for i in range(400):
        model.prior.see(20 + wide * torch.randn(100, nz, generator=rng))
        if i % 50 == 49:
            model.prior.refit()
    model.save(tmp_path / "a.safetensors")
    export(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "bfloat16")
    prior = load(tmp_path / "b.safetensors").prior
    u = torch.randn(500, nz, generator=rng)
    z = prior.coloured(u)
    torch.testing.assert_close(prior.white(z), u, rtol=1e-4, atol=1e-4)
    log_p = prior.log_prob(z)
    prior.refit()
    assert prior.follows() and float((prior.log_prob(z) - log_p).detach().abs().max()) < 0.1
    prior.see(prior.place(torch.randn(100, nz, generator=rng)))
    prior.refit()
    assert prior.follows() and float((prior.log_prob(z) - log_p).detach().abs().mean()) < 2


def test_weights_too_large_for_a_precision_are_not_exported(tmp_path):
    model = LatentEBM(resolve("digits"))
    with torch.no_grad():
        next(model.prior.parameters())[0] = 1e6
    model.save(tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match="float16 cannot.*float32"):
        export(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "float16")
    assert not (tmp_path / "b.safetensors").exists()


def test_the_model_that_travels_with_the_repository_draws_house_numbers():
    """Natural images of this set: grey on average, and neighbouring pixels nearly equal; an untrained generator gives neither."""
    file = Path(__file__).parents[1] / "models" / "svhn.safetensors"
    model = load(file)
    assert load_tensors(file)[1]["step"] == 70_000 and model.config.experiment == "svhn"
    assert file.stat().st_size < 20 << 20
    x = model.sample(16)
    assert x.shape == (16, 3, 32, 32) and float(x.std()) > 0.2
    roughness = lambda x: float((x[..., 1:] - x[..., :-1]).square().mean() / x.var())  # noqa: E731
    assert roughness(x) < 0.2 < roughness(LatentEBM(model.config).sample(16))

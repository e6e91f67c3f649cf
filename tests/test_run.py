"""Run folders, and models in files: saved, loaded, exported."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lebm
from lebm.config import Config, resolve
from lebm.config.build import build
from lebm.core.errors import CheckpointError, ConfigError, UserError
from lebm.core.tensors import load_tensors
from lebm.generators import ImageGenerator
from lebm.latent_ebm import LatentEBM
from lebm.prior import EnergyPrior, StandardNormal
from lebm.run import Run, default_folder, export, latest_folder, load, save

SETTINGS = [
    "nz=4",
    "method.energy.width=8",
    "generator.ngf=3",
    "generator.sigma=0.2",
    "method.prior_chain.steps=7",
    "method.posterior_chain.steps=6",
    "method.posterior_chain.step_size=0.05",
]
GAUSSIAN = ["method.energy=null", "method.prior_chain.steps=0"]
CONFIG = resolve("digits", SETTINGS)


def images(n, seed=0):
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


class Plain(nn.Module):
    """A user's generator: log_prob and decode, nothing else."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def decode(self, z):
        return self.inner.decode(z)

    def log_prob(self, x, z):
        return self.inner.log_prob(x, z)


def plain(ngf=3):
    return Plain(ImageGenerator(4, 8, 1, ngf, sigma=0.2))


# --- models in files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [[], GAUSSIAN, ["method.base.kind=whitened"], ["method.base.kind=mixture"]])
def test_save_and_load_are_exact(tmp_path, settings):
    model = build(resolve("digits", [*SETTINGS, *settings]))
    save(model, tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    assert isinstance(loaded.config, Config)
    assert loaded.config == model.config and loaded.updates is None and not loaded.training
    assert list(loaded.state_dict()) == list(model.state_dict())
    pairs = zip(loaded.state_dict().values(), model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(loaded.sample(3), model.sample(3))
    assert torch.equal(loaded.anomaly_score(images(3)), model.anomaly_score(images(3)))


def test_a_users_generator_is_asked_for_again(tmp_path):
    path, model = tmp_path / "model.safetensors", build(CONFIG, plain())
    save(model, path)
    with pytest.raises(CheckpointError, match="generator="):
        load(path)
    assert torch.equal(load(path, generator=plain()).sample(3), model.sample(3))
    with pytest.raises(CheckpointError, match="does not fit this model"):
        load(path, generator=plain(ngf=2))


def test_also_one_of_our_classes_whose_settings_are_not_those_of_the_configuration(tmp_path):
    """Its sigma is in no weight: it would be loaded with another likelihood, in silence."""
    model = build(CONFIG, ImageGenerator(4, 8, 1, 3, sigma=0.5))
    save(model, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="generator="):
        load(tmp_path / "model.safetensors")


def test_a_model_from_parts_has_nothing_to_be_saved_with(tmp_path):
    with pytest.raises(ConfigError, match="lebm.build"):
        save(LatentEBM(EnergyPrior(StandardNormal(4)), ImageGenerator(4, 8, 1, 3)), tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


def test_bytes_mean_the_same_to_a_users_generator_in_learning_and_inference():
    """Learning reads stored bytes as floats in [-1, 1], and so does inference."""

    class Line(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(5, 16))

        def decode(self, z):
            return z @ self.w.t()

        def log_prob(self, x, z):
            return -(x - self.decode(z)).square().sum(1)

    model = build(resolve("digits"), Line())
    pixels = np.array([[0, 255, 0, 255, 51]], np.uint8)
    expected = torch.tensor([[-1.0, 1.0, -1.0, 1.0, -0.6]])
    torch.testing.assert_close(model.generator.as_input(pixels), expected)
    torch.testing.assert_close(model.generator.from_storage(torch.from_numpy(pixels)), expected)
    torch.testing.assert_close(model.anomaly_score(pixels), model.anomaly_score(pixels / np.float32(127.5) - 1))


@pytest.mark.parametrize(("precision", "unit"), [("float32", 0.0), ("float16", 2**-11), ("bfloat16", 2**-8)])
def test_an_exported_model_is_the_same_up_to_rounding(tmp_path, precision, unit):
    model = build(resolve("digits"))
    save(model, tmp_path / "a.safetensors", {"updates": 12})
    export(tmp_path / "a.safetensors", tmp_path / "b.safetensors", precision)
    back = load(tmp_path / "b.safetensors")
    for p, q in zip(model.parameters(), back.parameters(), strict=True):
        assert q.dtype is torch.float32
        assert bool(((p - q).abs() <= unit * p.abs() + 1e-7).all())
    assert load_tensors(tmp_path / "b.safetensors")[1]["updates"] == back.updates == 12
    size = [(tmp_path / f"{n}.safetensors").stat().st_size for n in "ab"]
    assert size[1] < 0.6 * size[0] or precision == "float32"


@pytest.mark.parametrize("base", ["whitened", "mixture"])
def test_a_rounded_base_agrees_with_itself_and_goes_on_following(tmp_path, base):
    """Whitening can be undone; a refit on what the base holds of the draws gives it again, and on its own draws stays
    near it."""
    settings = ["method.base.components=3"] if base == "mixture" else []
    config = resolve("digits", [f"method.base.kind={base}", "method.base.memory=50", *settings])
    model = build(config)
    rng, nz = torch.Generator().manual_seed(0), config.nz
    wide = torch.linspace(0.05, 30, nz)  # second moments whose difference from the mean's square is lost in eight bits
    for i in range(400):
        model.prior.base.observe(20 + wide * torch.randn(100, nz, generator=rng))
        if i % 50 == 49:
            model.prior.base.refit()
    save(model, tmp_path / "a.safetensors")
    export(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "bfloat16")
    prior = load(tmp_path / "b.safetensors").prior
    u = torch.randn(500, nz, generator=rng)
    z = prior.base.unwhiten(u)
    torch.testing.assert_close(prior.base.whiten(z), u, rtol=1e-4, atol=1e-4)
    log_p = prior.log_prob(z)
    prior.base.refit()
    assert prior.base.follows() and float((prior.log_prob(z) - log_p).detach().abs().max()) < 0.1
    prior.base.observe(prior.base.draw(100, rng))
    prior.base.refit()
    assert prior.base.follows() and float((prior.log_prob(z) - log_p).detach().abs().mean()) < 2


def test_weights_too_large_for_a_precision_are_not_exported(tmp_path):
    model = build(resolve("digits"))
    with torch.no_grad():
        next(model.prior.parameters())[0] = 1e6
    save(model, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match="float16 cannot.*float32"):
        export(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "float16")
    assert not (tmp_path / "b.safetensors").exists()


def test_the_model_that_travels_with_the_repository_draws_house_numbers():
    """Natural images of this set: grey on average, and neighbouring pixels nearly equal; an untrained generator gives
    neither."""
    file = Path(__file__).parents[1] / "models" / "svhn-paper.safetensors"
    model = load(file)
    assert load_tensors(file)[1]["updates"] == 70_000 and model.config.name == "svhn/paper"
    assert file.stat().st_size < 20 << 20
    x = model.sample(16)
    assert x.shape == (16, 3, 32, 32) and float(x.std()) > 0.2
    roughness = lambda x: float((x[..., 1:] - x[..., :-1]).square().mean() / x.var())  # noqa: E731
    assert roughness(x) < 0.2 < roughness(build(model.config).sample(16))


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_run_is_read_as_it_is_needed(tmp_path):
    run = Run(tmp_path / "run")
    assert not run.exists() and run.rows() == [] and run.metrics is None and run.start is None
    run.put(CONFIG)
    assert run.exists() and run.config == CONFIG == Run(run.path).config
    run.put(CONFIG.with_values(seed=7))
    assert run.config.seed == Run(run.path).config.seed == 7
    model = build(CONFIG)
    save(model, run.model_file, {"updates": 3})
    assert run.method().updates == 3 and torch.equal(run.method().sample(2), model.sample(2))
    run.metrics_file.write_text(json.dumps({"metrics": {"mse": 1.0}}))
    assert run.metrics == {"metrics": {"mse": 1.0}}


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, "\udcff"])
def test_metrics_that_are_not_readable(tmp_path, text):
    (tmp_path / "metrics.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match=r"metrics\.json"):
        _ = Run(tmp_path).metrics


def test_where_a_run_goes_and_which_one_is_resumed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert default_folder("digits/paper") == latest_folder("digits/paper") == Path("runs/digits/paper")
    for name in ("paper", "paper-2"):
        (tmp_path / "runs" / "digits" / name).mkdir(parents=True)
        if name == "paper":
            assert default_folder("digits/paper") == Path("runs/digits/paper-2")
            assert latest_folder("digits/paper") == Path("runs/digits/paper")
    assert default_folder("digits/paper") == Path("runs/digits/paper-3")
    with pytest.raises(CheckpointError, match="lebm train runs/digits/paper-2 --resume"):
        latest_folder("digits/paper")


def test_the_public_names():
    assert lebm.load is load and lebm.save is save


def test_a_generator_in_the_place_of_the_device_is_told(tmp_path):
    with pytest.raises(UserError, match=r"device is a Linear; .* lebm.load\('.*run', generator=\.\.\.\)"):
        load(tmp_path / "run", torch.nn.Linear(2, 2))

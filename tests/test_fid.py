"""The FID from images to number: features, statistics kept on disk, runs, and sets compared by hand. A small linear map stands in for Inception."""

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from PIL import Image

from lebm.config import resolve
from lebm.config.build import build
from lebm.core.errors import CheckpointError, ConfigError, DataError
from lebm.core.pixels import as_floats, to_pixels
from lebm.data import load as load_data
from lebm.measure import METRICS, analysis, inception
from lebm.measure import result as results
from lebm.measure import statistics as stats
from lebm.measure.evaluate import evaluate, evaluate_all
from lebm.measure.metric import Evaluation
from lebm.method import Method
from lebm.modalities import of
from lebm.run import load
from lebm.training.train import train


class Fake:
    """d linear features of the pixels, in float64; counts the images it saw."""

    precision = "float64"

    def __init__(self, d=6, name="fake", seed=0):
        self.d, self.name, self.seed, self.seen, self.sizes = d, name, seed, 0, []

    def __call__(self, pixels):
        assert pixels.dtype == torch.uint8
        self.seen += len(pixels)
        self.sizes.append(len(pixels))
        x = pixels.flatten(1).double() / 255
        w = torch.randn(x.shape[1], self.d, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)
        return x @ w / x.shape[1] ** 0.5


def images(n=200, seed=0, side=4, channels=3):
    return torch.randint(
        0, 256, (n, channels, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def by_scipy(a, b):
    """|mu_a - mu_b|^2 + tr(A + B - 2 sqrtm(A B))."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    cov_a, cov_b = np.cov(a.T), np.cov(b.T)
    root = scipy.linalg.sqrtm(cov_a @ cov_b).real
    return ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(cov_a + cov_b - 2 * root)


REAL = os.environ.get("LEBM_DATA")  # the folder with the real network, where there is one


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    for name in ("LEBM_CACHE", "LEBM_DATA"):  # what these tests cache is not for a person's folder
        monkeypatch.delenv(name, raising=False)


# --- what the network is shown ----------------------------------------------------------------------------------------


def resized(plane, side=inception.SIDE):
    """Bilinear with half-pixel centres, written out: pixel i looks at (i + 0.5) h / side - 0.5, held inside the image."""
    h, w = plane.shape

    def places(n):
        at = ((np.arange(side) + 0.5) * n / side - 0.5).clip(0, n - 1)
        low = np.floor(at).astype(int)
        return low, np.minimum(low + 1, n - 1), at - low

    (top, bottom, v), (left, right, u) = places(h), places(w)
    rows = plane[top] * (1 - v)[:, None] + plane[bottom] * v[:, None]
    return rows[:, left] * (1 - u) + rows[:, right] * u


@pytest.mark.parametrize("side", [(32, 32), (5, 7), (299, 299), (400, 310)])
def test_images_are_resized_as_pytorch_fid_does(side):
    pixels = torch.randint(0, 256, (2, 3, *side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    shown = inception.prepare(pixels)
    assert shown.shape == (2, 3, 299, 299) and shown.dtype == torch.float32
    expected = 2 * resized(pixels[1, 2].double().numpy() / 255) - 1
    places = (
        max(*side, 299) * np.finfo(np.float32).eps
    )  # rounding of the places looked at; neighbours differ by 2 at most
    np.testing.assert_allclose(shown[1, 2].numpy(), expected, atol=4 * places)


def test_grey_is_repeated_and_the_range_is_kept():
    pixels = torch.cat([torch.zeros(1, 1, 8, 8), torch.full((1, 1, 8, 8), 255.0)]).to(torch.uint8)
    shown = inception.prepare(pixels)
    assert shown.shape == (2, 3, 299, 299) and bool((shown[0] == -1).all()) and bool((shown[1] == 1).all())


@pytest.mark.parametrize(
    "wrong",
    [torch.zeros(2, 3, 4, 4), torch.zeros(2, 2, 4, 4, dtype=torch.uint8), torch.zeros(3, 4, 4, dtype=torch.uint8)],
)
def test_only_pixels_are_taken(wrong):
    with pytest.raises(DataError, match="uint8 images"):
        inception.prepare(wrong)


# --- the network ------------------------------------------------------------------------------------------------------


def test_another_file_is_refused_before_it_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.jit, "load", lambda *a, **k: pytest.fail("loaded an unchecked file"))
    path = tmp_path / "network.pt"
    path.write_bytes(b"some other network")
    with pytest.raises(DataError, match="sha256.*lebm fetch inception"):
        inception.load_file(path)


def test_a_missing_network_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match=r"not at .*inception-2015-12-05.pt; run `lebm fetch inception`"):
        inception.load_file(tmp_path / inception.FILE)
    with pytest.raises(DataError, match="no data folder.*LEBM_DATA"):
        inception.load(None, torch.device("cpu"))


def test_a_checked_network_is_loaded_without_a_warning(tmp_path, monkeypatch):
    """The real loader on a network of our own, whose sum is made the known one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.script is deprecated too
        torch.jit.save(torch.jit.script(torch.nn.AvgPool2d(299)), str(tmp_path / "own.pt"))
    monkeypatch.setattr(inception, "SHA256", hashlib.sha256((tmp_path / "own.pt").read_bytes()).hexdigest())
    net = inception.load_file(tmp_path / "own.pt")
    net.batch = 3
    pixels = images(8)
    features = net(pixels).flatten(1)
    assert net.precision == "float32" and features.shape == (8, 3)
    expected = inception.prepare(pixels).double().mean((2, 3)).numpy()
    np.testing.assert_allclose(features.numpy(), expected, atol=1e-4)  # 89,401 summands in float32


def test_the_real_network():
    root = REAL
    path = root and Path(root) / inception.FILE
    if not path or not path.is_file():
        pytest.skip("the Inception network is not under LEBM_DATA")
    net = inception.load_file(path)
    pixels = images(3, side=32)
    together = net(pixels)
    assert together.shape == (3, 2048) and float(together.min()) >= 0 and bool(together.isfinite().all())
    net.batch = 1
    np.testing.assert_allclose(net(pixels).numpy(), together.numpy(), rtol=1e-3, atol=1e-4)


# --- statistics and distance ------------------------------------------------------------------------------------------


def test_the_distance_is_scipys():
    a, b, f = images(300, 1), images(200, 2) // 2, Fake()
    distance = stats.statistics([a], f).distance(stats.statistics([b], f))
    assert distance == pytest.approx(by_scipy(f(a), f(b)), rel=1e-8) and distance > 0.01


@pytest.mark.parametrize("piece", [1, 7, 64, 199])
def test_statistics_do_not_depend_on_the_pieces(piece):
    a, f = images(200), Fake()
    whole, parts = stats.statistics([a], f), stats.statistics(a.split(piece), f)
    assert parts.n == whole.n == 200
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(parts.cov, whole.cov, rtol=0, atol=1e-14)
    assert whole.distance(parts) == pytest.approx(0, abs=1e-9)


def test_a_shift_of_all_images_leaves_the_squared_distance_of_the_means():
    a, f = images(300) // 2, Fake()
    b = a + 50
    expected = float((f(a).mean(0) - f(b).mean(0)).square().sum())
    assert stats.statistics([a], f).distance(stats.statistics([b], f)) == pytest.approx(expected, rel=1e-9)


def test_fewer_images_than_features_make_singular_covariances():
    f = Fake(d=40)
    a, b = stats.statistics([images(15, 1)], f), stats.statistics([images(20, 2)], f)
    assert np.linalg.matrix_rank(a.cov) == 14
    assert a.distance(a) == pytest.approx(0, abs=1e-10)
    assert np.isfinite(a.distance(b)) and a.distance(b) == pytest.approx(b.distance(a), rel=1e-9) and a.distance(b) > 0


def test_statistics_that_cannot_be():
    with pytest.raises(DataError, match="at least 2"):
        stats.statistics([images(1)], Fake())
    with pytest.raises(DataError, match="different features"):
        stats.statistics([images(9)], Fake()).distance(stats.statistics([images(9)], Fake(name="other")))


# --- kept on disk -----------------------------------------------------------------------------------------------------


def test_cached_statistics_are_computed_once(tmp_path):
    a, f = images(50), Fake()
    first, path = stats.cached_statistics(a, f, tmp_path / "cache")
    again, same = stats.cached_statistics(a.clone(), f, tmp_path / "cache")
    assert f.seen == 50 and path == same and path.parent.name == "cache" and path.suffix == ".safetensors"
    assert np.array_equal(first.mean, again.mean) and np.array_equal(first.cov, again.cov)
    assert again.n == 50 and again.features == "fake"


def test_other_images_or_features_have_a_file_of_their_own(tmp_path):
    a, f = images(50), Fake()
    other = a.clone()
    other[3, 0, 0, 0] ^= 1
    sets = ((a, f), (other, f), (a[:49], f), (a, Fake(name="b")), (a.reshape(50, 1, 6, 8), f))
    paths = [stats.cached_statistics(x, g, tmp_path)[1] for x, g in sets]
    assert len(set(paths)) == 5


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign", "swap"])
def test_a_damaged_file_is_made_again(tmp_path, damage):
    a, f = images(50), Fake()
    first, path = stats.cached_statistics(a, f, tmp_path)
    raw = path.read_bytes()
    if damage == "swap":  # whole, but of other images
        stats.write(path, stats.statistics([images(50, 9)], Fake(name="other")))
    else:
        flipped = raw[:-9] + bytes([raw[-9] ^ 64]) + raw[-8:]
        changed = {"cut": raw[:-20], "flip": flipped, "empty": b"", "foreign": b"\x80pickle" * 20}
        path.write_bytes(changed[damage])
    again, _ = stats.cached_statistics(a, f, tmp_path)
    assert f.seen == 100 and np.array_equal(first.cov, again.cov) and path.read_bytes() == raw


def test_where_nothing_can_be_cached_the_numbers_still_come(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for folder in (None, tmp_path / "file" / "cache"):
        s, path = stats.cached_statistics(images(20), Fake(), folder)
        assert path is None and s.n == 20


def test_the_folder(tmp_path, monkeypatch):
    assert stats.cache_folder(None) is None and stats.cache_folder(tmp_path / "nowhere") is None
    assert stats.cache_folder(tmp_path) == tmp_path / ".lebm-cache"
    monkeypatch.setenv("LEBM_CACHE", str(tmp_path / "elsewhere"))
    assert stats.cache_folder(tmp_path) == stats.cache_folder(None) == tmp_path / "elsewhere"


def test_a_model_file_is_no_statistics(run):
    with pytest.raises(CheckpointError, match="no statistics"):
        stats.read(run / "model.safetensors")


# --- runs -------------------------------------------------------------------------------------------------------------

SMALL = ["data.name=noise", "generator.size=8", "generator.widths=[2]", "generator.ngf=4", "nz=4"]
SHORT = [
    *("method.energy.width=8", "method.prior_chain.steps=3", "method.posterior_chain.steps=2"),
    *("training.updates=2", "training.batch=10", "training.log_every=1"),
]


def make(folder, *settings):
    train(resolve("svhn", [*SMALL, *SHORT, *settings]), run=folder, device="cpu")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        return make(tmp_path_factory.mktemp("fid") / "run")


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def measured(run, *metrics, **options):
    return evaluate(run, metrics, device="cpu", pictures=False, **{"samples": 600, "features": Fake(), **options})


def test_the_fid_of_a_run_is_that_of_its_rounded_samples(run):
    summary, f, model = measured(run, "fid", "fid_gaussian", seed=5), Fake(), load(run)
    reference = load_data(model.config).train
    for name, steps in (("fid", None), ("fid_gaussian", 0)):
        samples = model.sample(600, 5, model.choose("prior", steps=steps))
        assert summary["metrics"][name] == pytest.approx(by_scipy(f(to_pixels(samples)), f(reference)), rel=1e-7)
    p = summary["protocol"]["fid"]
    assert p["samples"] == 600 and p["reference"] == "all 2000 training images" and p["seed"] == 5
    assert p["sampler"] == model.choose("prior").to_dict() and p["sampler"]["steps"] == 3
    assert p["features"] == "fake" and p["features_precision"] == "float64"
    assert summary["protocol"]["checkpoint"] == "last"
    assert summary["protocol"]["fid_gaussian"]["sampler"]["steps"] == 0


def test_an_engine_draws_the_samples_and_the_protocol_says_so(run):
    class Engine:
        """Samples that no chain draws."""

        precision = "bfloat16"

        def sample(self, n, seed=0, spec=None, progress=None):
            return as_floats(images(n, seed, side=8))

    model, f = load(run), Fake()
    model.engine = Engine()
    splits = load_data(model.config)
    ev = Evaluation(model, splits, samples=50, features=f)
    expected = by_scipy(f(images(50, side=8)), f(splits.train))
    assert METRICS["fid"].measure(ev)["fid"] == pytest.approx(expected, rel=1e-7)
    assert ev.protocol["engine"] == "fast" and ev.protocol["precision"] == "bfloat16"


def test_the_fid_of_reconstructions(run):
    summary, f, model = measured(run, "fid_reconstruction", samples=700, seed=5), Fake(), load(run)
    reference = load_data(model.config).train
    parts = reference[torch.arange(700) * 2000 // 700].split(500)
    z = [model.encode(as_floats(rows), 5 + i, shared_noise=False) for i, rows in enumerate(parts)]
    expected = by_scipy(f(to_pixels(model.decode(torch.cat(z)))), f(reference))
    assert summary["metrics"]["fid_reconstruction"] == pytest.approx(expected, rel=1e-7)
    p = summary["protocol"]["fid_reconstruction"]
    assert p["reconstructed"] == "700 training images, evenly spaced"
    assert p["sampler"] == model.choose("posterior").to_dict() and p["sampler"]["steps"] == 2
    p = measured(run, "fid_reconstruction", split="test")["protocol"]["fid_reconstruction"]
    assert p["reconstructed"] == "200 test images, evenly spaced"


def test_real_images_are_looked_at_once_for_all_metrics(run, monkeypatch):
    """Also where their statistics cannot be cached on disk."""
    f = Fake()
    monkeypatch.setattr(analysis, "cache_folder", lambda root: None)
    together = measured(run, "fid", "fid_gaussian", "fid_reconstruction", features=f)["metrics"]
    assert f.seen == 2000 + 3 * 600
    for name in together:
        assert measured(run, name)["metrics"][name] == together[name]


def test_it_does_not_depend_on_batch_sizes(run, monkeypatch):
    first = measured(run, "fid")["metrics"]["fid"]
    monkeypatch.setattr(stats, "PIECE", 33)
    decode = Method.decode
    monkeypatch.setattr(Method, "decode", lambda self, z: decode(self, z, batch=17))
    assert measured(run, "fid")["metrics"]["fid"] == pytest.approx(first, rel=1e-6)


def test_the_reference(run, tmp_path):
    data = load_data(load(run).config)
    against_test = measured(run, "fid", split="test")
    assert against_test["protocol"]["fid"]["reference"] == "all 200 test images"
    f = Fake()
    expected = by_scipy(f(to_pixels(load(run).sample(600))), f(data.test))
    assert against_test["metrics"]["fid"] == pytest.approx(expected, rel=1e-7)
    limited = measured(make(tmp_path / "limited", "data.limit=300"), "fid")
    assert limited["protocol"]["fid"]["reference"] == "all 2000 training images"
    assert limited["data"]["train"] == 300


def test_the_reference_is_cached_in_the_data_folder(run, tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    f = Fake()
    first = measured(run, "fid", data_dir=root, features=f)["metrics"]["fid"]
    assert f.seen == 2600 and len(list((root / ".lebm-cache").glob("fid-*.safetensors"))) == 1
    assert measured(run, "fid", data_dir=root, features=f)["metrics"]["fid"] == first
    assert f.seen == 3200


def test_what_was_measured_before_stays(run):
    first = measured(run, "mse")
    second = measured(run, "fid", seed=7)
    assert second["metrics"] == {**first["metrics"], "fid": second["metrics"]["fid"]}
    assert second["protocol"]["mse"] == first["protocol"]["mse"] and second["protocol"]["fid"]["seed"] == 7
    assert json.loads((run / "metrics.json").read_text()) == second
    train(resolve(run, ["training.updates=3"]), run=run, resume=True, device="cpu")
    assert set(measured(run, "mse")["metrics"]) == {"mse", "mse_100"}, "other weights"
    for damaged in ("", "[]", "{}", '{"metrics": 3}', "null"):
        (run / "metrics.json").write_text(damaged)
        assert set(measured(run, "mse")["metrics"]) == {"mse", "mse_100"}


def test_choosing_settings_looks_at_no_test_image(run, tmp_path, monkeypatch):
    monkeypatch.setattr(Evaluation, "test", property(lambda ev: pytest.fail("a test image was looked at")))
    summary = evaluate(run, ("fid", "mse"), split="validation", device="cpu", samples=50, features=Fake())
    held_out = "the last 200 training images held out"
    learned = f"{held_out}, which this run learned from (no data.limit)"
    assert summary["seed"] == 1 and summary["protocol"]["mse"]["images"] == learned
    assert (run / "validation.json").is_file()
    assert not (run / "metrics.json").exists() and not (run / "figures").exists()
    rows = load_data(load(run).config).train[-200:].float() / 127.5 - 1
    model = load(run)
    expected = float((rows - model.decode(model.encode(rows, 1, shared_noise=False))).square().mean())
    assert summary["metrics"]["mse"] == pytest.approx(expected, rel=1e-5)
    apart = make(tmp_path / "apart", "data.limit=1800")
    assert measured(apart, "mse", split="validation")["protocol"]["mse"]["images"] == held_out
    assert measured(run, "mse", split="validation", seed=9)["seed"] == 9


def test_default_numbers_of_samples(run, monkeypatch):
    asked = []
    monkeypatch.setattr(Method, "sample_z", lambda self, n, *rest: asked.append(n) or iter([torch.zeros(2, 4)]))
    evaluate(run, ("fid",), features=Fake(), device="cpu", pictures=False)
    evaluate(run, ("fid",), features=Fake(), device="cpu", split="validation")
    evaluate(run, ("frechet",), device="cpu", pictures=False)
    assert asked == [50_000, 10_000, 10_000, 10_000]


def test_some_test_images(run):
    some, every = measured(run, "mse", limit=40), measured(run, "mse")
    assert some["protocol"]["mse"]["images"] == "the first 40 test images"
    assert every["protocol"]["mse"]["images"] == "all 200 test images"
    assert some["metrics"]["mse"] != every["metrics"]["mse"]


def test_which_metrics_fit():
    def default(inception, *settings, preset="svhn"):
        model = build(resolve(preset, settings))
        return of(model.generator.modality).default_metrics(model.generator, model.config.data.name, inception)

    assert default(True, *SMALL, "data.name=svhn") == ["fid", "mse"]
    assert default(False, *SMALL, "data.name=svhn") == ["frechet", "mse"]
    assert default(True, *SMALL) == ["frechet", "mse"]
    assert default(False, "generator.ngf=2", preset="celeba64") == ["mse"]


def test_several_seeds(run, tmp_path):
    other = make(tmp_path / "other", "seed=2")
    options = {"samples": 600, "features": Fake(), "device": "cpu", "pictures": False}
    both = evaluate_all([run, other], ("fid", "mse"), **options)
    each = [json.loads((r / "metrics.json").read_text()) for r in (run, other)]
    values = [e["metrics"]["fid"] for e in each]
    assert both["metrics"]["fid"] == pytest.approx(np.mean(values))
    assert both["metrics"]["fid_spread"] == pytest.approx(np.std(values, ddof=1))
    assert set(both["metrics"]) == {n + s for n in ("fid", "mse", "mse_100") for s in ("", "_spread")}
    assert [(p["seed"], p["metrics"]) for p in both["per_seed"]] == [(1, each[0]["metrics"]), (2, each[1]["metrics"])]
    assert evaluate_all([run], ("mse",), device="cpu", pictures=False)["per_seed"] is None


def test_runs_that_are_no_seeds_of_one_experiment(run, tmp_path):
    other = make(tmp_path / "other", "seed=2", "generator.sigma=0.2")
    cases = (
        ([run, other], "configuration"),
        ([run, run], "seeds 1, 1"),
        ([run, tmp_path / "nothing"], "does not exist"),
    )
    for runs, says in cases:
        with pytest.raises((ConfigError, CheckpointError), match=says):
            evaluate_all(runs, ("mse",), device="cpu", pictures=False)
    assert not (run / "metrics.json").exists()
    longer = shutil.copytree(make(tmp_path / "second", "seed=2"), tmp_path / "third")
    train(resolve(longer, ["training.updates=3"]), run=longer, resume=True, device="cpu")
    with pytest.raises(ConfigError, match="configuration"):
        evaluate_all([run, longer], ("mse",), device="cpu", pictures=False)


def test_seeds_that_were_measured_differently_have_no_mean(run, tmp_path):
    other = make(tmp_path / "other", "seed=2")
    for folder, samples in ((run, 40), (other, 60)):
        measured(folder, "fid", samples=samples)
    with pytest.raises(ConfigError, match="fid measured with samples = 40 and 60.*--metrics fid"):
        evaluate_all([run, other], ("mse",), device="cpu", pictures=False)
    assert "mse" not in json.loads((run / "metrics.json").read_text())["metrics"], "refused before the work"
    options = {"split": "validation", "device": "cpu", "pictures": False}
    summary = evaluate_all([run, other], ("mse",), **options)
    assert "mse_spread" in summary["metrics"], "what stands in another file is left alone"
    measured(other, "fid", samples=40)
    assert "fid_spread" in evaluate_all([run, other], ("mse",), device="cpu", pictures=False)["metrics"]


def test_runs_of_different_lengths_have_no_mean():
    """One configuration, but one was stopped by --max-seconds."""
    runs = [{"config": {"seed": i}, "updates": i, "metrics": {}, "seconds": 1} for i in (1, 2)]
    with pytest.raises(ConfigError, match="at 1, 2 updates"):
        results.mean(runs)


def test_evaluations_that_cannot_be(run, monkeypatch):
    monkeypatch.delenv("LEBM_DATA", raising=False)
    for says, options in (
        ("limit is 0", {"limit": 0}),
        ("split is 'half'", {"split": "half"}),
        ("samples is 1", {"samples": 1}),
    ):
        with pytest.raises(ConfigError, match=says):
            measured(run, "mse", **options)
    with pytest.raises(DataError, match="lebm fetch inception"):
        evaluate(run, ("fid",), device="cpu")


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.fixture
def faked(monkeypatch):
    f = Fake()
    monkeypatch.setattr(inception, "load", lambda root, device: f)
    return f


def test_fid_without_inception(call, tmp_path, run):
    for words in (("fid", "digits:train", "digits:test"), ("evaluate", run, "--metrics", "fid")):
        err = call(*words, "--data-dir", tmp_path, code=2).err
        assert "lebm fetch inception" in err and err.strip().count("\n") <= 2
    assert call("fid", "svhn:train", "--data-dir", tmp_path, code=2).err.count("train_32x32.mat")


def test_fid_between_splits(call, faked, tmp_path):
    said = call("fid", "digits:train", "digits:test:100", "--result", "r.json", "--data-dir", tmp_path)
    data = load_data(resolve("digits"))
    expected = by_scipy(faked(data.train), faked(data.test[:100]))
    assert said.out == f"fid {expected:.4f}\n" and "digits:train: 1500 images" in said.err
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["name"] == "fid" and result["metrics"]["fid"] == pytest.approx(expected, rel=1e-7)
    assert result["data"]["b"]["name"] == "digits:test:100" and result["data"]["b"]["images"] == 100
    assert result["protocol"] == {"features": "fake", "precision": "float64", "images": "uint8"}


def test_statistics_travel_as_files(call, faked, tmp_path, monkeypatch):
    monkeypatch.setenv("LEBM_CACHE", str(tmp_path / "cache"))
    said = call("fid", "digits:train")
    (path,) = (tmp_path / "cache").iterdir()
    assert said.out == "" and str(path) in said.err
    seen = faked.seen
    out = call("fid", path, "digits:train").out
    assert abs(float(out.split()[1])) < 1e-4 and faked.seen == seen


def test_fid_between_folders_and_files(call, faked, tmp_path):
    pixels = images(30, side=8)
    (tmp_path / "pictures").mkdir()
    for i, p in enumerate(pixels):
        Image.fromarray(p.permute(1, 2, 0).numpy()).save(tmp_path / "pictures" / f"{i:02}.png")
    other = images(40, 5, side=8) // 2
    np.save("other.npy", other.permute(0, 2, 3, 1).numpy())
    np.savez("floats.npz", x=(other.float() / 127.5 - 1).numpy())
    np.save("grey.npy", other[:, 0].numpy())
    expected = f"fid {by_scipy(faked(pixels), faked(other)):.4f}\n"
    assert call("fid", "pictures", "other.npy").out == expected
    assert call("fid", "pictures", "floats.npz").out == expected
    call("fid", "grey.npy", "grey.npy")


@pytest.mark.parametrize("word", ["nowhere", "digits", "digits:half", "digit:train", "nothing.npz"])
def test_what_is_no_set_of_images(call, faked, word):
    err = call("fid", word, "digits:test", code=2).err
    assert repr(word) in err and "NAME:train" in err


def test_evaluate_runs_on_the_command_line(call, faked, run, tmp_path):
    other = make(tmp_path / "other", "seed=2")
    options = ("--samples", 50, "--limit", 20, "--result", "results/both.json")
    out = call("evaluate", run, other, "--metrics", "fid,mse", *options).out
    assert "fid_spread" in out and out.count("report: ") == 2
    result = json.loads((tmp_path / "results" / "both.json").read_text())
    assert [p["seed"] for p in result["per_seed"]] == [1, 2]
    assert result["protocol"]["mse"]["images"] == "the first 20 test images"
    out = call("evaluate", run, "--metrics", "mse", "--split", "validation", "--limit", 5).out
    assert "report" not in out and (run / "validation.json").is_file()

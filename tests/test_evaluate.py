"""run folder -> metrics.json, figures, report.html."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from lebm import data as datasets
from lebm.config import resolve
from lebm.config.build import build
from lebm.core.errors import CheckpointError, ConfigError, DataError, NotDefined
from lebm.core.pixels import as_floats
from lebm.core.progress import Reporter
from lebm.data import Dataset, Splits
from lebm.data import load as load_data
from lebm.measure import METRICS, Metric, analysis, describe_metrics
from lebm.measure.chains import energy_profile
from lebm.measure.evaluate import evaluate
from lebm.measure.metric import Evaluation
from lebm.measure.result import KEYS
from lebm.measure.statistics import Moments, content_hash, frechet_distance
from lebm.run import load
from lebm.training.train import train

SETTINGS = [
    *("generator.ngf=4", "method.energy.width=16", "method.prior_chain.steps=5", "method.posterior_chain.steps=3"),
    *("training.updates=4", "training.batch=20"),
]


def metric(name, measure):
    """A metric of any model."""
    return Metric(name, name.capitalize(), None, "A number for a test.", measure=measure)


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def make(folder, *settings):
    train(resolve("digits", [*SETTINGS, "training.log_every=2", *settings]), run=folder, device="cpu")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make(tmp_path_factory.mktemp("evaluate") / "run")


@pytest.fixture(scope="module")
def summary(run):
    return evaluate(run, samples=60, seed=3, device="cpu")


def test_everything_is_written(run, summary):
    assert json.loads((run / "metrics.json").read_text()) == summary and tuple(summary) == KEYS
    names = {
        "samples.png",
        "samples-gaussian.png",
        "reconstructions.png",
        "energy.svg",
        "curves.svg",
        "provenance.json",
    }
    assert {p.name for p in (run / "figures").iterdir()} == names
    for name in ("samples", "samples-gaussian", "reconstructions"):
        Image.open(run / "figures" / f"{name}.png").verify()
    page = (run / "report.html").read_text()
    assert "<script src" not in page and page.count("data:image/png") == 3 and not list(run.rglob(".*"))


def test_what_the_summary_says(run, summary):
    assert summary["name"] == "digits/paper" and summary["updates"] == 4 and summary["seed"] == 3
    content = content_hash(load_data(resolve(run)).train)
    source = "scikit-learn load_digits"
    assert summary["data"] == {"name": "digits", "source": source, "train": 1500, "test": 297, "sha256": content}
    assert summary["config"] == resolve(run).to_dict() and set(summary["protocol"]) == {"checkpoint", "frechet", "mse"}
    frechet, mse = summary["protocol"]["frechet"], summary["protocol"]["mse"]
    method = load(run)
    assert frechet["samples"] == 60 and frechet["reference"] == "1500 training images"
    assert frechet["sampler"] == method.choose("prior").to_dict() and frechet["sampler"]["steps"] == 5
    assert frechet["engine"] == "reference" and frechet["precision"] == "float32"
    assert mse["images"] == "all 297 test images" and mse["precision"] == "float32"
    assert mse["steps"] == {"mse": 3, "mse_100": 100} and mse["sampler"] == method.choose("posterior").to_dict()
    for p in (frechet, mse):
        assert p["seed"] == 3 and p["seconds"] >= 0 and p["device"].startswith("CPU") and p["code"]
    assert summary["device"].startswith("CPU") and summary["seconds"] >= 0
    assert all(math.isfinite(v) and v > 0 for v in summary["metrics"].values())


def test_the_updates_are_those_of_the_weights_that_were_measured(tmp_path, monkeypatch):
    run = make(tmp_path / "run")
    later = make(tmp_path / "later", "training.updates=6") / "model.safetensors"
    real = datasets.load

    def meanwhile(*args):
        (run / "model.safetensors").write_bytes(later.read_bytes())  # a learning run goes on while it is measured
        return real(*args)

    monkeypatch.setattr(analysis, "load_data", meanwhile)
    summary = evaluate(run, ("mse",), limit=20, device="cpu", pictures=False)
    assert summary["updates"] == 4 and load(run).updates == 6


def test_the_numbers_are_what_their_names_say(run, summary):
    model = load(run)
    data = load_data(model.config)
    reference, samples = Moments(), Moments()
    reference.add(as_floats(data.train))
    samples.add(model.sample(60, seed=3))
    expected = frechet_distance(*samples.mean_cov(), *reference.mean_cov())
    assert summary["metrics"]["frechet"] == pytest.approx(expected, rel=1e-6)
    x = as_floats(data.test)
    x_hat = model.decode(model.encode(x, 3, shared_noise=False))
    assert summary["metrics"]["mse"] == pytest.approx(float((x - x_hat).square().mean()), rel=1e-5)
    assert summary["metrics"]["mse_100"] != summary["metrics"]["mse"]


def test_the_same_call_gives_the_same_numbers(run, summary):
    again = evaluate(run, samples=60, seed=3, device="cpu", pictures=False)
    assert again["metrics"] == summary["metrics"]
    other = evaluate(run, ("mse",), samples=60, seed=4, device="cpu", pictures=False)
    assert other["metrics"]["mse"] != summary["metrics"]["mse"]


def test_the_fixed_prior_has_no_energy_to_show(tmp_path):
    run = make(tmp_path / "run", "method.energy=null", "method.prior_chain.steps=0")
    numbers = evaluate(run, ("frechet",), samples=20)["metrics"]
    assert list(numbers) == ["frechet"], "the base is its prior: nothing is measured twice"
    assert not (run / "figures" / "energy.svg").exists() and (run / "report.html").exists()
    assert (run / "figures" / "samples.png").exists() and not (run / "figures" / "samples-gaussian.png").exists()
    with pytest.raises(NotDefined, match="prior besides its base"):
        evaluate(run, ("fid_gaussian",), samples=20, features=object())


@pytest.mark.parametrize("columns", [1, 3])
def test_samples_of_a_table_are_a_scatter(tmp_path, monkeypatch, columns):
    rows = torch.randn(60, columns)
    table = Dataset("rows", lambda *_: Splits(rows[:40], rows[40:]), lambda root: root, "", "", "", "table")
    monkeypatch.setitem(datasets.DATASETS, "rows", table)
    kind = [*SETTINGS[1:], "generator.kind=table", f"generator.columns={columns}", "data.name=rows"]
    train(resolve("digits", kind), run=tmp_path / "run", device="cpu")
    assert set(evaluate(tmp_path / "run")["metrics"]) == {"mse", "mse_100"}
    shown = tmp_path / "run" / "figures" / "samples.svg"
    assert shown.exists() == (columns > 1) == ("first two columns" in (tmp_path / "run" / "report.html").read_text())
    if columns > 1:
        text = shown.read_text()
        assert "test rows" in text and "learned prior" in text and "no learned prior" in text


def test_colour_images_and_a_run_without_steps(tmp_path):
    chains = ["method.prior_chain.steps=2", "method.posterior_chain.steps=2"]
    small = ["data.name=noise", "data.limit=20", "generator.ngf=2", "training.updates=0", *chains]
    train(resolve("svhn", small), run=tmp_path / "run")
    summary = evaluate(tmp_path / "run", samples=20)
    assert summary["updates"] == 0 and not (tmp_path / "run" / "figures" / "curves.svg").exists()
    assert list(summary["metrics"]) == ["mse", "mse_100"], "3072 pixels: no Fréchet distance unless it is asked for"


def test_a_number_that_is_none_is_written_as_null(run, monkeypatch, tmp_path):
    monkeypatch.setitem(METRICS, "odd", metric("odd", lambda ev: {"odd": math.nan}))
    assert math.isnan(evaluate(run, ("odd",), device="cpu", pictures=False)["metrics"]["odd"])
    assert json.loads((run / "metrics.json").read_text(), parse_constant=pytest.fail)["metrics"]["odd"] is None


def test_refusals(run, tmp_path):
    before = sorted(p.stat().st_mtime_ns for p in run.rglob("*"))
    for error, part, call in (
        (ConfigError, "unknown metric 'fid2'", lambda: evaluate(run, ("fid2",))),
        (ConfigError, "at least 2", lambda: evaluate(run, samples=1)),
        (ConfigError, "device", lambda: evaluate(run, device="tpu")),
        (CheckpointError, "is a file", lambda: evaluate(run / "model.safetensors")),
        (CheckpointError, "does not exist", lambda: evaluate(tmp_path / "nothing")),
        (CheckpointError, "not a run folder", lambda: evaluate(tmp_path)),
    ):
        with pytest.raises(error, match=part):
            call()
    assert sorted(p.stat().st_mtime_ns for p in run.rglob("*")) == before


def test_data_that_has_gone(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((20, 8, 8), np.uint8))
    run = make(tmp_path / "run", "data.name=images", f"data.path={tmp_path / 'x.npy'}", "training.batch=5")
    (tmp_path / "x.npy").unlink()
    with pytest.raises(DataError, match="x.npy"):
        evaluate(run)
    assert not (run / "metrics.json").exists()


def test_the_energy_profile_starts_at_the_base_and_follows_the_chain():
    model = build(resolve("digits", SETTINGS))
    profile = energy_profile(model, seed=0, steps=7, chains=11)
    assert profile.shape == (8, 11) and np.isfinite(profile).all()
    assert np.array_equal(profile, energy_profile(model, seed=0, steps=7, chains=11))
    assert np.array_equal(profile[:4], energy_profile(model, seed=0, steps=3, chains=11)), (
        "a longer chain begins like a shorter one"
    )


def test_a_metric_is_one_line_in_a_dict(run, monkeypatch):
    seen = []

    def count(ev: Evaluation):
        seen.append(ev)
        return {"rows": float(len(ev.test))}

    monkeypatch.setitem(METRICS, "rows", metric("rows", count))
    assert evaluate(run, ("rows",), pictures=False)["metrics"]["rows"] == 297.0 and seen[0].samples is None
    assert ("rows", "Rows", "", "A number for a test.") in describe_metrics()


def test_every_metric_says_what_it_is():
    for name, m in METRICS.items():
        assert m.name == name and m.title and m.about.endswith(".") and m.modalities
        assert all(n.title and n.about.endswith(".") and n.target in ("prior", "posterior", None) for n in m.numbers)
    directions = {name: direction for name, _, direction, _ in describe_metrics()}
    assert directions["fid"] == "lower is better" and directions["speed"] == ""


def test_what_a_method_cannot_do_is_an_error_where_it_was_asked_for(run, monkeypatch):
    def cannot(ev: Evaluation):
        raise NotDefined(ev.method, "infer")

    said = []
    monkeypatch.setattr(Reporter, "say", lambda self, words: said.append(words))
    monkeypatch.setitem(METRICS, "mse", metric("mse", cannot))
    with pytest.raises(NotDefined, match="LatentEBM"):
        evaluate(run, ("mse",), device="cpu", pictures=False)
    numbers = evaluate(run, samples=20, seed=11, device="cpu", pictures=False)
    assert "frechet" in numbers["metrics"] and len(said) == 1 and "mse" in said[0]


def test_another_sampler_than_the_runs_own(run):
    options = {"samples": 20, "device": "cpu", "pictures": False}
    summary = evaluate(run, ("frechet", "mse"), prior=("noise", 2), posterior=(None, 7), **options)
    assert summary["protocol"]["frechet"]["sampler"]["steps"] == 2
    assert summary["protocol"]["mse"]["steps"] == {"mse": 7, "mse_100": 100}
    with pytest.raises(DataError, match="flow"):
        evaluate(run, ("frechet",), prior=("flow", None), **options)


def test_numbers_on_data_that_have_changed_are_not_kept(tmp_path):
    """The same weights, but the images under the same path are others now."""
    x = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    run = make(tmp_path / "run", "data.name=images", f"data.path={tmp_path / 'x.npy'}", "training.batch=5")
    options = {"samples": 20, "device": "cpu", "pictures": False}
    measured = lambda metric: set(evaluate(run, (metric,), **options)["metrics"])  # noqa: E731
    assert measured("frechet") < measured("mse") == {"frechet", "frechet_gaussian", "mse", "mse_100"}
    np.save(tmp_path / "x.npy", 255 - x)
    assert measured("mse") == {"mse", "mse_100"}


def test_what_was_measured_before_an_interruption_is_kept(tmp_path, monkeypatch):
    folder = make(tmp_path / "run")
    monkeypatch.setitem(METRICS, "rows", metric("rows", lambda ev: {"rows": float(len(ev.test))}))

    def interrupted(ev: Evaluation):
        raise KeyboardInterrupt

    monkeypatch.setitem(METRICS, "never", metric("never", interrupted))
    with pytest.raises(KeyboardInterrupt):
        evaluate(folder, ("rows", "never"), pictures=False)
    kept = json.loads((folder / "metrics.json").read_text())
    assert kept["metrics"] == {"rows": 297.0} and tuple(kept) == KEYS and kept["protocol"]["rows"]["seed"] == 0


def test_of_a_run_without_an_update_a_person_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(METRICS, "rows", metric("rows", lambda ev: {"rows": 1.0}))
    said = []
    monkeypatch.setattr(Reporter, "say", lambda self, words: said.append(words))
    for updates, notes in ((0, 1), (2, 0)):
        run = make(tmp_path / str(updates), f"training.updates={updates}")
        said.clear()
        evaluate(run, ("rows",), pictures=False)
        assert len(said) == notes

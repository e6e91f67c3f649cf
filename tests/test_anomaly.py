"""Scores of a model, the density of normal rows, and the paper's experiment on the embedded digits."""

import copy
import json
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import lebm
from lebm.config import preset_names, resolve
from lebm.core.errors import CheckpointError, ConfigError, DataError
from lebm.core.pixels import as_floats
from lebm.core.progress import Reporter
from lebm.data import load
from lebm.detect import experiment as protocol
from lebm.detect.scores import SCORES, Density, Scorer
from lebm.measure.result import KEYS

TINY = {
    "preset": "digits",
    "nz": 4,
    "generator.ngf": 4,
    "method.energy.width": 8,
    "method.prior_chain.steps": 2,
    "method.posterior_chain.steps": 3,
    "training.batch": 100,
}
ENCODER = {"method.posterior_start.kind": "encoder", "method.posterior_chain.steps": 0}


def tiny(**more):
    return resolve({**TINY, **more})


@pytest.fixture(scope="module")
def models():
    x = load(resolve("digits")).train
    chains = tiny(**{"training.updates": 80})
    encoder = tiny(**{"training.updates": 80, **ENCODER, "optimizers.encoder.rate": 1e-3})
    return {"noise": lebm.train(chains, data=x), "encoder": lebm.train(encoder, data=x)}


# --- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["noise", "encoder"])
@pytest.mark.parametrize("name", [*SCORES, "combined"])
def test_a_score_is_a_function_of_its_row(models, name, start):
    if name == "likelihood" and start == "encoder":
        pytest.skip("the same code for both, and slow")
    x = load(resolve("digits")).test[:7]
    scorer = Scorer(models[start], name, seed=3).fit(load(resolve("digits")).train[:40])
    scores = scorer(x)
    assert (
        scores.shape == (7,)
        and scores.dtype == torch.float64
        and bool(torch.isfinite(scores).all())
        and float(scores.std()) > 0
    )
    torch.testing.assert_close(scorer(x[:3]), scores[:3], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scorer(x.flip(0)).flip(0), scores, rtol=1e-4, atol=1e-4)
    assert bool(torch.equal(scorer(x), scores))


@pytest.mark.parametrize("name", ["error", "joint", "combined"])
def test_noise_is_stranger_than_digits(models, name):
    s = load(resolve("digits"))
    noise = 255 * torch.randint(0, 2, (50, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    scorer = Scorer(models["encoder"], name).fit(s.train[:200])
    assert float(scorer(noise).median()) > float(scorer(s.test).quantile(0.95))


def test_the_paper_s_score_is_the_model_s(models):
    x = load(resolve("digits")).test[:5]
    assert torch.equal(Scorer(models["noise"], "joint", 2)(x), models["noise"].anomaly_score(x, 2).double())


def test_chains_average_over_draws(models):
    x = load(resolve("digits")).test[:5]
    each = [models["noise"].anomaly_score(x, seed) for seed in range(5)]
    torch.testing.assert_close(SCORES["chains"](models["noise"], x, 0), torch.stack(each).mean(0))


def test_an_unknown_score_and_a_missing_calibration(models):
    with pytest.raises(DataError, match="no score is called 'odd'.*joint"):
        Scorer(models["noise"], "odd")
    with pytest.raises(DataError, match="fitted to normal rows"):
        Scorer(models["noise"], "combined")(load(resolve("digits")).test[:5])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", ["error", "prior", "combined"])
def test_a_gpu_gives_the_same_scores(models, name):
    s = load(resolve("digits"))
    here = Scorer(models["encoder"], name).fit(s.train)(s.test)
    model = copy.deepcopy(models["encoder"]).to("cuda")
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        there = Scorer(model, name).fit(s.train)(s.test)
    assert there.device.type == "cpu" and float((here - there).abs().median()) < 0.01 * float(here.std())


# --- the density of normal rows ---------------------------------------------------------------------------------------


def test_the_density_is_exact():
    """Of two known Gaussians it is theirs, up to what 4,000 rows leave uncertain; and it integrates to one."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(
        np.concatenate([rng.normal([0, 0], [1, 2], (2000, 2)), rng.normal([9, 5], [0.5, 0.5], (2000, 2))])
    )
    m = Density.fit(x, components=2)
    normal = torch.distributions.Normal
    each = [
        normal(torch.tensor(a), torch.tensor(b)).log_prob(x.float()).sum(1)
        for a, b in (([0.0, 0.0], [1.0, 2.0]), ([9.0, 5.0], [0.5, 0.5]))
    ]
    want = torch.stack(each).logsumexp(0) - math.log(2)
    assert float((m.log_prob(x) - want).abs().mean()) < 0.06
    side = torch.linspace(-15, 20, 400, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    assert float(m.log_prob(grid).exp().sum()) * (35 / 399) ** 2 == pytest.approx(1, abs=1e-3)


def test_fitting_raises_the_likelihood_and_is_deterministic():
    x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)).double()
    x[:, 2] = x[:, 0].square() + 0.1 * x[:, 2]
    one, many, again = (
        Density.fit(x, components=1),
        Density.fit(x, seed=1, components=20),
        Density.fit(x, seed=1, components=20),
    )
    assert float(many.log_prob(x).mean()) > float(one.log_prob(x).mean()) + 0.5
    assert torch.equal(many.log_prob(x), again.log_prob(x))
    wide = x * torch.tensor([1.0, 10.0, 100.0])
    torch.testing.assert_close(Density.fit(wide, components=1).log_prob(wide) + math.log(1000), one.log_prob(x))


@pytest.mark.parametrize("x", [torch.zeros(1, 2), torch.ones(50, 2), torch.randn(5, 8)])
def test_degenerate_rows_stay_finite(x):
    m = Density.fit(x)
    assert bool(torch.isfinite(m.log_prob(torch.cat([x, x + 100]))).all())
    assert float(m.log_prob(x).min()) > float(m.log_prob(x + 100).max())


# --- the split --------------------------------------------------------------------------------------------------------


def test_the_split_is_the_protocol_s():
    s = load(resolve("digits"))
    x, y = torch.cat([s.train, s.test]), torch.cat([s.train_labels, s.test_labels]).numpy()
    order = np.random.RandomState(42).permutation(np.where(y != 4)[0])
    n = int(0.8 * len(order))
    held = load(resolve({"preset": "digits", "data.held_out": 4}))
    assert torch.equal(held.train, x[order[:n]]) and torch.equal(held.test, torch.cat([x[order[n:]], x[y == 4]]))
    assert 4 not in held.train_labels and (held.test_labels == 4).sum() == (y == 4).sum()
    assert load(resolve({"preset": "digits", "data.held_out": 4, "data.limit": 50})).train.shape[0] == 50


def test_clusters_stand_in_for_labels():
    s = load(resolve({"preset": "digits", "data.held_out": 3, "data.labels": "clusters"}))
    own = load(resolve({"preset": "digits", "data.held_out": 3}))
    assert 3 not in s.train_labels and len(s.train) + len(s.test) == 1797 and int((s.test_labels == 3).sum()) > 50
    assert set(s.test_labels.tolist()) <= set(range(10)) and not torch.equal(s.train[:100], own.train[:100])
    again = load(resolve({"preset": "digits", "data.held_out": 3, "data.labels": "clusters"}))
    assert torch.equal(again.train, s.train) and torch.equal(again.test_labels, s.test_labels)


def test_a_label_that_is_not_there():
    with pytest.raises(DataError, match="data.held_out is 12.*0, 1, 2"):
        load(resolve({"preset": "digits", "data.held_out": 12}))
    with pytest.raises(DataError, match="no labels"):
        load(resolve({"preset": "digits", "data.name": "noise", "data.held_out": 1}))
    with pytest.raises(ConfigError, match="data.held_out"):
        resolve({"preset": "digits", "data.held_out": -1})


@pytest.mark.skipif(not os.environ.get("LEBM_DATA"), reason="needs MNIST under LEBM_DATA")
@pytest.mark.parametrize(("digit", "chance"), [(1, 0.388), (4, 0.351), (5, 0.331), (7, 0.368), (9, 0.356)])
def test_mnist_has_the_published_chance(digit, chance):
    s = load(resolve({"preset": "mnist", "data.held_out": digit}))
    assert protocol.is_anomaly(s, digit).mean() == pytest.approx(chance, abs=5e-4)


# --- the experiment ---------------------------------------------------------------------------------------------------

EXPERIMENT = {"training.updates": 39, "data.limit": 1200, "anomaly.epochs": 2, "anomaly.score": "combined", **ENCODER}


class Lines(Reporter):
    def __init__(self):
        self.lines = []

    def say(self, words):
        self.lines.append(words)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("anomaly") / "runs"
    reporter = Lines()
    summary = protocol.experiment(tiny(**EXPERIMENT), [0, 3], [1, 2], folder, device="cpu", reporter=reporter)
    return folder, summary, reporter.lines


def test_the_experiment_has_the_form_of_a_result(measured):
    folder, summary, lines = measured
    assert set(summary) == set(KEYS)
    assert summary["protocol"]["sampler"]["start"] == "encoder" and summary["protocol"]["sampler"]["steps"] == 0
    assert set(summary["metrics"]["auprc"]) == {"0", "3"} and all(
        0 < m["mean"] <= 1 and m["spread"] > 0 for m in summary["metrics"]["auprc"].values()
    )
    assert summary["metrics"]["chance"]["0"] == pytest.approx(178 / (178 + 324), abs=0.002)
    assert [(p["digit"], p["seed"], len(p["auprc"])) for p in summary["per_seed"]] == [
        (0, 1, 2),
        (0, 2, 2),
        (3, 1, 2),
        (3, 2, 2),
    ]
    every = [v for p in summary["per_seed"] if p["digit"] == 0 for v in p["auprc"]]
    assert summary["metrics"]["auprc"]["0"]["mean"] == pytest.approx(np.mean(every)) and len(set(every)) == 4
    assert summary["metrics"]["auprc"]["0"]["spread"] == pytest.approx(np.std(every, ddof=1))
    assert (folder / "digit-0/seed-1/figures/anomaly.png").stat().st_size > 10_000 and any(
        "4 of 4" in words for words in lines
    )
    assert json.loads((folder / "digit-0/seed-1/anomaly.json").read_text())["epochs"].keys() == {"2", "3"}


def test_done_is_not_done_again(measured, monkeypatch):
    folder, summary, _ = measured
    monkeypatch.setattr(protocol, "train", None)
    again = protocol.experiment(tiny(**EXPERIMENT), [0, 3], [1, 2], folder, device="cpu")
    assert again["metrics"] == summary["metrics"]


def test_an_interrupted_trial_goes_on(measured, tmp_path, monkeypatch):
    config = tiny(**EXPERIMENT, **{"training.checkpoint_every": 12})

    class Cut(Exception):
        pass

    def cut(*args):
        raise Cut

    real = protocol.score_all
    monkeypatch.setattr(protocol, "score_all", cut)
    with pytest.raises(Cut):
        protocol.experiment(config, [0], [1], tmp_path / "r", device="cpu")
    monkeypatch.setattr(protocol, "score_all", real)
    again = protocol.experiment(config, [0], [1], tmp_path / "r", device="cpu")
    assert again["per_seed"][0]["auprc"] == measured[1]["per_seed"][0]["auprc"], "bit for bit what one go gives"


def test_other_settings_in_the_same_folder_are_refused(measured):
    for changed in (
        {"anomaly.score": "joint"},
        {"generator.sigma": 2.0},
        {"optimizers.prior.rate": 0.5},
        {"training.updates": 40},
    ):
        with pytest.raises(CheckpointError, match="choose another --run"):
            protocol.experiment(tiny(**{**EXPERIMENT, **changed}), [0], [1], measured[0], device="cpu")


def test_a_combined_score_is_fitted_to_what_the_run_learned_from(tmp_path, monkeypatch):
    fitted, real = [], protocol.Scorer.fit
    monkeypatch.setattr(protocol.Scorer, "fit", lambda self, x: (fitted.append(x), real(self, x))[1])
    config = tiny(**EXPERIMENT)
    protocol.experiment(config, [0], [1], tmp_path / "r", device="cpu")
    learned = as_floats(load(config.with_values(**{"data.held_out": 0})).train)
    assert len(learned) == 1200 and len(fitted) == 2 and all(torch.equal(x, learned) for x in fitted)


def test_less_than_an_epoch_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="less than one epoch"):
        protocol.experiment(tiny(**{**EXPERIMENT, "training.updates": 3}), [0], [1], tmp_path / "r", device="cpu")


def test_neighbours_are_exact():
    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.integers(0, 256, (n, 1, 4, 4), dtype=np.uint8)) for n in (50, 20))
    x, y = (t.flatten(1).double() / 127.5 - 1 for t in (a, b))
    want = (y[:, None] - x[None]).square().sum(-1).min(1).values
    np.testing.assert_allclose(protocol.squared_distances(a, b, torch.device("cpu")), want, rtol=1e-4, atol=1e-4)


def test_the_neighbours_row():
    summary = protocol.nearest_neighbours(tiny(), [0], device="cpu")
    assert summary["metrics"]["auprc"]["0"]["mean"] > 0.99 and summary["metrics"]["auprc"]["0"]["spread"] is None
    assert summary["name"] == "digits/neighbours"


def test_a_fifth_of_the_anomalies():
    rng = np.random.default_rng(0)
    anomalous = np.arange(5000) < 2500
    numbers = protocol.measure(rng.normal(size=5000), anomalous)
    assert numbers["auprc"] == pytest.approx(0.5, abs=0.03) and numbers["auprc_fifth"] == pytest.approx(1 / 6, abs=0.03)


@pytest.mark.parametrize("name", ["mnist/anomaly", "mnist/anomaly-paper"])
def test_the_presets(name):
    c = resolve(name)
    assert c.data.name == "mnist" and c.data.held_out is None and c.anomaly.epochs == 10
    assert c.method.posterior_start.kind == ("noise" if name.endswith("paper") else "encoder")
    assert c.training.updates >= 20 * 51_000 // c.training.batch, "twenty epochs and more"


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_runs_and_names_every_score(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[1] / "docs" / "anomaly.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.S | re.M)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, "anomaly.md", "exec"), names)
    assert names["detector"].predict(names["odd"]).tolist() == [1]
    assert set(re.findall(r"^\| `(\w+)` \|", page, flags=re.M)) == {*SCORES, "combined"}
    assert set(re.findall(r"--preset (\S+)", page)) <= set(preset_names())


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_command(tmp_path, call):
    values = {k: v for k, v in {**TINY, **EXPERIMENT}.items() if k != "preset"}
    sets = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    words = ["anomaly", "--preset", "digits", "--digits", "0", "--run", tmp_path / "r"]
    printed = call(*words, "--result", tmp_path / "r.json", *sets)
    assert "AUPRC" in printed.out and "chance" in printed.out and "digit 0, seed 1 (1 of 1)" in printed.err
    assert json.loads((tmp_path / "r.json").read_text())["command"].startswith("lebm anomaly")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--digits", "1;2"], "--digits"),
        (["--digits", "1,1"], "different"),
        (["--seeds", ""], "--seeds"),
        (["--digits", "12", "--preset", "digits"], "data.held_out is 12"),
        (["--preset", "mnist/anomaly"], "mnist cannot be read"),
        (["--result", "x.txt"], ".json"),
    ],
)
def test_mistakes_are_one_sentence(words, complaint, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEBM_DATA", raising=False)
    assert complaint in call("anomaly", *words, code=2).err and not (tmp_path / "runs").exists()

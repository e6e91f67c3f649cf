"""Chains, diagnostics, paths and neighbours: right on cases with a known answer, kept in the run folder, robust."""

import io
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

import lebm
from lebm import analysis, figures
from lebm.analysis import chains, diagnostics, longrun, paths
from lebm.analysis.diagnostics import Signs, verdict
from lebm.config import resolve
from lebm.errors import CheckpointError, ConfigError, DataError
from lebm.evaluate import energy_profile
from lebm.evaluation import Evaluation
from lebm.image_metrics import frechet_after

CONFIG = {"preset": "digits", "training.steps": 20, "chains.prior.steps": 8, "chains.posterior.steps": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("analysis") / "digits"
    lebm.train(CONFIG, run=folder)
    return folder


@pytest.fixture
def subject(run):
    return analysis.Subject(run, "cpu")


@pytest.fixture(scope="module")
def model():
    return lebm.LatentEBM(resolve("digits"))


# --- chains -----------------------------------------------------------------------------------------------------------


def test_a_walk_is_seen_at_the_steps_asked_for(model):
    w = chains.walk(model, steps=25, every=10, rows=3)
    assert w.steps == [0, 10, 20, 25] and w.z.shape == (4, 3, 16) and w.pixels.shape == (4, 3, 1, 8, 8)
    assert w.energy.shape == (26, chains.WATCHED) and w.length == 25
    with torch.no_grad():
        assert np.allclose(w.energy[w.steps, :3], -model.prior.f(w.z), atol=1e-4)  # the pictures and the profile are of the same chains
        assert torch.equal(w.pixels[2], lebm.generators.image.to_pixels(model.decode(w.z[2])))


def test_more_rows_or_steps_leave_the_chains_as_they_are(model):
    small, large = chains.walk(model, 10, 5, 2), chains.walk(model, 20, 10, 6)
    assert torch.allclose(small.z[-1], large.z[1, :2], atol=1e-5)
    assert not torch.allclose(small.z[-1], chains.walk(model, 10, 5, 2, seed=1).z[-1])


def test_chains_of_a_known_prior_reach_its_energy(model):
    """With f = 3 z_1 the prior is N(3 e_1, I): the mean energy goes from 0 to -9 (a little off: steps of finite size)."""
    known = lebm.LatentEBM(resolve("digits"))
    known.prior.tilt = lambda z: 3 * z[..., 0]
    known.prior.white_score = lambda z: torch.cat([3 - z[:, :1], -z[:, 1:]], 1)
    energy = chains.walk(known, steps=150, every=150, rows=1).energy.mean(1)
    assert abs(energy[0]) < 5 * 3 / math.sqrt(chains.WATCHED)
    assert energy[60:].mean() == pytest.approx(-9, abs=0.5)


@pytest.mark.parametrize("bad", [{"steps": -1}, {"every": 0}, {"rows": 0}, {"rows": 201}])
def test_walks_that_cannot_be(model, bad):
    with pytest.raises(ConfigError, match="at least 1"):
        chains.walk(model, **bad)


def test_a_walk_of_no_steps_is_its_start(model):
    w = chains.walk(model, steps=0, every=1, rows=3)
    assert w.steps == [0] and torch.equal(w.z[0], chains.walk(model, 5, 5, 3).z[0])


def test_drawn_chains_are_figure_animation_and_data(subject):
    kept = chains.draw(subject, steps=12, every=4, rows=5)
    with Image.open(subject.run / "figures" / "chains.webp") as film:
        assert film.n_frames == 4 and film.is_animated
    with np.load(subject.run / "chains.npz", allow_pickle=False) as data:
        assert data["steps"].tolist() == kept["steps"] == [0, 4, 8, 12]
        assert data["pixels"].shape == (4, 5, 1, 8, 8) and data["energy"].shape == (13, 200) and data["z"].shape == (4, 5, 16)
        with Image.open(subject.run / "figures" / "chains-frames.png") as sheet:
            frames = np.asarray(sheet.convert("L"))  # what the report's window shows, a row a frame
        assert frames.shape == (32, 40) and np.array_equal(frames[8:16, 16:24], data["pixels"][1, 2, 0])
    with Image.open(subject.run / "figures" / "chains.png") as figure:
        assert figure.width > 800
    assert np.shape(kept["shown"]) == (4, 5) and len(kept["profile"]["step"]) == 13


def test_a_long_profile_is_thinned_and_keeps_its_ends():
    p = chains.profile(np.arange(2501.0)[:, None].repeat(5, 1))
    assert len(p["step"]) == 250 and p["step"][0] == 0 and p["step"][-1] == 2500 and p["middle"][-1] == 2500


def test_an_animation_holds_its_last_frame():
    frames = np.random.default_rng(0).integers(0, 256, (3, 4, 3, 8, 8), dtype=np.uint8)
    with Image.open(io.BytesIO(figures.animation(frames, [0, 5, 10]))) as film:
        assert film.n_frames == 3
        film.seek(2)
        film.load()
        assert film.info["duration"] == 1500


# --- the long run -----------------------------------------------------------------------------------------------------


def test_the_long_run_compares_two_lengths_by_one_measure(subject):
    found = longrun.measure(subject, steps=30, samples=200)
    a, b, ratio = found["metrics"].values()
    assert list(found["metrics"]) == ["frechet_8", "frechet_30", "long_run_ratio"] and ratio == pytest.approx(b / a)
    assert found["protocol"]["long_run"]["chain_steps"] == [8, 30] and found["protocol"]["long_run"]["samples"] == 200
    for steps in (8, 5):
        with pytest.raises(ConfigError, match=f"after {steps} steps .* K0 = 8; give more than 8"):
            longrun.measure(subject, steps=steps, samples=200)


def test_the_long_run_with_features_of_ones_own(subject, tmp_path, monkeypatch):
    class Pixels:
        name, precision = "pixels", "float64"

        def __call__(self, pixels):
            return pixels.flatten(1).double()

    monkeypatch.setenv("LEBM_CACHE", str(tmp_path))
    found = longrun.measure(subject, steps=12, samples=150, metric="fid", features=Pixels())
    assert list(found["metrics"])[:2] == ["fid_8", "fid_12"]


def test_the_long_run_in_words():
    how = {"protocol": {"long_run": {"start": "N(0, I)"}}}
    result = {"metrics": {"fid_60": 30.0, "fid_2500": 42.0, "long_run_ratio": 1.4}, **how}
    assert "passed" in longrun.words(result) and "1.40 times" in longrun.words(result)
    assert "failed" in longrun.words({"metrics": {"fid_60": 30.0, "fid_2500": 60.0, "long_run_ratio": 2.0}, **how})


def test_an_unknown_measure_is_refused(subject):
    with pytest.raises(ConfigError, match="fid or frechet"):
        longrun.measure(subject, metric="kid")


# --- diagnostics ------------------------------------------------------------------------------------------------------

CALM = Signs(moved=1.2, drift=0.02, beyond=0.1, settled=20, steps=(60, 600), saturation=(0.1, 0.1), size=(1.0, 1.1), variety=(0.5, 0.5))


@pytest.mark.parametrize(
    ("change", "word", "number"),
    [
        ({}, "steady", "0.02"),
        ({"moved": 0.01}, "frozen", "0.01"),
        ({"drift": -0.8}, "drifting", "0.80"),
        ({"beyond": -3.2, "settled": 150}, "drifting", "step 150"),
        ({"saturation": (0.1, 0.6)}, "oversaturated", "60.0%"),
        ({"size": (1.0, 9.0)}, "oversaturated", "9.00"),
        ({"drift": float("nan")}, "drifting", "finite"),
    ],
)
def test_verdicts_say_their_numbers(change, word, number):
    found, sentence = verdict(Signs(**{**CALM.__dict__, **change}))
    assert found == word and number in sentence


def judged(score, f, k0=20, step_size=0.4):
    """The verdict on a prior with this f and score."""
    model = lebm.LatentEBM(resolve({"preset": "digits", "chains.prior.steps": k0, "chains.prior.step_size": step_size}))
    model.prior.tilt, model.prior.white_score = f, score
    energy, states = diagnostics.follow(model, 400, k0, 0)
    return verdict(diagnostics.signs(model, energy, states, k0))[0]


def test_real_chains_get_the_verdict_they_deserve():
    tilt = lambda a: (lambda z: a - z, lambda z: (a * z).sum(-1))  # noqa: E731
    assert judged(*tilt(0.3), k0=60) == "steady"
    assert judged(*tilt(0.3), step_size=0.001) == "frozen"
    assert judged(*tilt(0.9), k0=3) == "drifting"  # K0 is far too short
    assert judged(lambda z: 0.06 * z, lambda z: 0.53 * z.square().sum(-1)) == "oversaturated"  # no ground: z runs away


@pytest.mark.filterwarnings("error")
def test_a_diagnosis_has_every_part(subject, rough_log_z):
    d = json.loads(json.dumps(diagnostics.diagnose(subject)))
    assert d["verdict"] in ("steady", "drifting", "frozen", "oversaturated") and d["chain"]["steps"] == 400
    assert d["statistics"]["split_rhat"] >= 0.99 and d["statistics"]["ess"] > 0 and d["autocorrelation"][0] == 1
    width = d["f"]["edges"][1] - d["f"]["edges"][0]
    for name in ("prior", "posterior", "base"):
        assert sum(d["f"][name]["density"]) * width == pytest.approx(1, abs=0.05)
        assert len(d["view"][name]) == diagnostics.SHOWN
    assert all(len(v) == 16 for v in d["tilt"].values()) and d["log_z"]["error"] >= 0


def test_a_fixed_prior_is_steady():
    model = lebm.LatentEBM(resolve({"preset": "digits", "prior.kind": "gaussian"}))
    energy, states = diagnostics.follow(model, 400, 60, 0)
    assert verdict(diagnostics.signs(model, energy, states, 60))[0] == "steady" and np.ptp(energy) == 0


# --- runs that draw z in ways of their own ----------------------------------------------------------------------------

STARTS = {"langevin": "N(0, I)", "persistent": "the kept chains of learning", "flow": "the flow's draws", "warm": "the flow's proposals"}


@pytest.fixture(scope="module", params=STARTS)
def drawn(request, tmp_path_factory):
    """A run by that way, and its name. A flow's draws are moved far away, so that they cannot be taken for p_0."""
    if request.param in ("flow", "warm"):
        pytest.importorskip("zuko")
    folder = tmp_path_factory.mktemp("ways") / request.param
    config = {**CONFIG, "draw.prior": request.param, "draw.chains": 600, "training.steps": 8, "flow.width": 8, "flow.layers": 2}
    model = lebm.train(config, run=folder)
    if request.param in ("flow", "warm"):
        model.synthesis.q.shift.data.fill_(3)
        model.save(folder / "model.safetensors", {"step": 8})
    return analysis.Subject(folder, "cpu"), request.param


def test_chains_start_where_the_runs_own_do(drawn):
    subject, way = drawn
    model, k0 = subject.model, subject.model.config.chains.prior.steps
    z = chains.walk(model, steps=max(k0, 1), every=100, rows=200).z[0]
    _, (start, short, _) = diagnostics.follow(model, 20, k0, 0)
    profile = energy_profile(model, 0, 3)[0]
    if way == "persistent":
        assert torch.allclose(z, model.synthesis.z[:200]) and torch.equal(start, model.synthesis.z[:500])
        assert np.allclose(profile, -model.prior.f(model.synthesis.z[:200]).detach().numpy(), atol=1e-5)
    else:
        far = 0 if way == "langevin" else 3
        assert float(z.mean()) == pytest.approx(far, abs=0.2) == pytest.approx(float(start.mean()), abs=0.2)
    assert chains.start_of(model) == STARTS[way]
    if way == "flow":
        assert k0 == 0 and torch.equal(start, short)


def test_a_diagnosis_is_of_the_runs_own_draws_and_names_its_ways(drawn, rough_log_z):
    subject, way = drawn
    d = diagnostics.diagnose(subject)
    subject.keep("diagnostics", d)
    kept = analysis.read(subject.run)["diagnostics"]
    assert kept["drawn"]["prior"]["by"] == way and kept["drawn"]["posterior"]["by"] == "langevin" and kept["chain"]["start"] == STARTS[way]
    assert (STARTS[way] in d["words"]) or way == "langevin"
    assert ("no prior chain (K0 = 0)" in d["words"]) == (way == "flow") and "From K0 = 0" not in d["words"]
    f = subject.model.prior.f(next(subject.model.sample_z(500))).detach()
    assert d["f"]["prior"]["mean"] == pytest.approx(float(f.mean()), abs=6 * float(f.std()) / 500**0.5 + 1e-3)
    assert (d["f"]["prior"] == d["f"]["base"]) is False
    if way in ("flow", "warm"):  # p_0 stays p_0
        assert np.mean(d["view"]["base"]) != pytest.approx(np.mean(d["view"]["prior"]), abs=1)


def test_the_long_run_goes_on_from_the_runs_own_samples(drawn):
    subject, way = drawn
    k0 = subject.model.config.chains.prior.steps
    found = longrun.measure(subject, steps=30, samples=200)
    ev = Evaluation(subject.model, subject.splits, 200)
    by = {"flow": "warm"}.get(way, way)
    assert list(found["metrics"].values())[:2] == [frechet_after(ev, None, way), frechet_after(ev, 30, by)]
    how = found["protocol"]["long_run"]
    assert (how["by"], how["start"], how["chain_steps"]) == (way, STARTS[way], [k0, 30])
    words = longrun.words(found)
    assert f"after 30 steps from {STARTS[way]} " in words and ("K0 = 0" not in words)


def test_the_long_run_is_equally_long_for_all_samples(drawn):
    """More samples than kept chains would take further rounds, each longer than the one before."""
    subject, way = drawn
    kept = subject.model.drawing("prior").kept
    assert (kept > 0) == (way == "persistent")
    how = longrun.measure(subject, steps=30, samples=700)["protocol"]["long_run"]
    assert how["samples"] == (kept or 700) and how["chain_steps"][1] == 30


def test_what_was_found_from_p0_is_asked_again_where_the_run_starts_elsewhere(drawn):
    subject, way = drawn
    (subject.run / analysis.FILE).write_text(json.dumps({"chains": {"updates": subject.model.step}}))
    assert subject.knows("chains") == (way == "langevin")
    subject.keep("chains", {})
    assert subject.knows("chains")


# --- paths and neighbours ---------------------------------------------------------------------------------------------


def test_a_path_starts_and_ends_where_it_should():
    a, b = torch.randn(5, 9), torch.randn(5, 9)
    path = paths.between(a, b, 7)
    assert torch.allclose(path[:, 0], a, atol=1e-5) and torch.allclose(path[:, -1], b, atol=1e-5)
    lengths = path.norm(dim=-1)
    low, high = torch.minimum(a.norm(dim=1), b.norm(dim=1)), torch.maximum(a.norm(dim=1), b.norm(dim=1))
    assert bool((lengths > low[:, None] - 1e-4).all()) and bool((lengths < high[:, None] + 1e-4).all())


def test_paths_without_a_plane():
    a = torch.tensor([[1.0, 0.0]])
    assert torch.allclose(paths.between(a, 3 * a, 3)[0], torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]))
    assert bool(torch.isfinite(paths.between(a, -a, 5)).all()) and bool(torch.isfinite(paths.between(a, 0 * a, 5)).all())


def test_interpolation_decodes_the_path(model):
    x = torch.rand(4, 1, 8, 8) * 2 - 1
    z, between = paths.interpolate(model, x[:2], x[2:], 5)
    assert z.shape == (2, 5, 16) and between.shape == (2, 5, 1, 8, 8)
    assert torch.allclose(between[:, 0], model.reconstruct(x[:2]), atol=1e-5)
    with pytest.raises(DataError, match="as many"):
        paths.interpolate(model, x[:1], x[1:3])
    with pytest.raises(DataError, match="at least 2"):
        paths.interpolate(model, x[:1], x[1:2], 1)


@pytest.mark.parametrize("side", [8, 16])
def test_nearest_finds_planted_copies(side, monkeypatch):
    monkeypatch.setattr(paths, "PIECE", 17)
    images = torch.randint(0, 256, (100, 1, side, side), dtype=torch.uint8)
    x = lebm.generators.image.to_x(images[[3, 96, 40]])
    d, places = paths.nearest(x, images, 4)
    assert places[:, 0].tolist() == [3, 96, 40] and float(d[:, 0].max()) < 0.01
    every = (x.flatten(1)[:, None] - lebm.generators.image.to_x(images).flatten(1)).square().mean(-1).sqrt()
    assert torch.allclose(d, every.sort(1)[0][:, :4], atol=1e-3)
    assert paths.nearest(x, images[:2], 5)[0].shape == (3, 2)


def test_copies_are_seen_and_originals_are_not(subject, monkeypatch):
    honest = paths.find_neighbours(subject)
    assert "No sign" in paths.words(honest) and honest["nearer_than_test"] < 0.05
    train = lebm.generators.image.to_x(subject.splits.train)
    monkeypatch.setattr(subject.model, "sample", lambda n, *a, **k: train[:n])
    copied = paths.find_neighbours(subject)
    assert copied["nearer_than_test"] == 1 and copied["median_sample"] < 1e-3 and "may be copies" in paths.words(copied)


# --- the run folder ---------------------------------------------------------------------------------------------------


def test_what_is_known_is_not_asked_again_until_the_weights_change(run, monkeypatch):
    subject = analysis.Subject(run, "cpu")
    asked = []
    monkeypatch.setattr(analysis, "PARTS", {name: lambda s, n=name: asked.append(n) or {"n": n} for name in ("a", "b")})
    assert analysis.complete(subject) == [] and asked == ["a", "b"]
    analysis.complete(subject)
    assert asked == ["a", "b"] and {**analysis.read(run)["a"], "drawn": 0} == {"updates": 20, "n": "a", "drawn": 0}
    subject.model.step = 40
    analysis.complete(subject)
    assert asked == ["a", "b", "a", "b"]


def test_without_data_the_rest_is_still_done(tmp_path):
    run = tmp_path / "own"
    lebm.train({**CONFIG, "training.steps": 1}, data=np.zeros((20, 1, 8, 8), dtype=np.uint8), run=run)
    notes = analysis.complete(analysis.Subject(run, "cpu"))
    assert [n.split(":")[0] for n in notes] == ["diagnostics", "neighbours", "interpolation"] and set(analysis.read(run)) == {"chains"}


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", "[" * 100000])
def test_a_damaged_analysis_counts_as_none(tmp_path, content):
    (tmp_path / "analysis.json").write_text(content)
    assert analysis.read(tmp_path) == {}


def test_a_file_is_no_run_folder(run):
    with pytest.raises(CheckpointError, match="run folder"):
        analysis.Subject(run / "model.safetensors", "cpu")

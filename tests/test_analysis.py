"""Chains, diagnostics, paths and neighbours: right on cases with a known answer, written into the run folder, robust."""

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from lebm.config import resolve
from lebm.config.build import build
from lebm.core.errors import CheckpointError, ConfigError, DataError
from lebm.core.pixels import to_pixels, to_x
from lebm.extensions.bases import MixtureBase
from lebm.latent_ebm import LatentEBM
from lebm.measure import analysis, chains, diagnostics, draw, inception, longrun, neighbours, paths
from lebm.measure.chains import energy_profile
from lebm.measure.diagnostics import Signs, verdict
from lebm.measure.fid import frechet_of
from lebm.measure.metric import Evaluation
from lebm.run import save
from lebm.sampler import SamplerSpec
from lebm.show.pictures import animation
from lebm.training.train import train

CONFIG = {
    **{"preset": "digits", "training.updates": 20},
    **{"method.prior_chain.steps": 8, "method.posterior_chain.steps": 4},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("analysis") / "digits"
    train(CONFIG, run=folder)
    return folder


@pytest.fixture
def subject(run):
    return analysis.Subject(run, "cpu")


@pytest.fixture(scope="module")
def model():
    return build(resolve("digits"))


# --- chains -----------------------------------------------------------------------------------------------------------


def test_chains_are_traced_at_the_steps_asked_for(model):
    t = chains.trace(model, steps=25, every=10, rows=3)
    assert t.steps == [0, 10, 20, 25] and t.z.shape == (4, 3, 16)
    assert t.energy.shape == (26, chains.WATCHED)
    pixels = draw.frames(model.decode(t.z.flatten(0, 1)), t)
    assert pixels.shape == (4, 3, 1, 8, 8)
    with torch.no_grad():
        # The pictures and the profile are of the same chains.
        assert np.allclose(t.energy[t.steps, :3], -model.prior.f(t.z), atol=1e-4)
        assert torch.equal(pixels[2], to_pixels(model.decode(t.z[2])))


def test_more_rows_or_steps_leave_the_chains_as_they_are(model):
    small, large = chains.trace(model, 10, 5, 2), chains.trace(model, 20, 10, 6)
    assert torch.allclose(small.z[-1], large.z[1, :2], atol=1e-5)
    assert not torch.allclose(small.z[-1], chains.trace(model, 10, 5, 2, seed=1).z[-1])


class Energy(torch.nn.Module):
    """f by its value and gradient."""

    def __init__(self, f, gradient):
        super().__init__()
        self.f, self.score = f, gradient

    def forward(self, z):
        return self.f(z)


def test_chains_of_a_known_prior_reach_its_energy():
    """With f = 3 z_1 the prior is N(3 e_1, I): the mean energy goes from 0 to -9 (a little off: steps of finite size)."""
    known = build(resolve("digits"))
    first = torch.eye(known.prior.nz)[:1]
    known.prior.energy = Energy(lambda z: 3 * z[..., 0], lambda z: (3 * first).expand_as(z))
    energy = chains.trace(known, steps=150, every=150, rows=1).energy.mean(1)
    assert abs(energy[0]) < 5 * 3 / math.sqrt(chains.WATCHED)
    assert energy[60:].mean() == pytest.approx(-9, abs=0.5)


@pytest.mark.parametrize("bad", [{"steps": -1}, {"every": 0}, {"rows": 0}, {"rows": 201}])
def test_traces_that_cannot_be(model, bad):
    with pytest.raises(ConfigError, match="at least 1"):
        chains.trace(model, **bad)


def test_a_trace_of_no_steps_is_its_start(model):
    t = chains.trace(model, steps=0, every=1, rows=3)
    assert t.steps == [0] and torch.equal(t.z[0], chains.trace(model, 5, 5, 3).z[0])


def test_drawn_chains_are_figure_animation_and_data(subject):
    part, run = analysis.chains(subject, steps=12, every=4, rows=5), subject.run
    with Image.open(run.figures / "chains.webp") as film:
        assert film.n_frames == 4 and film.is_animated
    with np.load(run.path / "chains.npz", allow_pickle=False) as data:
        assert data["steps"].tolist() == part["steps"] == [0, 4, 8, 12]
        assert data["pixels"].shape == (4, 5, 1, 8, 8)
        assert data["energy"].shape == (13, 200) and data["z"].shape == (4, 5, 16)
        with Image.open(run.figures / "chains-frames.png") as sheet:
            frames = np.asarray(sheet.convert("L"))  # what the report's window shows, a row a frame
        assert frames.shape == (32, 40) and np.array_equal(frames[8:16, 16:24], data["pixels"][1, 2, 0])
    with Image.open(run.figures / "chains.png") as figure:
        assert figure.width > 800
    assert np.shape(part["shown"]) == (4, 5) and len(part["profile"]["step"]) == 13 and part["tile"] == [8, 8]
    spec = SamplerSpec.from_dict(part["sampler"])
    assert (spec.steps, spec.step_size, part["trained"]) == (12, 0.4, 8)


def test_a_long_profile_is_thinned_and_keeps_its_ends():
    p = chains.profile(np.arange(2501.0)[:, None].repeat(5, 1))
    assert len(p["step"]) == 250 and p["step"][0] == 0 and p["step"][-1] == 2500 and p["middle"][-1] == 2500


def test_an_animation_holds_its_last_frame():
    frames = np.random.default_rng(0).integers(0, 256, (3, 4, 3, 8, 8), dtype=np.uint8)
    with Image.open(io.BytesIO(animation(frames, [0, 5, 10]))) as film:
        assert film.n_frames == 3
        film.seek(2)
        film.load()
        assert film.info["duration"] == 1500


# --- the long run -----------------------------------------------------------------------------------------------------


def test_the_long_run_compares_two_lengths_by_one_measure(subject):
    summary = longrun.measure(subject, steps=30, samples=200)
    a, b, ratio = summary["metrics"].values()
    assert list(summary["metrics"]) == ["frechet_8", "frechet_30", "long_run_ratio"] and ratio == pytest.approx(b / a)
    how = summary["protocol"]["long_run"]
    assert how["steps"] == {"frechet_8": 8, "frechet_30": 30} and how["samples"] == 200
    for steps in (8, 5):
        with pytest.raises(ConfigError, match=f"after {steps} steps .* K0 = 8; give more than 8"):
            longrun.measure(subject, steps=steps, samples=200)


def test_the_long_run_with_other_features(subject, tmp_path, monkeypatch):
    class Pixels:
        name, precision = "pixels", "float64"

        def __call__(self, pixels):
            return pixels.flatten(1).double()

    monkeypatch.setenv("LEBM_CACHE", str(tmp_path))
    monkeypatch.setattr(inception, "load", lambda root, device: Pixels())
    summary = longrun.measure(subject, steps=12, samples=150, metric="fid")
    assert list(summary["metrics"])[:2] == ["fid_8", "fid_12"]


def test_the_long_run_in_words():
    spec = SamplerSpec("prior", "noise", 60, 0.4)
    protocol = {"long_run": {"sampler": spec.to_dict(), "steps": {"fid_60": 60, "fid_2500": 2500}}}
    summary = {"metrics": {"fid_60": 30.0, "fid_2500": 42.0, "long_run_ratio": 1.4}, "protocol": protocol}
    words = longrun.in_words(summary)
    assert "passed" in words and "1.40 times" in words
    assert replace(spec, steps=2500).in_words() in words and spec.in_words() in words
    metrics = {"fid_60": 30.0, "fid_2500": 60.0, "long_run_ratio": 2.0}
    assert "failed" in longrun.in_words({"metrics": metrics, "protocol": protocol})


def test_an_unknown_measure_is_refused(subject):
    with pytest.raises(ConfigError, match="fid or frechet"):
        longrun.measure(subject, metric="kid")


# --- diagnostics ------------------------------------------------------------------------------------------------------

CALM = Signs(
    moved=1.2,
    drift=0.02,
    beyond=0.1,
    level_from=20,
    steps=(60, 600),
    saturation=(0.1, 0.1),
    size=(1.0, 1.1),
    variety=(0.5, 0.5),
)


@pytest.mark.parametrize(
    ("change", "word", "number"),
    [
        ({}, "steady", "0.02"),
        ({"moved": 0.01}, "frozen", "0.01"),
        ({"drift": -0.8}, "drifting", "0.80"),
        ({"beyond": -3.2, "level_from": 150}, "drifting", "step 150"),
        ({"saturation": (0.1, 0.6)}, "oversaturated", "60.0%"),
        ({"size": (1.0, 9.0)}, "oversaturated", "9.00"),
        ({"drift": float("nan")}, "drifting", "finite"),
    ],
)
def test_verdicts_say_their_numbers(change, word, number):
    judged_as, sentence = verdict(replace(CALM, **change))
    assert judged_as == word and number in sentence


def judged(score, f, k0=20, step_size=0.4):
    """The verdict on a prior with this f and the score of f + log p_0."""
    settings = {"method.prior_chain.steps": k0, "method.prior_chain.step_size": step_size}
    model = build(resolve({"preset": "digits", **settings}))
    model.prior.energy = Energy(f, lambda z: score(z) + z)
    energy, states = diagnostics.follow(model, 400, k0, 0)
    return verdict(diagnostics.read_signs(model, energy, states, k0))[0]


def test_real_chains_get_the_verdict_they_deserve():
    tilt = lambda a: (lambda z: a - z, lambda z: (a * z).sum(-1))  # noqa: E731
    assert judged(*tilt(0.3), k0=60) == "steady"
    assert judged(*tilt(0.3), step_size=0.001) == "frozen"
    assert judged(*tilt(0.9), k0=3) == "drifting"  # K0 is far too short
    assert judged(lambda z: 0.06 * z, lambda z: 0.53 * z.square().sum(-1)) == "oversaturated"  # z runs away


@pytest.mark.filterwarnings("error")
def test_a_diagnosis_has_every_part(subject, rough_log_z):
    d = json.loads(json.dumps(analysis.diagnose(subject)))
    assert d["verdict"] in ("steady", "drifting", "frozen", "oversaturated") and d["chain"]["steps"] == 400
    assert d["statistics"]["split_rhat"] >= 0.99 and d["statistics"]["ess"] > 0 and d["autocorrelation"][0] == 1
    width = d["f"]["edges"][1] - d["f"]["edges"][0]
    for name in ("prior", "posterior", "base"):
        assert sum(d["f"][name]["density"]) * width == pytest.approx(1, abs=0.05)
        assert len(d["view"][name]) == diagnostics.SHOWN
    assert all(len(v) == 16 for v in d["tilt"].values()) and d["log_z"]["error"] >= 0


def test_a_fixed_prior_is_steady():
    model = build(resolve({"preset": "digits", "method.energy": None, "method.prior_chain.steps": 0}))
    model.prior_chain = replace(model.prior_chain, steps=60)
    energy, states = diagnostics.follow(model, 400, 60, 0)
    assert verdict(diagnostics.read_signs(model, energy, states, 60))[0] == "steady" and np.ptp(energy) == 0


# --- runs whose prior chains start elsewhere ---------------------------------------------------------------------------

FLOW = {"method.prior_start.kind": "flow", "method.prior_start.width": 8, "method.prior_start.layers": 2}
STARTS = {
    "noise": {},
    "replay": {"method.prior_start.kind": "replay", "method.prior_start.chains": 600},
    "flow": {**FLOW, "method.prior_start.objective": "reverse_kl", "method.prior_chain.steps": 0},
    "flow and chain": {**FLOW, "method.prior_start.objective": "forward_kl"},
}


@pytest.fixture(scope="module", params=STARTS)
def drawn(request, tmp_path_factory):
    """A run with that start, and its name. A flow's draws are moved far away, so that they cannot be taken for p_0."""
    if "flow" in request.param:
        pytest.importorskip("zuko")
    folder = tmp_path_factory.mktemp("starts") / request.param
    model = train({**CONFIG, "training.updates": 8, **STARTS[request.param]}, run=folder)
    if "flow" in request.param:
        model.prior_start.q.shift.data.fill_(3)
        model.updates = 8
        save(model, folder / "model.safetensors")
    return analysis.Subject(folder, "cpu"), request.param


def test_chains_start_where_the_runs_own_do(drawn):
    subject, name = drawn
    method, k0 = subject.method, subject.method.prior_chain.steps
    t = chains.trace(method, steps=max(k0, 1), every=100, rows=200)
    z = t.z[0]
    _, (start, short, _) = diagnostics.follow(method, 20, k0, 0)
    profile = energy_profile(method, 0, 3)[0]
    if name == "replay":
        buffer = method.prior_start.z
        assert torch.allclose(z, buffer[:200]) and torch.equal(start, buffer[:500])
        assert np.allclose(profile, -method.prior.f(buffer[:200]).detach().numpy(), atol=1e-5)
    else:
        far = 0 if name == "noise" else 3
        assert float(z.mean()) == pytest.approx(far, abs=0.2) == pytest.approx(float(start.mean()), abs=0.2)
    assert method.choose("prior").start == name.split()[0]
    if name == "flow":
        assert k0 == 0 and torch.equal(start, short)


def test_a_diagnosis_is_of_the_runs_own_draws_and_names_their_sampler(drawn, rough_log_z):
    subject, name = drawn
    own = subject.method.choose("prior")
    d = analysis.diagnose(subject)
    subject.write("diagnostics", d)
    part = analysis.result.read(subject.file)["diagnostics"]
    spec = SamplerSpec.from_dict(part["sampler"])
    assert replace(spec, steps=own.steps) == own and spec.steps == part["chain"]["steps"]
    assert (own.in_words().removeprefix("by ") in d["words"]) == (name != "noise") and "From K0 = 0" not in d["words"]
    f = subject.method.prior.f(next(subject.method.sample_z(500))).detach()
    spread = 6 * float(f.std()) / 500**0.5 + 1e-3
    assert d["f"]["prior"]["mean"] == pytest.approx(float(f.mean()), abs=spread)
    assert (d["f"]["prior"] == d["f"]["base"]) is False
    if "flow" in name:  # p_0 stays p_0
        assert np.mean(d["view"]["base"]) != pytest.approx(np.mean(d["view"]["prior"]), abs=1)


def test_the_long_run_goes_on_from_the_runs_own_samples(drawn):
    subject, _ = drawn
    method, own = subject.method, subject.method.choose("prior")
    summary = longrun.measure(subject, steps=30, samples=200)
    ev = Evaluation(method, subject.splits, 200)
    expected = [frechet_of(ev, own), frechet_of(ev, replace(own, steps=30))]
    assert list(summary["metrics"].values())[:2] == expected
    how = summary["protocol"]["long_run"]
    assert how["sampler"] == own.to_dict() and list(how["steps"].values()) == [own.steps, 30]
    words = longrun.in_words(summary)
    assert replace(own, steps=30).in_words() in words and own.in_words() in words and "K0 = 0" not in words


def test_the_long_run_is_equally_long_for_all_samples(drawn):
    """More samples than replayed chains would take further rounds, each longer than the one before."""
    subject, name = drawn
    replayed = subject.method.choose("prior").replay_chains
    assert (replayed > 0) == (name == "replay")
    how = longrun.measure(subject, steps=30, samples=700)["protocol"]["long_run"]
    assert how["samples"] == (replayed or 700) and list(how["steps"].values())[1] == 30


def test_chains_over_a_mixture_are_those_of_the_prior():
    """The energy along the chains is that of z, not of the whitened u, and their start is a draw of the mixture."""
    method = build(resolve({"preset": "digits", "method.base.kind": "mixture"}))
    assert isinstance(method, LatentEBM) and isinstance(method.prior.base, MixtureBase)
    z = torch.randn(4000, 16) * 2 + 1
    for _ in range(300):
        method.prior.base.observe(z)
    method.prior.base.refit()
    t = chains.trace(method, 5, 5, 200)
    with torch.no_grad():
        assert np.allclose(t.energy[0], -method.prior.f(t.z[0]), atol=1e-4)
    assert float(t.z[0].mean()) == pytest.approx(1, abs=0.3)


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
    assert bool(torch.isfinite(paths.between(a, -a, 5)).all()) and bool(
        torch.isfinite(paths.between(a, 0 * a, 5)).all()
    )


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
    monkeypatch.setattr(neighbours, "PIECE", 17)
    images = torch.randint(0, 256, (100, 1, side, side), dtype=torch.uint8)
    x = to_x(images[[3, 96, 40]])
    d, places = neighbours.nearest(x, images, 4, convert=to_x)
    assert places[:, 0].tolist() == [3, 96, 40] and float(d[:, 0].max()) < 0.01
    every = (x.flatten(1)[:, None] - to_x(images).flatten(1)).square().mean(-1).sqrt()
    assert torch.allclose(d, every.sort(1)[0][:, :4], atol=1e-3)
    assert neighbours.nearest(x, images[:2], 5, convert=to_x)[0].shape == (3, 2)
    many, _ = neighbours.nearest(to_x(images), images, 1, convert=to_x)
    assert many.shape == (100, 1) and float(many.max()) < 0.01


def test_copies_are_seen_and_originals_are_not(subject, monkeypatch):
    honest = analysis.find_neighbours(subject)
    assert "No sign" in neighbours.in_words(honest) and honest["nearer_than_test"] < 0.05
    train = to_x(subject.splits.train)
    monkeypatch.setattr(subject.method, "sample", lambda n, *a, **k: train[:n])
    copied = analysis.find_neighbours(subject)
    assert copied["nearer_than_test"] == 1 and copied["median_sample"] < 1e-3
    assert "may be copies" in neighbours.in_words(copied)


# --- the run folder ---------------------------------------------------------------------------------------------------


def test_what_is_known_is_not_answered_again_until_the_weights_change(run, monkeypatch):
    subject = analysis.Subject(run, "cpu")
    asked = []
    parts = {name: lambda s, n=name: asked.append(n) or {"n": n} for name in ("a", "b")}
    monkeypatch.setattr(analysis, "PARTS", parts)
    assert analysis.complete(subject) == [] and asked == ["a", "b"]
    analysis.complete(subject)
    assert asked == ["a", "b"] and analysis.result.read(subject.file)["a"] == {"updates": 20, "n": "a"}
    subject.method.updates = 40
    analysis.complete(subject)
    assert asked == ["a", "b", "a", "b"]


def test_without_data_the_rest_is_still_done(tmp_path):
    run = tmp_path / "handed-in"
    train({**CONFIG, "training.updates": 1}, data=np.zeros((20, 1, 8, 8), dtype=np.uint8), run=run)
    subject = analysis.Subject(run, "cpu")
    notes = analysis.complete(subject)
    assert [n.split(":")[0] for n in notes] == ["diagnostics", "neighbours", "interpolation"]
    assert set(analysis.result.read(subject.file)) == {"chains"}


def test_what_a_run_does_not_have_is_left_out_in_silence(tmp_path):
    train({**CONFIG, "training.updates": 1, "method.energy": None, "method.prior_chain.steps": 0}, run=tmp_path / "a")
    subject = analysis.Subject(tmp_path / "a", "cpu")
    assert analysis.complete(subject) == [] and set(analysis.result.read(subject.file)) == {
        "neighbours",
        "interpolation",
    }
    table = {"generator": {"kind": "table", "columns": 2}, "nz": 2, "training.updates": 1, "training.batch": 10}
    train(table, data=np.zeros((20, 2)), run=tmp_path / "b")
    assert [note.split(":")[0] for note in analysis.complete(analysis.Subject(tmp_path / "b", "cpu"))] == [
        "diagnostics"
    ]


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", "[" * 100000])
def test_a_damaged_analysis_counts_as_none(tmp_path, content):
    (tmp_path / "analysis.json").write_text(content)
    assert analysis.result.read(tmp_path / analysis.NAME) == {}


def test_a_file_is_no_run_folder(run):
    with pytest.raises(CheckpointError, match="run folder"):
        analysis.Subject(run / "model.safetensors", "cpu")

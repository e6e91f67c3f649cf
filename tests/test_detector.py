"""The detector as scikit-learn and PyOD users know one: checks, pipelines, errors, files; images and tables."""

import json
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import RobustScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import lebm
from lebm import Detector
from lebm.config import resolve
from lebm.core.errors import CheckpointError
from lebm.core.tensors import load_tensors, save_tensors
from lebm.data import load
from lebm.measure.auprc import auroc

PRIOR = {"method.energy.width": 8, "method.prior_chain.steps": 2}
SMALL = {
    "generator.width": 8,
    "generator.depth": 1,
    "method.posterior_start.width": 8,
    "method.posterior_start.depth": 1,
    **PRIOR,
}
SMALL_IMAGES = {"generator.ngf": 4, "method.posterior_start.width": 4, **PRIOR}


def small(**more):
    return Detector(**{"updates": 3, "nz": 2, "batch": 20, "device": "cpu", "settings": SMALL, **more})


@parametrize_with_checks([small()])
def test_scikit_learn_s_own_checks(estimator, check):
    """All that apply to an estimator with decision_function and predict; none is expected to fail."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.fixture(scope="module")
def rows():
    """Points near a curve in five dimensions, and points that are as spread but off it."""
    rng = np.random.default_rng(0)
    t = rng.uniform(-1, 1, (700, 2))
    a, b = t.T
    normal = np.stack([a, b, a * b, a**2, 100 * np.sin(2 * b) + 5], 1) + np.array([1, 1, 1, 1, 100]) * rng.normal(
        0, 0.05, (700, 5)
    )
    return normal[:600], normal[600:], rng.permuted(normal[:100], axis=0)


@pytest.fixture(scope="module")
def on_rows(rows):
    return Detector(updates=400, device="cpu", contamination=0.05).fit(rows[0])


@pytest.fixture(scope="module")
def on_images():
    x = load(resolve("digits")).train[:300, 0].numpy()
    return Detector(updates=120, nz=4, device="cpu", settings=SMALL_IMAGES).fit(x), x


def test_it_finds_rows_off_the_curve(on_rows, rows):
    _, normal, strange = rows
    scores = on_rows.decision_function(np.concatenate([normal, strange]))
    assert auroc(scores, np.arange(200) >= 100) > 0.8, "each column alone is as before; only together they are strange"
    assert on_rows.predict(strange).mean() > 0.4 > 0.2 > on_rows.predict(normal).mean()


def test_the_convention_is_pyod_s(on_rows, rows):
    d, x = on_rows, rows[0]
    again = d.decision_function(
        x
    )  # by a density that has seen these rows: lower on the whole, in nearly the same order
    assert again.mean() < d.decision_scores_.mean() and np.corrcoef(again, d.decision_scores_)[0, 1] > 0.8
    assert d.threshold_ == np.quantile(d.decision_scores_, 0.95)
    assert np.array_equal(d.labels_, (d.decision_scores_ > d.threshold_).astype(int)) and d.labels_.sum() == 30
    assert set(d.predict(x)) == {0, 1}
    p = d.predict_proba(x)
    assert p.shape == (600, 2) and np.allclose(p.sum(1), 1) and p.min() >= 0 and p.max() - p.min() > 0.9
    assert np.diff(p[np.argsort(again), 1]).min() > -1e-12
    assert d.predict_proba(x + 1e6)[:, 1].min() == 1


def test_a_score_that_is_not_fitted_is_the_same_for_training_rows(rows):
    d = Detector(updates=5, score_by="error", device="cpu").fit(rows[0])
    np.testing.assert_allclose(d.decision_scores_, d.decision_function(rows[0]), rtol=1e-9)


def test_the_threshold_is_for_new_rows():
    """A density fits few rows in many columns too well; a threshold on that would call a third of new rows strange."""
    x = np.random.default_rng(0).normal(size=(400, 12))
    d = Detector(updates=30, nz=8, device="cpu", contamination=0.1).fit(x[:200])
    assert 0.04 < d.predict(x[200:]).mean() < 0.2
    assert (
        np.mean(d.decision_function(x[200:]) > np.quantile(d.decision_function(x[:200]), 0.9)) > 0.2
    )  # what it guards against


@pytest.mark.parametrize("score_by", ["combined", "joint", "chains", "error", "prior", "likelihood"])
def test_a_row_s_score_is_its_own(rows, score_by):
    d = small(score_by=score_by).fit(rows[0][:60])
    scores = d.decision_function(rows[1][:8])
    np.testing.assert_allclose(d.decision_function(rows[1][:3]), scores[:3], rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(d.decision_function(rows[1][:8][::-1]), scores[::-1], rtol=1e-7, atol=1e-7)


def test_a_seed_fixes_everything(rows):
    a, b, c = (small(random_state=s).fit(rows[0][:50]).decision_function(rows[1]) for s in (1, 1, 2))
    assert np.array_equal(a, b) and not np.array_equal(a, c)


def test_clone_and_parameters():
    d = small(contamination=0.2, score_by="error")
    assert clone(d).get_params() == d.get_params() and not hasattr(clone(d), "threshold_")
    assert d.set_params(contamination=0.3).contamination == 0.3


def test_in_a_pipeline(rows):
    pipe = make_pipeline(RobustScaler(), small()).fit(rows[0][:50])
    assert pipe.predict(rows[1]).shape == (100,) and np.isfinite(pipe.decision_function(rows[1])).all()


# --- images -----------------------------------------------------------------------------------------------------------


def test_images_in_every_layout(on_images):
    d, x = on_images
    noise = np.random.default_rng(0).choice(np.array([0, 255], np.uint8), (50, 8, 8))
    scores = d.decision_function(x[:50])
    assert auroc(np.concatenate([scores, d.decision_function(noise)]), np.arange(100) >= 50) > 0.95
    for same in (x[:50, :, :, None], torch.from_numpy(x[:50]), x[:50] / 127.5 - 1):
        np.testing.assert_allclose(d.decision_function(same), scores, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(d.decision_function(x[:5]), scores[:5], rtol=1e-4, atol=1e-4)


def test_flat_rows_are_images_where_their_shape_is_given(on_images):
    d, x = on_images
    flat = Detector(updates=120, nz=4, device="cpu", settings=SMALL_IMAGES, image_shape=(8, 8)).fit(x.reshape(300, 64))
    np.testing.assert_allclose(flat.decision_scores_, d.decision_scores_, rtol=1e-6)
    with pytest.raises(ValueError, match="image_shape"):
        Detector(image_shape=(8, 8)).fit(x[:, :7].reshape(300, 56))
    colour = small(settings=SMALL_IMAGES).fit(np.repeat(x[:30, :, :, None], 3, 3))
    assert colour.model_.generator.shape == (3, 8, 8)


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_the_errors_that_users_know(rows, on_rows, on_images):
    x = rows[0][:20]
    with pytest.raises(NotFittedError):
        small().predict(x)
    with pytest.raises(ValueError, match="NaN"):
        small().fit(np.where(x == x[3, 2], np.nan, x))
    with pytest.raises(ValueError, match="4 features"):
        on_rows.predict(x[:, :4])
    with pytest.raises(ValueError, match="minimum of 2"):
        small().fit(x[:1])
    with pytest.raises(ValueError, match="contamination is 0.7"):
        small(contamination=0.7).fit(x)
    d, images = on_images
    with pytest.raises(ValueError, match="minimum of 2"):
        small().fit(images[:1])
    with pytest.raises(ValueError, match=r"\(7, 8, 1\).*\(8, 8, 1\)"):
        d.predict(images[:, :7])
    with pytest.raises(ValueError, match="fitted on images"):
        d.predict(images.reshape(300, 64))
    with pytest.raises(ValueError, match="rows of a table"):
        on_rows.predict(images)
    with pytest.raises(ValueError, match="from 0 to 255"):
        small().fit(images.astype(float))
    with pytest.raises(ValueError, match="squares"):
        small().fit(images[:, :7])
    with pytest.raises(ValueError, match="NaN"):
        small().fit(np.full((5, 8, 8), np.nan))


def test_fewer_rows_than_a_batch_and_constant_columns(rows):
    x = np.concatenate([rows[0][:7], np.full((7, 1), 3.0), np.zeros((7, 1))], 1)
    d = small(batch=100).fit(x)
    assert np.isfinite(d.decision_scores_).all()
    moved = x.copy()
    moved[:, 5] = 1000
    assert (d.decision_function(moved) > d.decision_function(x)).all(), "a column that never changed has changed"


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rows", "images"])
def test_saved_and_loaded_it_is_the_same(kind, on_rows, on_images, rows, tmp_path):
    d, x = (on_rows, rows[1]) if kind == "rows" else (on_images[0], on_images[1][:20])
    d.save(tmp_path / "d.safetensors")
    again = Detector.load(tmp_path / "d.safetensors")
    assert np.array_equal(again.decision_function(x), d.decision_function(x)) and again.threshold_ == d.threshold_
    assert np.array_equal(again.labels_, d.labels_) and again.get_params() == d.get_params()
    with pytest.raises(ValueError):
        again.predict(x[:, :-1])


def test_a_damaged_or_foreign_file_is_refused(on_rows, on_images, rows, tmp_path):
    with pytest.raises(NotFittedError):
        small().save(tmp_path / "d.safetensors")
    on_rows.save(tmp_path / "d.safetensors")
    tensors, meta = load_tensors(tmp_path / "d.safetensors")
    for cut, note in (
        ("density.mixture.centres", meta),
        ("mean_", meta),
        ("model.prior.energy.layers.0.weight", meta),
        ("", {**meta, "fitted": {}}),
        ("", {"config": {}}),
        ("odd", meta),
    ):
        if cut == "odd":
            tensors = tensors | {"density.mixture.centres": torch.zeros(2, 99)}
        save_tensors(tmp_path / "x.safetensors", {k: t for k, t in tensors.items() if k != cut}, note)
        with pytest.raises(CheckpointError, match=r"x\.safetensors"):
            Detector.load(tmp_path / "x.safetensors")
    lebm.save(on_images[0].model_, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a detector"):
        Detector.load(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="random_state"):
        small(random_state=np.random.RandomState(0)).fit(rows[0][:20]).save(tmp_path / "d.safetensors")


def test_rows_too_far_off_for_a_score_are_anomalies(on_rows, rows, tmp_path):
    far = np.full((1, rows[0].shape[1]), 1e160)
    assert (
        on_rows.decision_function(far) == np.inf and on_rows.predict(far) == 1 and on_rows.predict_proba(far)[0, 1] == 1
    )
    with pytest.raises(ValueError, match="column 0 of X is too large"):
        small().fit(rows[0] * 1e300)
    (tmp_path / "run").mkdir()
    with pytest.raises(CheckpointError, match="is a folder; give a .safetensors file"):
        Detector.load(tmp_path / "run")


# --- lebm score -------------------------------------------------------------------------------------------------------


def read(path):
    return [line.split(",") for line in path.read_text().splitlines()[1:]]


def test_score_by_a_saved_detector(on_images, on_rows, tmp_path, call):
    d, x = on_images
    d.save(tmp_path / "d.safetensors")
    np.save(tmp_path / "x.npy", x[:9])
    words = ["--input", tmp_path / "x.npy", "--out", tmp_path / "s.csv"]
    call("score", tmp_path / "d.safetensors", *words)
    scores = [float(r[2]) for r in read(tmp_path / "s.csv")]
    np.testing.assert_allclose(scores, d.decision_function(x[:9]), rtol=1e-4, atol=1e-4)
    assert (tmp_path / "s-strangest.png").stat().st_size > 100
    assert "leave --score out" in call("score", tmp_path / "d.safetensors", *words, "--score", "error", code=2).err
    on_rows.save(tmp_path / "t.safetensors")
    assert "for tables" in call("score", tmp_path / "t.safetensors", *words, code=2).err


def test_score_a_run_by_name(tmp_path, call):
    encoder = {"method.posterior_start.kind": "encoder", "method.posterior_chain.steps": 0}
    config = resolve({"preset": "digits", "nz": 4, "training.updates": 2, **encoder})
    lebm.train(config, run=tmp_path / "run")
    np.save(tmp_path / "x.npy", load(config).test[:9, 0].numpy())
    words = ["score", tmp_path / "run", "--input", tmp_path / "x.npy", "--out", tmp_path / "s.csv"]
    rows = {}
    for name in ("joint", "error", "prior", "combined"):
        call(*words, "--score", name, "--sort")
        rows[name] = read(tmp_path / "s.csv")
        values = [float(r[2]) for r in rows[name]]
        assert values == sorted(values, reverse=True) and len({r[1] for r in rows[name]}) == 9
    assert len({json.dumps(v) for v in rows.values()}) == 4
    call(*words, "--score", "combined", "--normal", tmp_path / "x.npy")
    assert "no score is called 'odd'" in call(*words, "--score", "odd", code=2).err
    assert "--score joint" in call(*words, "--score", "error", "--steps", "3", code=2).err

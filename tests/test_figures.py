"""Pictures: exact geometry for the grids, and charts that show what the rows hold and no more."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lebm.core.errors import DataError, UserError
from lebm.modalities import grids
from lebm.sampler import SamplerSpec
from lebm.show import charts, figures, pictures

ROWS = [
    {
        "step": t,
        "f_pos": t / 100,
        "f_neg": t / 100 - 1,
        "gap": 1.0,
        "mse": 1 / t,
        "grad_prior": 0.5,
        "grad_generator": 40.0,
        "disp_pos": 2.0,
        "disp_neg": 4.0,
    }
    for t in range(50, 1050, 50)
]


def numbered(n, c=1, h=4, w=5):
    """Image i is filled with i + 1, so that each can be recognised."""
    return np.broadcast_to(np.arange(1, n + 1, dtype=np.uint8)[:, None, None, None], (n, c, h, w)).copy()


def labels(figure):
    return {line.get_label() for ax in figure.axes for line in ax.get_lines()}


# --- grids ----------------------------------------------------------------------------------------------------------


def test_grid_has_exact_size_and_each_image_in_its_place():
    image = grids.grid(numbered(6), columns=3, scale=2)
    assert image.size == (3 * 10 + 2 * 2, 2 * 8 + 2)
    for i in range(6):
        left, top = (i % 3) * 12, (i // 3) * 10
        tile = np.asarray(image)[top : top + 8, left : left + 10]
        assert (tile[..., 0] == i + 1).all() and (tile[..., 1] == 255).all()


def test_one_pixel_becomes_one_square():
    pixels = np.zeros((2, 3, 4, 4), np.uint8)
    pixels[1, :, 2, 3] = (10, 20, 30)
    array = np.asarray(grids.grid(pixels, columns=2, scale=5))
    left, top = 4 * 5 + 2 + 3 * 5, 2 * 5
    expected = np.zeros(array.shape[:2], bool)
    expected[top : top + 5, left : left + 5] = True
    np.testing.assert_array_equal((array == (10, 20, 30, 255)).all(-1), expected)


def test_gutters_and_missing_cells_are_transparent():
    image = grids.grid(numbered(3), columns=2, scale=1)
    alpha = np.asarray(image.getchannel("A"))
    assert image.mode == "LA"
    assert (alpha[:4, 5:7] == 0).all() and (alpha[4:6] == 0).all() and (alpha[6:, 5:] == 0).all()
    assert (alpha[6:, :5] == 255).all()


@pytest.mark.parametrize(("side", "n"), [(8, 64), (8, 100), (28, 64), (32, 64), (32, 100), (64, 64)])
def test_automatic_scale_is_well_visible(side, n):
    assert 500 <= grids.grid(np.zeros((n, 1, side, side), np.uint8)).width <= 800


def test_grid_takes_tensors_and_colour():
    pixels = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    image = grids.grid(pixels)
    assert image.mode == "RGBA"
    assert image == grids.grid(pixels.numpy())


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((2, 1, 4, 4)),
        np.zeros((2, 4, 4), np.uint8),
        np.zeros((2, 2, 4, 4), np.uint8),
        np.zeros((0, 1, 4, 4), np.uint8),
    ],
)
def test_grid_refuses_what_is_no_image(bad):
    with pytest.raises(DataError, match="uint8 images of shape"):
        grids.grid(bad)


@pytest.mark.parametrize("wrong", [{"columns": 0}, {"scale": -1}, {"scale": 0}])
def test_grid_refuses_impossible_layouts(wrong):
    with pytest.raises(UserError, match="at least 1"):
        grids.grid(numbered(2), **wrong)


def test_pairs_stand_one_above_the_other():
    originals = numbered(3)
    image = grids.pairs(originals, originals + 100, columns=2, scale=1)
    array, gap, between = np.asarray(image), grids.GUTTER, grids.BETWEEN_PAIRS
    second = 2 * 4 + gap + between
    assert image.size == (2 * 5 + gap, 2 * (2 * 4 + gap) + between)
    for i, (left, top) in enumerate([(0, 0), (5 + gap, 0), (0, second)]):
        assert (array[top : top + 4, left : left + 5, 0] == i + 1).all()
        assert (array[top + 4 + gap : top + 8 + gap, left : left + 5, 0] == i + 101).all()
    assert (array[8 + gap : second, :, 1] == 0).all()
    assert between > 2 * gap


def test_pairs_must_match():
    with pytest.raises(DataError, match="as many reconstructions"):
        grids.pairs(numbered(3), numbered(2))


# --- charts ---------------------------------------------------------------------------------------------------------


def test_energy_profile_shows_the_median_and_the_training_length():
    profile = np.arange(101.0)[:, None] * -1 + np.linspace(-1, 1, 41)
    figure = figures.energy_profile(torch.from_numpy(profile), trained=60)
    (ax,) = figure.axes
    median, mark = ax.get_lines()
    np.testing.assert_allclose(median.get_ydata(), -np.arange(101.0), atol=1e-12)
    assert list(mark.get_xdata()) == [60, 60]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Langevin step", "energy −f(z)")
    assert "K₀ = 60" in ax.texts[0].get_text()


def test_energy_profile_marks_nothing_at_its_own_end():
    assert len(figures.energy_profile(np.zeros((61, 4)), trained=60).axes[0].get_lines()) == 1
    assert len(figures.energy_profile(np.zeros((61, 4))).axes[0].get_lines()) == 1


def test_energy_profile_survives_numbers_that_are_not_finite(tmp_path):
    profile = np.zeros((5, 3))
    profile[2, 1], profile[4] = np.inf, np.nan
    assert figures.save(figures.energy_profile(profile), tmp_path / "e.png").stat().st_size > 0


def test_energy_profile_refuses_other_shapes():
    with pytest.raises(DataError, match="steps"):
        figures.energy_profile(np.zeros(7))


def test_curves_show_every_key_that_is_there():
    more = {
        "z_sq_pos": 1.0,
        "z_sq_neg": 1.1,
        "nll_word": 2.0,
        "z_gain": 1.0,
        "grad_encoder": 3.0,
        "grad_flow": 4.0,
        "q_spread_pos": 1.0,
    }
    figure = figures.training_curves([row | more for row in ROWS])
    assert len(figure.axes) == len(charts.PANELS) == 9
    assert {
        "gap",
        "f_pos",
        "f_neg",
        "mse",
        "prior",
        "generator",
        "encoder",
        "flow",
        "posterior",
        "encoder's means",
    } <= labels(figure)
    assert [ax.get_yscale() for ax in figure.axes] == ["linear"] * 5 + ["log"] + ["linear"] * 3


def test_curves_from_partial_rows_leave_out_what_is_missing():
    rows = [
        {"step": 50, "mse": 0.1},
        {"warning": "no step"},
        {"step": 100, "mse": float("nan"), "f_pos": 1.0},
        {"step": 150, "mse": 0.05, "gap": None},
    ]
    figure = figures.training_curves(rows)
    assert [ax.get_title("left") for ax in figure.axes] == ["f on both chains", "reconstruction error"]
    (line,) = figure.axes[1].get_lines()
    assert list(line.get_xdata()) == [50, 150]
    assert list(line.get_ydata()) == [0.1, 0.05]


def test_a_step_logged_again_after_a_resume_counts_once_in_order():
    rows = [{"step": 2, "mse": 9.0}, {"step": 3, "mse": 8.0}, {"step": 1, "mse": 7.0}, {"step": 2, "mse": 6.0}]
    (line,) = figures.training_curves(rows).axes[0].get_lines()
    assert list(line.get_ydata()) == [7.0, 6.0, 8.0]


def test_a_long_log_is_thinned_and_keeps_its_spike():
    rows = [{"step": t, "mse": 100.0 if t == 777 else 1.0} for t in range(5000)]
    (ax,) = figures.training_curves(rows).axes
    assert len(ax.get_lines()[0].get_xdata()) == charts.POINTS
    assert ax.dataLim.y1 == 100.0


@pytest.mark.parametrize("rows", [[], [{"warning": "x"}], [{"step": 1, "grad_prior": 0.0}], [{"step": 1, "mse": 0.5}]])
def test_curves_from_next_to_nothing(rows, tmp_path):
    assert figures.save(figures.training_curves(rows), tmp_path / "c.png").is_file()


# --- files ----------------------------------------------------------------------------------------------------------


def test_save_writes_a_grid_that_reads_back(tmp_path):
    image = grids.grid(numbered(4))
    path = pictures.save(image, tmp_path / "new" / "samples.png")
    with Image.open(path) as back:
        np.testing.assert_array_equal(np.asarray(back), np.asarray(image))
    assert os.listdir(path.parent) == ["samples.png"]


def test_images_are_saved_from_floats_and_from_pixels(tmp_path):
    x = torch.linspace(-1, 1, 2 * 3 * 4 * 4).view(2, 3, 4, 4)
    floats = pictures.save_images(x, tmp_path / "a.png", columns=2)
    pixels = pictures.save_images(((x + 1) * 127.5).round().to(torch.uint8).numpy(), tmp_path / "b.png", columns=2)
    assert floats.read_bytes() == pixels.read_bytes()
    with pytest.raises(DataError, match="NaN"):
        pictures.save_images(torch.full((1, 1, 4, 4), float("nan")), tmp_path / "c.png")


def test_rows_of_images_stand_side_by_side():
    pixels = torch.from_numpy(numbered(6))
    sheet = pictures.rows_of_images(pixels[:2], pixels[2:].view(2, 2, 1, 4, 5))
    assert sheet == grids.grid(pixels[[0, 2, 3, 1, 4, 5]], columns=3)


def test_a_record_says_how_pictures_were_drawn(tmp_path):
    spec = SamplerSpec("prior", "flow", 3, 0.4, options={"noise": 0.5, "first_steps": (1.0, 2.0)})
    pictures.note(tmp_path, "samples", spec, samples=64)
    pictures.note(tmp_path, "reconstructions", replace(spec, target="posterior"))
    spec_read, samples = pictures.provenance(tmp_path, "samples")
    assert samples == 64 and spec_read.to_dict() == spec.to_dict()
    pictures.note(tmp_path, "samples", None)
    assert pictures.provenance(tmp_path, "samples") is None is pictures.provenance(tmp_path / "nowhere", "samples")
    assert pictures.provenance(tmp_path, "reconstructions")[0].target == "posterior"


@pytest.mark.parametrize(
    "damaged",
    ["", "[1]", '{"a": 1}', '{"a": {"sampler": 1, "samples": 2}}', '{"a": {"sampler": {"target": "x"}, "samples": 1}}'],
)
def test_a_damaged_record_says_nothing(tmp_path, damaged):
    (tmp_path / pictures.PROVENANCE).write_text(damaged)
    assert pictures.provenance(tmp_path, "a") is None
    pictures.note(tmp_path, "a", SamplerSpec("prior"))
    assert pictures.provenance(tmp_path, "a") == (SamplerSpec("prior"), 1)


def test_save_names_the_endings_it_knows(tmp_path):
    with pytest.raises(UserError, match=r"samples\.webp.*\.png"):
        pictures.save(grids.grid(numbered(1)), tmp_path / "samples.webp")
    with pytest.raises(UserError, match=r"\.png or \.svg"):
        figures.save(figures.training_curves(ROWS), tmp_path / "curves")
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = pictures.save(grids.grid(numbered(1)), tmp_path / "a.png")
    before = path.read_bytes()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        pictures.save(grids.grid(numbered(2)), path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.png"]


def test_svg_follows_the_reader_and_repeats_byte_for_byte():
    text = figures.svg(figures.training_curves(ROWS)).decode()
    assert "currentColor" in text and "prefers-color-scheme:dark" in text
    body = text.split("</style>", 1)[1]
    assert figures.INK not in body and "DejaVu" not in body
    assert "<text" in body and "reconstruction error" in body
    assert text == figures.svg(figures.training_curves(ROWS)).decode()


def test_a_detector_is_shown_with_and_without_images(tmp_path):
    scores, anomalous = np.arange(40.0), np.arange(40) >= 30
    pixels = np.zeros((40, 1, 8, 8), np.uint8)
    figure = figures.detection(scores, anomalous, pixels, title="digits")
    assert len(figure.axes) == 4 and "AUPRC 1.000" in labels(figure) and "chance 0.250" in labels(figure)
    assert figure.axes[2].get_title("left") == "most anomalous: 10 of 32 are anomalies"
    assert len(figures.detection(scores, anomalous).axes) == 2
    assert figures.save(figure, tmp_path / "anomaly.png").stat().st_size > 10_000


def test_chains_are_shown_over_their_energy():
    pixels = np.zeros((3, 2, 1, 8, 8), np.uint8)
    top, below = figures.transition(pixels, [0, 5, 10], np.zeros((11, 4)), trained=5).axes
    assert [t.get_text() for t in top.get_xticklabels()] == ["0", "5", "10"]
    assert "K₀ = 5" in below.texts[0].get_text()

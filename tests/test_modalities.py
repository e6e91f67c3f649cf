"""What is read, batched and written of images, text and tables."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from lebm.core.errors import DataError, NotDefined, UserError
from lebm.core.words import END, PAD, SPECIAL, UNKNOWN
from lebm.data import Batches, SentenceBatches, VariedBatches
from lebm.generators import ImageGenerator, TableGenerator, TextGenerator
from lebm.modalities import MODALITIES, Inputs, grids, of

WORDS = [*SPECIAL, "a", "b", "c"]
Z = torch.zeros(4, 3)


def images():
    return ImageGenerator(3, size=8, channels=1, ngf=2, base=4)


def text(vocabulary=True):
    g = TextGenerator(3, vocabulary=9, length=6, embedding=4, hidden=5)
    if vocabulary:
        g.set_facts({"vocabulary": WORDS})
    return g


def table():
    return TableGenerator(3, columns=2)


def test_every_generator_names_a_modality():
    assert set(MODALITIES) == {"image", "text", "table", "other"}
    for g, noun in ((images(), "image"), (text(), "sentence"), (table(), "row")):
        assert of(g.modality).noun == noun and of(g.modality).name == g.modality


# --- reading ----------------------------------------------------------------------------------------------------------


def test_reading_pictures(tmp_path):
    Image.new("L", (8, 8), 7).save(tmp_path / "a.png")
    inputs = of("image").read_inputs([str(tmp_path / "a.png")], images())
    assert inputs.names == ["a.png"] and inputs.rows.unique().tolist() == [7] and inputs.rows.dtype == torch.uint8


def test_pictures_that_were_resized_are_told(tmp_path):
    for i, size in enumerate([(70, 90), (70, 90), (8, 8), (20, 20)]):
        Image.new("RGB", size).save(tmp_path / f"{i}.png")
    (note,) = of("image").read_inputs([tmp_path], images()).notes
    assert "3 pictures" in note and "70x90 and other sizes" in note and "8x8 grey" in note and "square" in note
    (note,) = of("image").read_inputs([tmp_path / "3.png"], images()).notes
    assert "1 picture was" in note and "from 20x20 to" in note and "square" not in note
    assert not of("image").read_inputs([tmp_path / "2.png"], images()).notes


def test_the_example_of_a_sample_is_one_that_works(tmp_path):
    for g in (images(), table()):
        target = of(g.modality).sample_example().split()[-1]
        of(g.modality).check_target("sample", tmp_path / target)
    of("text").check_target("sample", None)
    assert "--out" not in of("text").sample_example()
    assert of("table").plane(torch.zeros(4, 3)).shape == (4, 2) and of("table").plane(torch.zeros(4, 1)) is None


def test_reading_sentences(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("a b\n\nc strange a b c a b\n")
    inputs = of("text").read_inputs([path, "b c", str(path)], text())
    assert inputs.names == ["t.txt:1", "t.txt:2", "t.txt:1", "t.txt:2", "sentence 1"] and inputs.texts[-1] == "b c"
    assert inputs.rows[-1].tolist() == [5, 6, END, PAD, PAD, PAD, PAD] and inputs.rows[1, 1] == UNKNOWN
    assert len(inputs.notes) == 4 and any("<unk>" in n for n in inputs.notes)
    assert any("2 of 5 sentences" in n and "generator.length = 6" in n for n in inputs.notes)
    with pytest.raises(DataError):
        of("text").read_inputs([], text())
    with pytest.raises(DataError, match="none.txt"):
        of("text").read_inputs([tmp_path / "none.txt"], text())
    assert of("text").read_inputs(["x" * 5000 + " a"], text()).names == ["sentence 1"]  # too long for a file's name


def test_reading_rows_of_a_table(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 2)))
    inputs = of("table").read_inputs([tmp_path / "a.npy"], table())
    assert inputs.names == ["a.npy[0]", "a.npy[1]", "a.npy[2]"] and inputs.rows.dtype == torch.float32
    for given in ([], [tmp_path / "a.npy"] * 2, [tmp_path / "a.txt"]):
        with pytest.raises(DataError, match="row"):
            of("table").read_inputs(given, table())
    np.save(tmp_path / "b.npy", np.ones((3, 5)))
    with pytest.raises(DataError, match=r"\(3, 5\)"):
        of("table").read_inputs([tmp_path / "b.npy"], table())


def test_rows_that_are_handed_in():
    pixels = torch.arange(128, dtype=torch.uint8).reshape(2, 1, 8, 8)
    assert torch.equal(of("image").training_rows(pixels, images()), pixels)
    assert of("image").training_rows(pixels.numpy() / 255, images()).dtype == torch.float32
    g = text(vocabulary=False)
    rows = of("text").training_rows(["b a b", "a b c c"], g)
    assert g.facts()["vocabulary"] == [*SPECIAL, "b", "a", "c"] and rows[0].tolist() == [4, 5, 4, END, PAD]
    for name, g, data in (("image", images(), "x"), ("text", text(), ["a", 3]), ("table", table(), np.array(["a"]))):
        with pytest.raises(DataError, match="the data is"):
            of(name).training_rows(data, g)


def test_batches():
    pixels, rows = torch.zeros(9, 1, 8, 8, dtype=torch.uint8), torch.full((9, 3), 4)
    assert type(of("image").batches(pixels, 3, seed=1)) is Batches
    assert type(of("other").batches(pixels, 3, seed=1, flip=True)) is VariedBatches
    assert type(of("text").batches(rows, 3, seed=1)) is SentenceBatches
    with pytest.raises(DataError, match=r"data\.shift"):
        of("text").batches(rows, 3, seed=1, shift=1)
    assert len(of("image").batches(pixels, 4, seed=1, rank=1, ranks=2)(0)) == 2


# --- writing ----------------------------------------------------------------------------------------------------------


def test_targets_and_options_are_checked(tmp_path):
    of("text").check_target("sample", None)
    of("image").check_target("sample", tmp_path / "a.PNG")
    for name, verb, path in (
        ("image", "sample", None),
        ("image", "sample", "a.txt"),
        ("text", "reconstruct", "a.txt"),
        ("table", "sample", "a.png"),
    ):
        with pytest.raises(UserError, match="--out"):
            of(name).check_target(verb, None if path is None else tmp_path / path)
    of("text").check_options(beam=3)
    with pytest.raises(UserError, match="top_p"):
        of("image").check_options(top_p=0.5)


def test_images_are_written(tmp_path):
    m, x = of("image"), torch.linspace(-1, 1, 4 * 64).reshape(4, 1, 8, 8)
    inputs = Inputs(((x + 1) * 127.5).round().to(torch.uint8), list("abcd"))
    m.write_samples(tmp_path / "a.png", x, images(), columns=4)
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > 4 * 8 and picture.width > 3 * picture.height
    m.write_samples(tmp_path / "a.npz", x, images())
    assert np.array_equal(np.load(tmp_path / "a.npz")["x"], x.numpy())
    said = m.write_reconstructions(tmp_path / "r.npz", inputs, -x, Z, torch.zeros(4), images())
    mse = np.load(tmp_path / "r.npz")["mse"]
    assert mse.shape == (4,) and f"{mse.mean():.4f}" in said
    m.write_reconstructions(tmp_path / "r.png", inputs, -x, Z, torch.zeros(4), images())
    m.write_paths(tmp_path / "p.png", (inputs.rows[:1], x[1:2]), x[None, :3], Z[None, :3], images())
    m.write_paths(tmp_path / "p.npz", (x[:1], x[1:2]), x[None, :3], Z[None, :3], images())
    assert np.load(tmp_path / "p.npz")["z"].shape == (1, 3, 3)
    with pytest.raises(UserError, match="10001 images"):
        m.write_samples(tmp_path / "b.png", torch.zeros(10_001, 1, 1, 1), images())


def test_sentences_are_written(tmp_path, capsys):
    m, g = of("text"), text()
    rows = torch.tensor([[4, 5, END], [6, END, PAD]])
    m.write_samples(tmp_path / "a.txt", rows, g)
    assert (tmp_path / "a.txt").read_text() == "a b\nc\n"
    m.write_samples(None, rows, g)
    assert capsys.readouterr().out == "a b\nc\n"
    inputs = Inputs(rows, ["x", "y"], ["a b", "c"])
    said = m.write_reconstructions(tmp_path / "r.csv", inputs, rows.flip(0), Z, torch.tensor([-1.0, -2.0]), g)
    assert "1.50 nats" in said
    assert (tmp_path / "r.csv").read_text() == "name,sentence,reconstruction,nll\nx,a b,c,1\ny,c,a b,2\n"
    m.write_reconstructions(None, inputs, rows.flip(0), Z, torch.zeros(2), g)
    assert capsys.readouterr().out == "a b\n    c\nc\n    a b\n"
    m.write_paths(tmp_path / "p.txt", (rows, rows), torch.stack([rows, rows.flip(0)]), Z, g)
    assert (tmp_path / "p.txt").read_text() == "a b\nc\n\nc\na b\n"


def test_rows_of_a_table_are_written(tmp_path):
    m, g, x = of("table"), table(), torch.ones(4, 2)
    m.write_samples(tmp_path / "a.npz", x, g)
    said = m.write_reconstructions(tmp_path / "r.npz", Inputs(x, list("abcd")), x + 2, Z, torch.zeros(4), g)
    assert "4.0000" in said and np.load(tmp_path / "r.npz")["mse"].tolist() == [4, 4, 4, 4]
    with pytest.raises(NotDefined):
        m.lines(x, g)


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_default_metrics():
    large = ImageGenerator(3, size=32, channels=3, ngf=2, base=4)
    assert of("image").default_metrics(images(), "digits", True) == ["frechet", "mse"]
    assert of("image").default_metrics(large, "svhn", True) == ["fid", "mse"]
    assert of("image").default_metrics(large, "svhn", False) == ["mse"]
    assert of("text").default_metrics(text(), "ptb", True) == ["nll"]


def test_variety_and_saturation():
    x = torch.tensor([[-1.0, 0.5], [1.0, 0.5]])
    assert of("image").saturation(x) == 0.5 and of("text").saturation(x) is None
    assert of("other").variety(x) == pytest.approx(2**0.5 / 2)
    assert of("text").variety(torch.tensor([[4, END], [4, END], [5, END], [4, END]])) == 0.5


def test_an_animation_has_a_frame_a_step():
    frames = torch.full((3, 4, 1, 2, 2), 9, dtype=torch.uint8)
    with Image.open(io.BytesIO(grids.animation(frames, [0, 1, 2]))) as picture:
        assert (picture.format, picture.n_frames) == ("WEBP", 3)

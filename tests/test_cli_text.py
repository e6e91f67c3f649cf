"""The commands on a text model: sentences in, sentences out."""

import csv
import shutil

import numpy as np
import pytest

import lebm
from lebm.config import resolve

SMALL = [
    *("nz=3", "method.energy.width=8", "generator.embedding=4", "generator.hidden=6", "method.prior_chain.steps=3"),
    *("method.posterior_chain.steps=3", "method.posterior_chain.first_steps=[0.5]"),
    *("training.updates=3", "training.batch=8"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text") / "run"
    lebm.train(resolve("text-demo", SMALL), run=folder, device="cpu")
    return folder


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_sample_prints_sentences(run, call, tmp_path):
    lines = call("sample", run, "-n", 4).out.splitlines()
    assert len(lines) == 4 and call("sample", run, "-n", 4).out.splitlines() == lines
    assert call("sample", run, "-n", 2).out.splitlines() == lines[:2]
    call("sample", run, "-n", 4, "--out", tmp_path / "x.txt")
    assert (tmp_path / "x.txt").read_text().splitlines() == lines
    assert call("sample", run, "-n", 4, "--temperature", 0.1).out != "\n".join(lines)
    assert len(call("sample", run, "-n", 2, "--beam", 3).out.splitlines()) == 2


def test_reconstruct_shows_pairs(run, call, tmp_path):
    answer = call("reconstruct", run, "the captain counts the nets .", "zebra .")
    lines = answer.out.splitlines()
    assert lines[0] == "the captain counts the nets ." and lines[2] == "zebra ." and lines[1].startswith("    ")
    assert "1 of 8 words" in answer.err and "nats a sentence" in answer.err
    (tmp_path / "in.txt").write_text("the captain counts the nets .\n\nzebra .\n")
    answer = call("reconstruct", run, "--input", tmp_path / "in.txt", "--out", tmp_path / "x.csv")
    rows = table(tmp_path / "x.csv")
    assert [r["name"] for r in rows] == ["in.txt:1", "in.txt:2"] and rows[0]["reconstruction"] == lines[1].strip()
    assert "1 empty lines" in answer.err


def test_interpolate_walks_between_sentences(run, call, tmp_path):
    a, b = "the captain counts the nets .", "a quiet girl reads a letter ."
    lines = call("interpolate", run, a, b, "--points", 5).out.splitlines()
    assert len(lines) == 5
    ends = call("reconstruct", run, a, b).out.splitlines()
    assert (lines[0], lines[-1]) == (ends[1].strip(), ends[3].strip())
    call("interpolate", run, a, b, b, a, "--points", 2, "--out", tmp_path / "x.txt")
    assert (tmp_path / "x.txt").read_text().splitlines() == [lines[0], lines[-1], "", lines[-1], lines[0]]


def test_score(run, call, tmp_path):
    call(
        "score",
        run,
        "--out",
        tmp_path / "s.csv",
        "the captain counts the nets .",
        "nets nets nets nets nets nets nets nets nets",
    )
    rows = table(tmp_path / "s.csv")
    assert [r["file"] for r in rows] == ["sentence 1", "sentence 2"] and float(rows[1]["score"]) > float(
        rows[0]["score"]
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["sample", "--out", "x.png"], ["x.png does not fit a model of kind text", ".txt"]),
        (["sample", "--temperature", "0"], ["temperature is 0.0", "above 0"]),
        (["sample", "--top-p", "2"], ["top_p is 2.0"]),
        (["reconstruct"], ["no input is given", "--input"]),
        (["reconstruct", " "], ["sentence 0 has no words"]),
        (["reconstruct", "--input", "nowhere.txt"], ["nowhere.txt cannot be read"]),
        (["interpolate", "the captain"], ["1 sentence is given; a path needs two ends"]),
        (["explore"], ["images"]),
        (["neighbours"], ["images"]),
    ],
)
def test_mistakes_are_one_sentence(run, call, monkeypatch, tmp_path, args, words):
    monkeypatch.chdir(tmp_path)
    answer = call(args[0], run, *args[1:], code=2)
    lines = answer.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and all(w in lines[0] for w in words), answer.err


def test_images_want_a_file(call, tmp_path):
    lebm.train(resolve("digits", ["training.updates=0", "generator.ngf=1", "nz=2"]), run=tmp_path / "run", device="cpu")
    assert "needs --out" in call("sample", tmp_path / "run", code=2).err
    assert (
        "does not fit a model of kind image"
        in call("sample", tmp_path / "run", "--out", tmp_path / "x.txt", code=2).err
    )


def test_the_tables_know_text(call):
    assert "text, 512 units" in call("presets").out
    assert "text-demo: found" in call("data").out


def test_chains_are_shown_as_sentences(run, call, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    answer = call("chains", folder, "--steps", 6, "--every", 3, "--rows", 2).out.splitlines()
    assert [line for line in answer if not line.startswith("    ")] == ["step 0", "step 3", "step 6"] and len(
        answer
    ) == 9
    with np.load(folder / "chains.npz") as arrays:
        assert arrays["z"].shape == (3, 2, 3) and arrays["energy"].shape == (7, 200)
    page = (folder / "report.html").read_text()
    assert "From noise to samples" in page and "chain 2" in page
    assert (
        "is a model of kind text; Fréchet distances are for images"
        in call("chains", folder, "--steps", 6, "--samples", 10, code=2).err
    )


def test_diagnose_and_report(run, call, tmp_path, rough_log_z):
    folder = shutil.copytree(run, tmp_path / "run")
    answer = call("diagnose", folder).out
    assert answer.split(":")[0] in ("steady", "drifting", "frozen", "oversaturated") and "pixel" not in answer
    answer = call("report", folder)
    assert "left out" not in answer.err, "nobody asked for the nearest neighbours of sentences"
    page = (folder / "report.html").read_text()
    assert "Paths between sentences" in page and "Diagnostics" in page

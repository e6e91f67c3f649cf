"""The commands that look inside a run: chains, diagnose, interpolate, neighbours, report, explore."""

import html
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

from lebm.config import resolve
from lebm.training.train import train

TINY = ["training.updates=2", "method.prior_chain.steps=4", "method.posterior_chain.steps=2", "data.limit=300"]


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path, rough_log_z):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("LEBM_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(tmp_path):
    train(resolve("digits", TINY), run=tmp_path / "run", device="cpu")
    return tmp_path / "run"


def test_chains(call, run):
    answer = call("chains", run, "--steps", 20, "--every", 5, "--rows", 3)
    assert {p.name for p in (run / "figures").iterdir()} >= {"chains.png", "chains.webp", "chains-frames.png"}
    assert np.load(run / "chains.npz")["steps"].tolist() == [0, 5, 10, 15, 20] and "chains.webp" in answer.err
    assert "From noise to samples" in (run / "report.html").read_text()


def test_chains_say_where_they_start(call, run, tmp_path):
    pytest.importorskip("zuko")
    assert "note" not in call("chains", run, "--steps", 5).err
    start = "method.prior_start={kind: flow, width: 8, layers: 2}"
    train(resolve("digits", [*TINY, start, "method.prior_chain.steps=0"]), run=tmp_path / "flow", device="cpu")
    answer = call("chains", "flow", "--steps", 5, "--samples", 50)
    assert "drawn thus: by the flow alone" in answer.err
    assert "5 steps of 0.4 from the flow's proposal" in answer.out and "K0 = 0" not in answer.out
    page = html.unescape((tmp_path / "flow" / "report.html").read_text())
    assert "from the flow's proposal" in page and "start as noise" not in page


def test_the_long_run_test(call, run):
    answer = call("chains", run, "--steps", 30, "--samples", 100, "--result", "long.json")
    assert re.search(r"Long-run test (passed|failed): the distance with z by 30 steps .* 4 steps", answer.out)
    stored = json.loads(Path("long.json").read_text())
    assert (
        list(stored["metrics"]) == ["frechet_4", "frechet_30", "long_run_ratio"]
        and stored["name"] == "digits/paper-long-run"
    )
    assert re.search("Long-run test (passed|failed)", (run / "report.html").read_text())


def test_a_long_run_that_is_not_longer_is_refused_before_the_work(call, run):
    answer = call("chains", run, "--steps", 4, "--samples", 100, code=2)
    assert answer.out == "" and "K0 = 4; give more than 4" in answer.err and len(answer.err.splitlines()) == 1
    assert not (run / "chains.npz").exists() and not (run / "analysis.json").exists()
    call("chains", run, "--steps", 4)  # without distances there is nothing to compare


def test_diagnose(call, run):
    answer = call("diagnose", run)
    assert re.match("(steady|drifting|frozen|oversaturated): ", answer.out)
    assert "split_rhat" in answer.out and "log Z, estimate" in answer.out and "±" in answer.out


def test_interpolate(call, run):
    np.save("in.npy", np.random.default_rng(0).integers(0, 256, (5, 8, 8), dtype=np.uint8))
    call("interpolate", run, "--input", "in.npy", "--out", "path.npz", "--points", 4)
    with np.load("path.npz") as f:
        assert f["x"].shape == (2, 4, 1, 8, 8) and f["z"].shape == (2, 4, 16)  # the fifth has no partner
    call("interpolate", run, "--input", "in.npy", "--out", "path.png")
    assert Path("path.png").stat().st_size > 100
    np.save("one.npy", np.zeros((1, 8, 8), dtype=np.uint8))
    assert "a path needs two ends" in call("interpolate", run, "--input", "one.npy", "--out", "x.png", code=2).err


def test_neighbours(call, run):
    assert "nearest training image" in call("neighbours", run, "-n", 3).out
    assert (run / "figures" / "neighbours.png").is_file()


def test_report_draws_what_is_missing_once(call, run):
    answer = call("report", run)
    page = (run / "report.html").read_text()
    for title in ("From noise to samples", "Diagnostics", "Nearest training images", "Paths between images"):
        assert f">{title}</h2>" in page
    assert answer.out == f"report: {(run / 'report.html').resolve()}\n"
    assert "following chains" not in call("report", run).err, "known already"
    call("report", run, "--no-compute", "--out", "other.html")
    assert Path("other.html").read_text() == (run / "report.html").read_text()


def test_report_of_several_runs(call, run, tmp_path):
    train(resolve("digits", [*TINY, "nz=5"]), run=tmp_path / "narrow", device="cpu")
    call("report", run, "narrow", "--no-compute")
    page = Path("comparison.html").read_text()
    assert "2 runs side by side" in page and ">nz</th>" in page and "narrow" in page


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["chains", "nowhere"], "nowhere"),
        (["diagnose", "run/model.safetensors"], "run folder"),
        (["report", "run", "--out", "page.pdf"], ".html"),
        (["report", "run", "nowhere"], "nowhere"),
        (["explore", "nowhere"], "nowhere"),
        (["chains", "run", "--steps", "5", "--samples", "10", "--metric", "kid"], "fid or frechet"),
        (["chains", "run", "--samples", "10", "--metric", "fid"], "Inception"),
    ],
)
def test_mistakes_are_sentences(call, run, args, words):
    answer = call(*args, code=2)
    assert words in answer.err and "Traceback" not in answer.err and answer.err.splitlines()[-1].startswith("error: ")


def test_explore_serves_until_ctrl_c(run):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    words = [sys.executable, "-m", "lebm", "explore", str(run)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            line = server.stdout.readline()
            address = line.removeprefix("open ").strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=\S{20,}", address), server.stderr.read()
            with urllib.request.urlopen(address, timeout=30) as page:
                assert b"Strongest directions" in page.read()
            server.send_signal(signal.SIGINT)
            assert server.wait(30) == 0
        finally:
            server.kill()


def test_the_likelihood_is_measured_and_shown_as_an_estimate(call, run):
    answer = call("evaluate", run, "--metrics", "likelihood", "--limit", 5)
    assert "bits_per_dim" in answer.out
    stored = json.loads((run / "metrics.json").read_text())
    m = stored["metrics"]
    assert m["bits_per_dim"] == pytest.approx(np.log2(127.5) - m["log_px"] / 64 / np.log(2)) and m["log_z_error"] >= 0
    assert "an estimate" in stored["protocol"]["likelihood"]["estimate"]
    page = (run / "report.html").read_text()
    assert "Bits per dimension, an estimate" in page and "± " in page and "log_px_error" not in page

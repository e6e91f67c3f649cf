"""Runs whose chains start otherwise than from noise, from training to files, pages and commands."""

import re
import shutil

import numpy as np
import pytest
import torch

import lebm
from lebm.config import resolve
from lebm.core.errors import ConfigError
from lebm.core.tensors import load_tensors
from lebm.measure.evaluate import evaluate
from lebm.show import pictures, report

pytest.importorskip("zuko")
TINY = [
    *("nz=4", "method.energy.width=8", "generator.ngf=3", "training.batch=20", "training.updates=3", "data.limit=60"),
    *("method.prior_chain.steps=3", "method.posterior_chain.steps=2"),
]
ENCODER = ["method.posterior_start.kind=encoder", "method.posterior_start.width=2"]
RUNS = {
    "paper": [],
    "chains": [
        *(*ENCODER, "method.posterior_start.objective=forward_kl"),
        *("method.prior_start.kind=replay", "method.prior_start.chains=30"),
    ],
    "networks": [
        *(*ENCODER, "method.posterior_chain.steps=0", "method.prior_chain.steps=0", "training.ema=0.5"),
        *("method.prior_start.kind=flow", "method.prior_start.width=8", "method.prior_start.layers=2"),
    ],
    "mixture": ["method.base.kind=mixture", "method.base.components=2"],
}


MIXTURE = "a mixture of Gaussians of posterior draws"


def learned(name, folder):
    config = resolve("digits", [*TINY, *RUNS[name], f"name={name}"])
    return lebm.train(config, run=folder / name, device="cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name in RUNS:
        learned(name, folder)
    return folder


def page(run):
    return (run / "report.html").read_text(encoding="utf-8").replace("&#39;", "'").replace("&#x27;", "'")


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_a_saved_model_draws_what_the_learned_one_drew(tmp_path, name):
    method = learned(name, tmp_path)
    again, x = lebm.load(tmp_path / name), torch.zeros(3, 1, 8, 8)
    assert torch.equal(method.sample(5), again.sample(5)) and again.samplers() == method.samplers()
    for verb in ("encode", "reconstruct", "anomaly_score"):
        assert torch.equal(getattr(method, verb)(x), getattr(again, verb)(x))
    assert set(load_tensors(tmp_path / name / "model.safetensors")[0]) == set(method.state_dict())


def test_the_papers_file_holds_no_extension(runs):
    tensors = load_tensors(runs / "paper" / "model.safetensors")[0]
    assert {name.split(".")[0] for name in tensors} == {"prior", "generator"}


def test_a_plain_module_is_trained_with_an_encoder_for_its_shape(tmp_path):
    class Line(torch.nn.Module):
        shape = (3,)

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def decode(self, z):
            return self.layer(z)

        def log_prob(self, x, z):
            return -(x - self.decode(z)).square().sum(1)

    x = torch.randn(40, 3)
    method = lebm.train(resolve("digits", [*TINY, *RUNS["chains"]]), x, Line(), run=tmp_path / "run", device="cpu")
    again = lebm.load(tmp_path / "run", generator=Line())
    alone = again.choose("posterior", steps=0)
    assert torch.equal(method.encode(x), again.encode(x))
    assert not torch.equal(again.encode(x), again.encode(x, spec=alone))


def test_going_on_with_a_model_needs_its_starts(runs):
    method = lebm.load(runs / "paper")
    with pytest.raises(ConfigError, match="the model has method = .*the configuration .*encoder"):
        lebm.train(resolve("digits", [*TINY, *ENCODER]), model=method, device="cpu")


# --- pages ------------------------------------------------------------------------------------------------------------


def test_the_report_of_a_run_names_its_starts(runs, tmp_path):
    folder = shutil.copytree(runs / "chains", tmp_path / "chains")
    evaluate(folder, ("mse",), limit=10, device="cpu")
    text = page(folder)
    assert "an encoder proposes where posterior chains start" in text
    assert "prior chains continue from update to update" in text and "short Langevin chains" in text
    assert "2 steps of 0.1 from the encoder's proposal" in text
    assert "3 to 9 steps of 0.4 continuing the replayed chains" in text
    folder = shutil.copytree(runs / "networks", tmp_path / "networks")
    evaluate(folder, ("mse",), limit=10, device="cpu")
    text = page(folder)
    assert "by maximum likelihood" in text and "short Langevin chains" not in text
    assert "by the encoder alone" in text and "by the flow alone" in text


def test_an_evaluation_alone_says_where_chains_start(runs, tmp_path):
    """The energy's figure is of the run's own chains, before any are drawn for the page."""
    for name, words in (
        ("chains", "the prior's samples are where its chains start"),
        ("paper", "has learned little beyond N(0, I)"),
    ):
        folder = shutil.copytree(runs / name, tmp_path / name)
        evaluate(folder, ("mse",), limit=10, device="cpu")
        assert words in page(folder)


def test_a_caption_says_how_its_own_picture_was_drawn(runs, tmp_path):
    """Numbers measured before with another sampler stay in metrics.json; the pictures are new."""
    folder = shutil.copytree(runs / "networks", tmp_path / "run")
    options = {"samples": 20, "limit": 10, "device": "cpu"}
    evaluate(folder, ("mse", "frechet"), **options, pictures=False)
    evaluate(folder, ("speed",), **options, prior=("noise", None), posterior=("noise", None))
    spec, _ = pictures.provenance(folder / "figures", "samples")
    assert (spec.start, spec.steps) == ("noise", 60)
    text, before = page(folder), (folder / "figures" / "samples.png").read_bytes()
    assert "100 steps of 0.1 from N(0, I)" in text and "60 steps of 0.4 from N(0, I)" in text
    assert "Mean squared error a pixel, z: by the encoder alone" in text
    assert "Fréchet distance, z: by the flow alone" in text
    evaluate(folder, ("speed",), limit=10, device="cpu")
    spec, _ = pictures.provenance(folder / "figures", "samples")
    assert (folder / "figures" / "samples.png").read_bytes() != before, "by the run's own start again"
    assert (spec.start, spec.steps) == ("flow", 0)
    assert "Mean squared error a pixel, z" not in page(folder) and "Fréchet distance, z" not in page(folder)
    report.compare([folder, folder], tmp_path / "both.html")
    assert (tmp_path / "both.html").read_text(encoding="utf-8").count("by the flow alone") >= 2


def test_numbers_of_different_samplers_have_a_best_only_where_each_is_the_runs_own(runs, tmp_path):
    folders = [shutil.copytree(runs / name, tmp_path / name) for name in ("chains", "paper")]
    options = {"limit": 10, "device": "cpu", "pictures": False}

    def shown():
        report.compare(folders, tmp_path / "both.html")
        text = (tmp_path / "both.html").read_text(encoding="utf-8").replace("&#39;", "'")
        return re.search(r"<tr><th scope=\"row\">Reconstruction error<small>.*?</tr>", text, re.S)[0]

    for folder in folders:
        evaluate(folder, ("mse",), **options)
    assert shown().count("<mark>") == 1
    assert "from the encoder's proposal" in shown() and "z: 2 steps of 0.1 from N(0, I)" in shown()
    evaluate(folders[0], ("mse",), posterior=("noise", None), **options)
    assert shown().count("<mark>") == 1 and "z: " not in shown()
    evaluate(folders[0], ("mse",), posterior=("encoder", 0), **options)
    assert "<mark>" not in shown() and "z: by the encoder alone" in shown() and "from N(0, I)" in shown()


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def said(call):
    def program(*args, code=0):
        printed = call(*args, code=code)
        return " ".join((printed.out + printed.err).split())

    return program


def test_commands_take_the_runs_start_or_another(runs, tmp_path, said):
    png, npz, csv = (tmp_path / f"s.{ending}" for ending in ("png", "npz", "csv"))
    replay = "continuing the replayed chains"
    assert f"z: 3 steps of 0.4 {replay}" in said("sample", runs / "chains", "-n", 4, "--out", png)
    assert f"z: 3 to 6 steps of 0.4 {replay}" in said("sample", runs / "chains", "-n", 40, "--out", npz)
    words = said("sample", runs / "chains", "-n", 4, "--start", "noise", "--out", png)
    assert "z: 3 steps of 0.4 from N(0, I)" in words  # not the run's own
    words = said("reconstruct", runs / "networks", "--input", png, "--out", npz)
    assert "z: by the encoder alone" in words
    to = ("--input", png, "--out", csv)
    assert "z: by the encoder alone" in said("score", runs / "chains", "--start", "encoder", "--steps", 0, *to)
    assert "'encoder'" in said("score", runs / "paper", "--start", "encoder", *to, code=2)
    assert "encoder" in said("train", "digits", "--set", ENCODER[0], "--dry-run")


def test_paths_are_inferred_from_the_start_that_is_asked_for(runs, tmp_path, said):
    torch.manual_seed(0)
    np.save(tmp_path / "x.npy", torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8).numpy())
    to = ("--input", tmp_path / "x.npy", "--points", 3, "--out", tmp_path / "z.npz")
    ends = {}
    for start, options in (
        ("alone", ()),
        ("encoder", ("--steps", 3, "--start", "encoder")),
        ("noise", ("--steps", 3, "--start", "noise")),
    ):
        words = said("interpolate", runs / "networks", *to, *options)
        assert f"1 path of 3 points in {tmp_path / 'z.npz'}; z: " in words
        with np.load(tmp_path / "z.npz") as f:
            ends[start] = torch.from_numpy(f["z"][:, 0])
    x, method = torch.from_numpy(np.load(tmp_path / "x.npy"))[:1], lebm.load(runs / "networks")
    refined = method.encode(x, spec=method.choose("posterior", "encoder", 3))
    assert torch.allclose(ends["encoder"], refined, atol=1e-5)
    assert not torch.allclose(ends["encoder"], ends["alone"])
    assert not torch.allclose(ends["encoder"], ends["noise"])


@pytest.mark.parametrize(
    ("name", "command", "options", "words"),
    [
        ("paper", "sample", (), ""),
        ("paper", "sample", ("--start", "noise", "--steps", 3), ""),
        ("paper", "sample", ("--steps", 4), "; z: 4 steps of 0.4 from N(0, I)"),
        ("mixture", "sample", (), f"; z: 3 steps of 0.4 from {MIXTURE}"),
        ("mixture", "sample", ("--start", "noise", "--steps", 0), f"; z: drawn from {MIXTURE}"),
        ("mixture", "reconstruct", (), ""),  # posterior chains start from N(0, I), over any base
        ("chains", "reconstruct", ("--start", "noise"), "; z: 2 steps of 0.1 from N(0, I)"),
        ("chains", "reconstruct", ("--start", "encoder", "--steps", 0), "; z: by the encoder alone"),
        ("paper", "score", (), ""),
        ("networks", "score", ("--start", "noise", "--steps", 20), "; z: 20 steps of 0.1 from N(0, I)"),
        ("networks", "score", ("--score", "error"), "; z: the encoder's mean"),
        ("networks", "score", ("--score", "chains"), "; z: by the encoder alone"),
        ("chains", "score", ("--score", "likelihood"), "; z: importance weights around long posterior chains"),
        ("paper", "score", ("--score", "error"), ""),
    ],
)  # fmt: skip
def test_every_command_says_how_its_z_was_drawn(runs, tmp_path, said, name, command, options, words):
    np.save(tmp_path / "x.npy", np.full((2, 1, 8, 8), 99, dtype=np.uint8))
    where = () if command == "sample" else ("--input", tmp_path / "x.npy")
    to = tmp_path / ("out.csv" if command == "score" else "out.npz")
    text = said(command, runs / name, *where, "--out", to, *options)
    assert text.endswith(words) and ("; z: " in text) == bool(words), text


@pytest.mark.parametrize(
    "args",
    [
        ("sample", "--out", "x.npz", "--start", ""),
        ("reconstruct", "--input", "x.npy", "--out", "r.npz", "--start", ""),
        ("evaluate", "--metrics", "mse", "--prior-start", ""),
        ("evaluate", "--metrics", "mse", "--posterior-start", ""),
    ],
)
def test_an_empty_start_is_none(runs, tmp_path, said, monkeypatch, args):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.full((2, 1, 8, 8), 99, dtype=np.uint8))
    text = said(args[0], runs / "chains", *args[1:], code=2)
    assert "cannot start from ''" in text and "noise, " in text


def test_side_by_side_from_the_command_line(runs, tmp_path, said):
    to = tmp_path / "starts.json"
    options = ("--beside", "--metrics", "mse", "--limit", 9, "--result", to, "--device", "cpu")
    said("evaluate", runs / "chains", runs / "paper", *options)
    assert to.is_file()


def test_the_help_of_sample_says_what_no_steps_show(said):
    text = " ".join(said("sample", "--help").replace("│", " ").split())
    assert "0 from noise shows the base p_0" in text

"""Runs with ways to draw z of their own, from training to the published number: files, commands, results, tables."""

import json
import math
import re
import shutil
import sys

import numpy as np
import pytest
import torch

import lebm
from lebm import checkpoint, cli, documents, fast, report, results, speed, tables
from lebm.config import resolve
from lebm.data import Splits
from lebm.errors import ConfigError, DataError
from lebm.evaluate import evaluate, evaluate_all
from lebm.evaluation import Evaluation
from lebm.image_metrics import METRICS
from lebm.methods.encoder import FlatNet

pytest.importorskip("zuko")
TINY = ["nz=4", "prior.width=8", "generator.ngf=3", "encoder.width=2", "flow.width=8", "flow.layers=2", "draw.chains=30", "training.batch=20"]
TINY += ["chains.prior.steps=3", "chains.posterior.steps=2", "training.steps=3", "data.limit=60"]
MODES = {
    "paper": [],
    "warm": ["draw.posterior=warm", "draw.prior=persistent"],
    "networks": ["draw.posterior=amortised", "draw.prior=flow", "learning.ema=0.5"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, settings in MODES.items():
        lebm.train(resolve("digits", [*TINY, *settings, f"experiment={name}"]), run=folder / name, device="cpu")
    return folder


@pytest.mark.parametrize("name", MODES)
def test_a_saved_model_draws_what_the_learned_one_drew(tmp_path, name):
    model = lebm.train(resolve("digits", [*TINY, *MODES[name]]), run=tmp_path / "run", device="cpu")
    again, x = lebm.load(tmp_path / "run"), torch.zeros(3, 1, 8, 8)
    assert torch.equal(model.sample(5), again.sample(5))
    for call in ("infer", "reconstruct", "anomaly_score"):
        assert torch.equal(getattr(model, call)(x), getattr(again, call)(x))
    assert set(checkpoint.load_tensors(tmp_path / "run" / "model.safetensors")[0]) == set(model.state_dict())


def test_a_generator_of_your_own_gets_an_encoder_for_its_shape(tmp_path):
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
    model = lebm.train(resolve("digits", [*TINY, *MODES["warm"]]), x, Line(), run=tmp_path / "run", device="cpu")
    again = lebm.load(tmp_path / "run", generator=Line())
    assert torch.equal(model.infer(x), again.infer(x)) and not torch.equal(model.infer(x), model.infer(x, by="amortised"))


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"shape": (63,)}, "a row of the data has 3 values, and the generator says 63"),
        ({"shape": 3}, "says that its shape is 3; it must be that of a row of x"),
        ({"make_encoder": lambda self, nz: torch.nn.Linear(3, nz)}, r"the encoder makes numbers of shape \(20, 4\) .* 2 x nz = 8 of each"),
        ({"make_encoder": lambda self, nz: torch.nn.Linear(3, 1)}, r"the encoder makes numbers of shape \(20, 1\)"),
        ({"make_encoder": lambda self, nz: torch.nn.LSTM(3, 2 * nz)}, "the encoder makes a tuple of 20 rows; it must make one tensor"),
        ({"make_encoder": lambda self, nz: None}, r"make_encoder\(4\) of the generator Odd gave a NoneType"),
    ],
)
def test_what_an_own_generator_says_of_its_encoder_must_fit(facts, says):
    class Odd(torch.nn.Linear):
        decode = torch.nn.Linear.forward

        def log_prob(self, x, z):
            return -(x - self.decode(z)).square().sum(1)

    for name, value in facts.items():
        setattr(Odd, name, value)
    with pytest.raises((ConfigError, DataError), match=says):
        lebm.train(resolve("digits", [*TINY, *MODES["warm"], "nz=4"]), torch.randn(40, 3), Odd(4, 3), device="cpu")


def test_whole_numbers_are_encoded_too():
    assert FlatNet(3, 2, 4, 1)(torch.arange(6).view(2, 3)).shape == (2, 4)


def test_models_from_before_the_ways_load(runs, tmp_path):
    tensors, meta = checkpoint.load_tensors(runs / "paper" / "model.safetensors")
    for key in ("draw", "encoder", "flow"):
        del meta["config"][key]
    for key in ("encoder_rate", "flow_rate"):
        del meta["config"]["learning"][key]
    checkpoint.save_tensors(tmp_path / "old.safetensors", tensors, meta)
    assert torch.equal(lebm.load(tmp_path / "old.safetensors").sample(3), lebm.load(runs / "paper").sample(3))
    assert not [k for k in tensors if k.startswith(("inference", "synthesis"))]


def test_a_p_0_from_before_it_counted_has_seen_enough(tmp_path):
    model = lebm.train(resolve("digits", [*TINY, "prior.base=mixture", "prior.parts=2"]), run=tmp_path / "run", device="cpu")
    tensors, meta = checkpoint.load_tensors(tmp_path / "run" / "model.safetensors")
    assert int(tensors.pop("prior.updates")) == 3
    checkpoint.save_tensors(tmp_path / "old.safetensors", tensors, meta)
    old = lebm.load(tmp_path / "old.safetensors")
    assert torch.equal(old.sample(3), model.sample(3))
    old.prior.see(torch.ones(10, 4))
    assert float((old.prior.first - 1).abs().max()) > 0.9  # one batch among a thousand


def test_going_on_with_a_model_needs_its_ways(runs):
    model = lebm.load(runs / "paper")
    with pytest.raises(ConfigError, match="the model has draw = .*langevin.*the configuration .*warm"):
        lebm.train(resolve("digits", [*TINY, "draw.posterior=warm"]), model=model, device="cpu")


@pytest.mark.parametrize(
    ("name", "options", "frechet", "mse"),
    [
        ("paper", {}, ("langevin", 3), ("langevin", [2, 100])),
        ("warm", {}, ("persistent", [3, 6]), ("warm", [2, 100])),
        ("warm", {"prior_by": "langevin", "posterior_by": "amortised"}, ("langevin", 3), ("amortised", [0])),
        ("networks", {}, ("flow", 0), ("amortised", [0])),
        ("networks", {"posterior_by": "langevin"}, ("flow", 0), ("langevin", [100])),
        ("networks", {"prior_by": "langevin"}, ("langevin", 60), ("amortised", [0])),
    ],
)
def test_every_number_says_how_its_z_was_drawn(runs, name, options, frechet, mse):
    summary = evaluate(runs / name, ("frechet", "mse"), samples=40, limit=20, device="cpu", pictures=False, **options)
    protocol, metrics = summary["protocol"], summary["metrics"]
    assert (protocol["frechet"]["by"], protocol["frechet"]["chain_steps"]) == frechet
    assert (protocol["mse"]["by"], protocol["mse"]["chain_steps"]) == mse
    assert [metrics[k] is not None for k in ("mse", "mse_100")] == [mse[1] != [100], 100 in mse[1]]
    assert math.isfinite(metrics["frechet"])


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        ([], "one a row from N(0, I), noise on"),
        (["noise=0"], "one a row from N(0, I), noise off"),
        (
            ["noise=0.5", "first_steps=[0.6,0.4]", "bound=0.3"],
            "one a row from N(0, I), noise times 0.5, first step sizes 0.6, 0.4, drift of a step at most 0.3",
        ),
    ],
)
def test_the_error_says_what_its_chain_was(chain, said):
    model = lebm.LatentEBM(resolve("digits", [*TINY, *(f"chains.posterior.{setting}" for setting in chain)]))
    ev = Evaluation(model, Splits(torch.zeros(9, 1, 8, 8), torch.zeros(2, 1, 8, 8)))
    numbers = METRICS["mse"](ev)
    first = dict(next(numbers))  # kept while the long chains still run
    assert ev.protocol["chain"] == said and ev.protocol["chain_steps"] == [model.config.chains.posterior.steps]
    assert first["mse"] > 0 and first["mse_100"] is None
    assert [values["mse_100"] > 0 for values in numbers] == [True] and ev.protocol["chain_steps"][1:] == [100]


def test_the_report_of_a_run_names_its_ways(runs):
    evaluate(runs / "warm", ("mse",), limit=10, device="cpu")
    page = (runs / "warm" / "report.html").read_text(encoding="utf-8")
    assert "an encoder proposes where posterior chains start and prior chains go on from update to update" in page
    assert "short Langevin chains teach both by maximum likelihood" in page
    assert "the encoder proposes z, a chain of 2 steps refines it" in page and "a kept chain, continued, 3 to 9 steps" in page
    evaluate(runs / "networks", ("mse",), limit=10, device="cpu")
    page = (runs / "networks" / "report.html").read_text(encoding="utf-8")
    assert "both are learned by maximum likelihood" in page and "short Langevin chains" not in page
    assert "the encoder finds z" in page and "(z), the flow alone</span>" in page


def test_a_caption_tells_how_its_own_picture_was_drawn(runs, tmp_path):
    """Numbers measured before by another way stay in metrics.json; the pictures are new."""
    folder = shutil.copytree(runs / "networks", tmp_path / "run")
    evaluate(folder, ("mse", "frechet"), samples=20, limit=10, device="cpu", pictures=False)
    options = {"samples": 20, "limit": 10, "device": "cpu", "prior_by": "langevin", "posterior_by": "langevin"}
    evaluate(folder, ("speed",), **options)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "a posterior chain of 100 steps finds z" in page and "(z), a chain from N(0, I), 60 steps</span>" in page
    assert "Mean squared error a pixel, z by amortised <b>" in page and "Fréchet distance, z by flow <b>" in page
    assert "without decoding; z by langevin" in page and "a pixel on test images; lower is better; z by amortised" in page
    before = (folder / "figures" / "samples.png").read_bytes()
    evaluate(folder, ("speed",), limit=10, device="cpu")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert (folder / "figures" / "samples.png").read_bytes() != before, "by the run's own way again"
    assert "the encoder finds z" in page and "(z), the flow alone</span>" in page
    assert "Mean squared error a pixel <b>" in page and "Fréchet distance <b>" in page
    report.compare([folder, folder], tmp_path / "both.html")
    assert (tmp_path / "both.html").read_text(encoding="utf-8").count("<span>the flow alone</span>") == 2


def test_runs_measured_by_different_ways_have_a_best_only_by_their_own(runs, tmp_path):
    folders = [shutil.copytree(runs / name, tmp_path / name) for name in ("warm", "paper")]
    options = {"limit": 10, "device": "cpu", "pictures": False}

    def shown():
        report.compare(folders, tmp_path / "both.html")
        page = (tmp_path / "both.html").read_text(encoding="utf-8")
        return re.search(r"<tr><th scope=\"row\">Reconstruction error<small>.*?</tr>", page)[0]

    for folder in folders:
        evaluate(folder, ("mse",), **options)
    assert shown().count("<mark>") == 1 and "z by warm" in shown() and "z by langevin" in shown()
    evaluate(folders[0], ("mse",), posterior_by="langevin", **options)
    assert shown().count("<mark>") == 1 and "z by" not in shown()
    evaluate(folders[0], ("mse",), posterior_by="amortised", **options)
    assert "<mark>" not in shown() and "z by amortised" in shown() and "z by langevin" in shown()
    evaluate(folders[0], ("mse",), posterior_by="langevin", **options)
    file = folders[1] / "metrics.json"
    summary = json.loads(file.read_text())
    del summary["protocol"]["mse"]["by"]  # as in files from before it was named
    file.write_text(json.dumps(summary))
    assert shown().count("<mark>") == 1 and "z by" not in shown()


def test_an_evaluation_alone_says_where_chains_start(runs, tmp_path):
    """The energy's figure is of the run's own chains, before any are drawn for the page."""
    for name, start in (
        ("warm", "The prior's samples are where it starts: the kept chains of learning"),
        ("paper", "has learned little beyond N(0, I)"),
    ):
        folder = shutil.copytree(runs / name, tmp_path / name)
        evaluate(folder, ("mse",), limit=10, device="cpu")
        assert start in (folder / "report.html").read_text(encoding="utf-8")


def test_a_likelihood_says_what_its_weights_are_of(runs, rough_log_z):
    """By its own proposal, whatever way another metric is asked to take."""
    for name, words in (("warm", "100 steps from the encoder's proposals"), ("paper", "100 steps from N(0, I)")):
        ev = Evaluation(lebm.load(runs / name), Splits(torch.zeros(20, 1, 8, 8), torch.zeros(4, 1, 8, 8)), limit=2)
        METRICS["likelihood"](ev)
        assert ev.protocol["proposal"] == f"Gaussians fitted to posterior chains of {words}" and "by" not in ev.protocol


def test_a_time_says_where_the_fast_engine_does_not_run(runs, monkeypatch):
    """As training would: with the reference instead, and a note."""
    ev = Evaluation(lebm.load(runs / "warm"), Splits(torch.zeros(20, 1, 8, 8), torch.zeros(4, 1, 8, 8)), limit=4)
    monkeypatch.setattr(speed, "MOST", 20)
    assert METRICS["speed"](ev)["iteration_ms"] > 0 and "engine" not in ev.protocol
    monkeypatch.setattr(fast, "wanted", lambda *_: True)
    monkeypatch.setitem(sys.modules, "lebm.fast.engine", None)  # as where Triton is missing
    assert METRICS["speed"](ev)["iteration_ms"] > 0
    assert "the fast engine is not available" in ev.protocol["engine"] and "Triton is not there" in ev.protocol["engine"]


def test_ways_that_a_run_does_not_have_are_refused_before_the_work(runs):
    for options, words in (({"prior_by": "flow"}, "has no flow"), ({"posterior_by": "flow"}, "there are langevin, amortised, warm")):
        with pytest.raises(DataError, match=words):
            evaluate(runs / "warm", ("mse",), device="cpu", **options)


def test_side_by_side_is_one_result_and_a_table(runs, tmp_path, monkeypatch):
    summary = evaluate_all([runs / n for n in MODES], ("frechet", "mse"), True, samples=40, limit=20, device="cpu", pictures=False)
    results.write(tmp_path / "results" / "modes.json", summary)
    found = documents.read_results(tmp_path / "results")
    assert set(found["modes"]["metrics"]) == set(MODES) == set(found["modes"]["config"]) == set(found["modes"]["protocol"])
    assert tables.column(found["modes"]) is None  # not a row of Table 1
    lines = tables.side_by_side(found, "results/").splitlines()
    assert len(lines) == 2 + len(MODES)
    assert lines[3].startswith("| `warm` | warm | persistent | 2 | 3 |") and f"{summary['metrics']['warm']['mse']:.4f}" in lines[3]
    with pytest.raises(ConfigError, match="a name of its own"):
        evaluate_all([runs / "warm", runs / "warm"], ("mse",), True)
    with pytest.raises(ConfigError, match="not one experiment"):
        evaluate_all([runs / "warm", runs / "paper"], ("mse",))
    monkeypatch.setattr("lebm.evaluate.evaluate", lambda *a, **k: pytest.fail("refused before the work"))
    with pytest.raises(DataError, match="has no encoder"):
        evaluate_all([runs / "warm", runs / "paper"], ("mse",), True, posterior_by="amortised")


def test_table_1_shows_the_error_of_a_runs_own_inference():
    result = {"config": {"draw": {"posterior": "warm"}}, "metrics": {"mse": 0.00312, "mse_100": 0.0029}}
    assert tables.own_mse(result) == "0.0031 (warm)"
    for config in ({}, {"draw": {"posterior": "langevin"}}, None):
        assert tables.own_mse({**result, "config": config}) == "0.0029"
    assert tables.own_mse({**result, "protocol": {"mse": {"by": "langevin"}}}) == "0.0029", "chains from noise, whatever it was learned with"
    amortised = {"config": {"draw": {"posterior": "amortised"}}, "metrics": {"mse": None, "mse_100": 0.0041}}
    assert tables.own_mse({**amortised, "protocol": {"mse": {"by": "langevin"}}}) == "0.0041"
    assert tables.own_mse({**result, "protocol": {"mse": {"by": "amortised"}}}) == "0.0031 (amortised)"


def test_inference_is_timed_against_chains_of_equal_error(monkeypatch):
    """A model whose error is known: the encoder alone has 0.5, a chain of K steps 10/K; so 20 steps suffice."""
    calls = []

    class Known:
        def drawing(self, kind, by, steps):
            return lebm.LatentEBM(resolve("digits", ["draw.posterior=amortised"])).drawing(kind, by, steps)

        def infer(self, x, seed, steps, shared_noise, by):
            calls.append((by, steps))
            return torch.full((len(x), 1), 0.5 if by != "langevin" else 10 / steps)

        def decode(self, z):
            return z.sqrt()

    monkeypatch.setattr(speed, "FIRST", 5)
    monkeypatch.setattr(speed, "CALLS", 3)
    clock = iter(
        [0, 9, 10, 12, 20, 21] + [t for k in range(4) for t in (30, 30 + k / 8, 40, 40 + k / 8, 50, 50 + k / 8)]
    )  # 9, 2 and 1 s for the encoder
    monkeypatch.setattr(speed, "ENOUGH", 99.0)
    monkeypatch.setattr(speed.time, "perf_counter", lambda: next(clock))
    numbers, how = speed.inference(Known(), torch.zeros(4, 1), 0, None, None, lambda *_: None)
    assert calls == [(None, None)] * 4 + [("langevin", k) for k in (4, 8, 16, 32) for _ in range(3)]
    assert numbers["infer_ms"] == 2000 / 4 and numbers["infer_chains_ms"] == 375 / 4, "medians, for each of four images"
    assert how["mse"] == pytest.approx(0.5) and how["chains_mse"] == pytest.approx(10 / 32) and how["by"] == "amortised"
    assert numbers["infer_ratio"] == pytest.approx(numbers["infer_chains_ms"] / numbers["infer_ms"])
    monkeypatch.setattr(speed, "MOST", 8)
    monkeypatch.setattr(speed.time, "perf_counter", iter(range(1000)).__next__)
    monkeypatch.setattr(speed, "ENOUGH", 1.0)  # a call takes a second: it is not made again
    calls.clear()
    assert "still a larger error" in speed.inference(Known(), torch.zeros(4, 1), 0, None, None, lambda *_: None)[1]["chains"]
    assert calls == [(None, None)] * 2 + [("langevin", 4), ("langevin", 8)]


def test_speed_of_a_run(runs):
    for name in ("paper", "warm"):
        summary = evaluate(runs / name, ("speed",), limit=10, device="cpu", pictures=False)
        m = summary["metrics"]
        assert m["iteration_ms"] > 0 and m["infer_ms"] > 0
        assert (m["infer_chains_ms"] is None) == (name == "paper")
    assert json.loads((runs / "warm" / "metrics.json").read_text())["protocol"]["speed"]["by"] == "warm"


def run(capsys, *words):
    import sys
    from unittest import mock

    with mock.patch.object(sys, "argv", ["lebm", *map(str, words)]), pytest.raises(SystemExit) as e:
        cli.main()
    shown = capsys.readouterr()
    return int(e.value.code or 0), " ".join((shown.out + shown.err).split())


def test_commands_take_the_runs_way_or_another(runs, tmp_path, capsys):
    code, said = run(capsys, "sample", runs / "warm", "-n", 4, "--out", tmp_path / "s.png")
    assert code == 0 and "z by persistent (a kept chain, continued, 3 steps)" in said
    code, said = run(capsys, "sample", runs / "warm", "-n", 40, "--out", tmp_path / "s.npz")
    assert code == 0 and "z by persistent (a kept chain, continued, 3 to 6 steps)" in said, "30 chains are kept"
    code, said = run(capsys, "sample", runs / "warm", "-n", 4, "--by", "langevin", "--out", tmp_path / "s.png")
    assert code == 0 and "z by langevin (a chain from N(0, I), 3 steps)" in said  # not the run's own
    code, said = run(capsys, "reconstruct", runs / "networks", "--input", tmp_path / "s.png", "--out", tmp_path / "r.npz")
    assert code == 0 and "z by amortised (the encoder alone)" in said
    code, said = run(capsys, "score", runs / "warm", "--by", "amortised", "--input", tmp_path / "s.png", "--out", tmp_path / "r.csv")
    assert code == 0 and "z by amortised" in said
    code, said = run(capsys, "score", runs / "paper", "--by", "warm", "--input", tmp_path / "s.png", "--out", tmp_path / "r.csv")
    assert code == 2 and "has no encoder" in said
    words = ("evaluate", runs / "warm", runs / "paper", "--beside", "--metrics", "mse", "--limit", 9, "--result", tmp_path / "modes.json")
    code, said = run(capsys, *words, "--device", "cpu")
    assert code == 0 and json.loads((tmp_path / "modes.json").read_text())["experiment"] == tables.SIDE_BY_SIDE
    code, said = run(capsys, "train", "digits", "--set", "draw.posterior=warm", "--dry-run")
    assert code == 0 and "encoder" in said


def test_paths_are_inferred_by_the_way_that_is_asked_for(runs, tmp_path, capsys):
    torch.manual_seed(0)
    np.save(tmp_path / "x.npy", torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8).numpy())
    words = ("interpolate", runs / "networks", "--input", tmp_path / "x.npy", "--points", 3, "--out", tmp_path / "z.npz")
    code, said = run(capsys, *words, "--steps", 3)
    assert code == 2 and "draw by warm instead" in said
    ends = {}
    for by, options in (("amortised", ()), ("warm", ("--steps", 3, "--by", "warm")), ("langevin", ("--steps", 3, "--by", "langevin"))):
        code, said = run(capsys, *words, *options)
        assert code == 0 and f"1 path of 3 points in {tmp_path / 'z.npz'}; z by {by} (" in said
        with np.load(tmp_path / "z.npz") as f:
            ends[by] = torch.from_numpy(f["z"][:, 0])
    x, model = torch.from_numpy(np.load(tmp_path / "x.npy"))[:1], lebm.load(runs / "networks")
    assert torch.allclose(ends["warm"], model.infer(x, steps=3, by="warm"), atol=1e-5)
    assert not torch.allclose(ends["warm"], ends["amortised"]) and not torch.allclose(ends["warm"], ends["langevin"])


@pytest.mark.parametrize(
    ("name", "command", "options", "words"),
    [
        ("paper", "sample", (), ""),
        ("paper", "sample", ("--by", "langevin", "--steps", 3), ""),
        ("paper", "sample", ("--steps", 4), "; z by langevin (a chain from N(0, I), 4 steps)"),
        ("mixture", "sample", (), "; z by langevin (a chain from a mixture of Gaussians, 3 steps)"),
        ("mixture", "sample", ("--by", "langevin", "--steps", 0), "; z by langevin (a chain from a mixture of Gaussians, 0 steps)"),
        ("mixture", "reconstruct", (), ""),  # posterior chains start from N(0, I), over any p_0
        ("warm", "reconstruct", ("--by", "langevin"), "; z by langevin (a chain from N(0, I), 2 steps)"),
        ("warm", "reconstruct", ("--by", "warm", "--steps", 0), "; z by warm (a chain from the encoder's proposal, 0 steps)"),
        ("paper", "score", (), ""),
        ("networks", "score", ("--by", "langevin", "--steps", 20), "; z by langevin (a chain from N(0, I), 20 steps)"),
        ("networks", "score", ("--score", "error"), "; z is the encoder's mean"),
        ("networks", "score", ("--score", "chains"), "; z by amortised (the encoder alone)"),
        ("warm", "score", ("--score", "likelihood"), "; z by importance weights around long posterior chains"),
        ("paper", "score", ("--score", "error"), ""),
    ],
)
def test_every_command_says_how_its_z_was_drawn(runs, tmp_path, capsys, name, command, options, words):
    if name == "mixture":
        lebm.train(resolve("digits", [*TINY, "prior.base=mixture", "prior.parts=2"]), run=tmp_path / name, device="cpu")
    np.save(tmp_path / "x.npy", np.full((2, 1, 8, 8), 99, dtype=np.uint8))
    where = () if command == "sample" else ("--input", tmp_path / "x.npy")
    to = tmp_path / ("out.csv" if command == "score" else "out.npz")
    code, said = run(capsys, command, tmp_path / name if name == "mixture" else runs / name, *where, "--out", to, *options)
    assert code == 0 and said.endswith(words) and ("; z " in said) == bool(words), said


@pytest.mark.parametrize(
    "words",
    [
        ("sample", "--out", "x.npz", "--by", ""),
        ("reconstruct", "--input", "x.npy", "--out", "r.npz", "--by", ""),
        ("evaluate", "--metrics", "mse", "--prior-by", ""),
        ("evaluate", "--metrics", "mse", "--posterior-by", ""),
    ],
)
def test_an_empty_way_is_no_way(runs, tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.full((2, 1, 8, 8), 99, dtype=np.uint8))
    code, said = run(capsys, words[0], runs / "warm", *words[1:])
    assert code == 2 and "cannot be drawn by ''; there are langevin, " in said


def test_the_help_of_sample_says_what_no_steps_show(capsys):
    said = run(capsys, "sample", "--help")[1]
    assert "With --by langevin, 0 shows p_0: N(0, I), or what the run fitted." in " ".join(said.replace("│", " ").split())

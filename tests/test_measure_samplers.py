"""How z was drawn for each number of runs with other starts than noise, and how long inference takes."""

import json
import math
import sys
from dataclasses import replace

import pytest
import torch

from lebm.config import resolve
from lebm.config.build import build
from lebm.core.errors import ConfigError, DataError
from lebm.data import Splits
from lebm.measure import METRICS, likelihood, longrun, result, speed
from lebm.measure import evaluate as evaluate_module
from lebm.measure.evaluate import evaluate, evaluate_all
from lebm.measure.metric import Evaluation, choose
from lebm.method import Method
from lebm.run import load
from lebm.sampler import SamplerSpec
from lebm.training.train import train

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
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, settings in RUNS.items():
        train(resolve("digits", [*TINY, *settings, f"name={name}"]), run=folder / name, device="cpu")
    return folder


def of(method, limit):
    """An evaluation on a few black images."""
    return Evaluation(method, Splits(torch.zeros(20, 1, 8, 8), torch.zeros(4, 1, 8, 8)), limit=limit)


@pytest.mark.parametrize(
    ("name", "options", "frechet", "mse"),
    [
        ("paper", {}, ("noise", 3), ("noise", {"mse": 2, "mse_100": 100})),
        ("chains", {}, ("replay", 3), ("encoder", {"mse": 2, "mse_100": 100})),
        ("chains", {"prior": ("noise", None), "posterior": ("encoder", 0)}, ("noise", 3), ("encoder", {"mse": 0})),
        ("networks", {}, ("flow", 0), ("encoder", {"mse": 0})),
        ("networks", {"posterior": ("noise", None)}, ("flow", 0), ("noise", {"mse_100": 100})),
        ("networks", {"posterior": ("noise", 9)}, ("flow", 0), ("noise", {"mse": 9, "mse_100": 100})),
        ("networks", {"prior": ("noise", None)}, ("noise", 60), ("encoder", {"mse": 0})),
    ],
)
def test_every_number_says_how_its_z_was_drawn(runs, name, options, frechet, mse):
    settings = {"samples": 40, "limit": 20, "device": "cpu", "pictures": False}
    summary = evaluate(runs / name, ("frechet", "mse"), **settings, **options)
    protocol, metrics = summary["protocol"], summary["metrics"]
    spec = SamplerSpec.from_dict(protocol["frechet"]["sampler"])
    assert (spec.start, spec.steps) == frechet
    assert (protocol["mse"]["sampler"]["start"], protocol["mse"]["steps"]) == mse
    assert {k for k in ("mse", "mse_100") if metrics[k] is not None} == set(mse[1])
    assert math.isfinite(metrics["frechet"])
    if frechet[0] == "replay":  # 40 samples continue 30 chains: some of them twice
        assert spec.rounds(protocol["frechet"]["samples"]) == 2


@pytest.mark.parametrize("chain", [{}, {"noise": 0.0}, {"noise": 0.5, "first_steps": [0.6, 0.4], "drift_limit": 0.3}])
def test_the_error_says_what_its_chain_was(chain):
    settings = [f"method.posterior_chain.{key}={value}" for key, value in chain.items()]
    method = build(resolve("digits", [*TINY, *settings]))
    ev = of(method, None)
    numbers = METRICS["mse"].measure(ev)
    first = dict(next(numbers))  # while the long chains still run
    assert ev.protocol["sampler"]["options"] == chain | (
        {"first_steps": [], "drift_limit": 0.0} | chain if chain else {}
    )
    assert ev.protocol["steps"] == {"mse": 2} and first["mse"] > 0 and first["mse_100"] is None
    assert [values["mse_100"] > 0 for values in numbers] == [True]
    assert ev.protocol["steps"] == {"mse": 2, "mse_100": 100}


def test_a_likelihood_says_what_its_weights_are_of(runs, rough_log_z):
    """By its own proposal, whatever sampler another metric is asked to take."""
    for name, start in (("chains", "encoder"), ("paper", "noise")):
        ev = of(load(runs / name), 2)
        METRICS["likelihood"].measure(ev)
        assert (ev.protocol["proposal"]["start"], ev.protocol["proposal"]["steps"]) == (start, 100)
        assert ev.protocol["sampler"] == likelihood.proposal_spec(ev.method).to_dict()


def test_a_time_says_where_the_fast_engine_does_not_run(runs, monkeypatch):
    """As training would: with the reference instead, and a note."""
    ev = of(load(runs / "chains"), 4)
    monkeypatch.setattr(speed, "MOST", 20)
    assert METRICS["speed"].measure(ev)["iteration_ms"] > 0 and "engine" not in ev.protocol
    monkeypatch.setattr("lebm.training.engine.wanted", lambda *_: True)
    monkeypatch.setattr("lebm.config.build._optimizer", _on_a_cpu)
    monkeypatch.setitem(sys.modules, "lebm.fast.graphs", None)  # as where Triton is missing
    assert METRICS["speed"].measure(ev)["iteration_ms"] > 0
    assert "Triton" in ev.protocol["engine"]


def _on_a_cpu(section, params, capturable, device):
    return torch.optim.Adam(params, lr=section.rate)


def test_starts_that_a_run_does_not_have_are_refused_before_the_work(runs, monkeypatch):
    monkeypatch.setattr(evaluate_module, "measure", lambda *a, **k: pytest.fail("refused before the work"))
    for options, start in (({"prior": ("flow", None)}, "flow"), ({"posterior": ("flow", None)}, "flow")):
        with pytest.raises(DataError, match=start):
            evaluate(runs / "chains", ("mse",), device="cpu", **options)


def test_side_by_side_is_one_result(runs, monkeypatch):
    options = {"samples": 40, "limit": 20, "device": "cpu", "pictures": False}
    summary = evaluate_all([runs / n for n in RUNS], ("frechet", "mse"), True, **options)
    assert tuple(summary) == result.KEYS and summary["name"] == result.SIDE_BY_SIDE
    assert set(summary["metrics"]) == set(RUNS) == set(summary["config"]) == set(summary["protocol"])
    assert summary["metrics"]["chains"]["mse"] > 0
    with pytest.raises(ConfigError, match="name"):
        evaluate_all([runs / "chains", runs / "chains"], ("mse",), True)
    with pytest.raises(ConfigError, match="configuration"):
        evaluate_all([runs / "chains", runs / "paper"], ("mse",))
    monkeypatch.setattr(evaluate_module, "evaluate", lambda *a, **k: pytest.fail("refused before the work"))
    with pytest.raises(DataError, match="encoder"):
        evaluate_all([runs / "chains", runs / "paper"], ("mse",), True, posterior=("encoder", 0))


def test_chains_that_a_run_learned_without_have_the_papers_length(runs):
    method = load(runs / "networks")
    assert choose(method, "prior", "noise").steps == 60 and choose(method, "posterior", "noise").steps == 100
    assert choose(method, "prior") == method.choose("prior") and choose(method, "prior", "noise", 7).steps == 7
    assert choose(load(runs / "chains"), "prior", "noise").steps == 3, "the run's own chain, from another start"


def test_inference_is_timed_against_chains_of_equal_error(monkeypatch):
    """A method whose error is known: the encoder alone has 0.5, a chain of K steps 10/K; so 20 steps suffice."""
    calls = []
    encoder = SamplerSpec("posterior", "encoder")

    class Known:
        def starts(self, target):
            return ("noise", "encoder")

        def choose(self, target, start, steps):
            return SamplerSpec(target, start, steps, 0.1)

        def encode(self, x, seed, spec, shared_noise):
            calls.append((spec.start, spec.steps))
            return torch.full((len(x), 1), 0.5 if spec.start == "encoder" else 10 / spec.steps)

        def decode(self, z):
            return z.sqrt()

    monkeypatch.setattr(speed, "FIRST", 4)
    monkeypatch.setattr(speed, "CALLS", 3)
    encoding = [0, 9, 10, 12, 20, 21]  # 9, 2 and 1 s for the encoder
    clock = iter(encoding + [t for k in range(4) for t in (30, 30 + k / 8, 40, 40 + k / 8, 50, 50 + k / 8)])
    monkeypatch.setattr(speed, "ENOUGH", 99.0)
    monkeypatch.setattr(speed.time, "perf_counter", lambda: next(clock))
    numbers, protocol = speed.inference(Known(), torch.zeros(4, 1), 0, encoder, lambda *_: None)
    assert calls == [("encoder", 0)] * 4 + [("noise", k) for k in (4, 8, 16, 32) for _ in range(3)]
    assert numbers["infer_ms"] == 2000 / 4 and numbers["infer_chains_ms"] == 375 / 4, "medians, for each of four rows"
    assert protocol["mse"] == pytest.approx(0.5) and protocol["chains_mse"] == pytest.approx(10 / 32)
    assert protocol["sampler"] == encoder.to_dict()
    assert protocol["chains"] == replace(Known().choose("posterior", "noise", 32)).to_dict()
    assert numbers["infer_ratio"] == pytest.approx(numbers["infer_chains_ms"] / numbers["infer_ms"])
    monkeypatch.setattr(speed, "MOST", 8)
    monkeypatch.setattr(speed.time, "perf_counter", iter(range(1000)).__next__)
    monkeypatch.setattr(speed, "ENOUGH", 1.0)  # a call takes a second: it is not made again
    calls.clear()
    _, protocol = speed.inference(Known(), torch.zeros(4, 1), 0, encoder, lambda *_: None)
    assert protocol["chains_mse"] > protocol["mse"], "still a larger error"
    assert calls == [("encoder", 0)] * 2 + [("noise", 4), ("noise", 8)]


def test_speed_of_a_run(runs):
    for name in ("paper", "chains"):
        summary = evaluate(runs / name, ("speed",), limit=10, device="cpu", pictures=False)
        m = summary["metrics"]
        assert m["iteration_ms"] > 0 and m["infer_ms"] > 0
        assert (m["infer_chains_ms"] is None) == (name == "paper")
    protocol = json.loads((runs / "chains" / "metrics.json").read_text())["protocol"]
    assert protocol["speed"]["sampler"]["start"] == "encoder"


class Chainless(Method):
    """Infers z by an encoder alone, as a VAE does."""

    def __init__(self, generator):
        super().__init__()
        self.generator = generator

    def samplers(self):
        return {"prior": SamplerSpec("prior"), "posterior": SamplerSpec("posterior", "encoder")}

    def infer(self, x, rng, spec=None, shared_noise=True):
        return torch.zeros(len(x), 4)


def test_a_method_without_chains_has_no_error_of_longer_ones(runs):
    ev = of(Chainless(load(runs / "paper").generator), limit=4)
    *_, numbers = METRICS["mse"].measure(ev)
    assert numbers["mse"] is not None and numbers["mse_100"] is None and ev.protocol["steps"] == {"mse": 0}
    ev.choices = {"posterior": (None, 50)}
    with pytest.raises(DataError, match="leave the steps out"):
        next(METRICS["mse"].measure(ev))


def test_a_prior_without_a_chain_has_no_long_run(runs):
    class Images:
        method = Chainless(load(runs / "paper").generator)

        def images_only(self, what):
            pass

    with pytest.raises(DataError, match="leave the steps out"):
        longrun.check(Images(), 2500)

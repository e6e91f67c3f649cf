"""The loop: what it logs, when it stops, and what lebm.train takes from a user of the library."""

import copy
import json
import math
import os
import signal
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import lebm
from lebm import data
from lebm.config import resolve
from lebm.config.build import build
from lebm.core.device import fitting_threads
from lebm.core.errors import CheckpointError, ConfigError, DataError, Diverged, Interrupted, UserError
from lebm.core.progress import Reporter
from lebm.extensions.bases import WhitenedGaussian
from lebm.extensions.tempered_chain import TemperedChain
from lebm.generators import TableGenerator
from lebm.health import short_reach
from lebm.latent_ebm import LatentEBM
from lebm.method import Method
from lebm.run import Run
from lebm.sampler import Chain
from lebm.training import engine
from lebm.training.health import exploded, largest_weights
from lebm.training.loop import Log
from lebm.training.stages import Stages
from lebm.training.state import TrainingState, stream_name
from lebm.training.train import make_batches, train
from lebm.training.user_generator import check_generator

TINY = [
    "generator.ngf=4",
    "method.energy.width=16",
    "method.prior_chain.steps=5",
    "method.posterior_chain.steps=3",
    "training.updates=6",
    "training.log_every=2",
    "training.checkpoint_every=3",
    "training.batch=20",
]
GAUSSIAN = ["method.energy=null", "method.prior_chain.steps=0"]
ENCODER = ["method.posterior_start.kind=encoder", "method.posterior_start.width=4"]
FLOW = ["method.prior_start.kind=flow"]
ALONE = "training.stages=[{until: 5, set: {method.posterior_chain.steps: 0}}]"
ROW_KEYS = {
    "step", "epoch", "f_pos", "f_neg", "gap", "log_px", "mse", "grad_prior", "grad_generator", "disp_neg", "disp_pos",
    "z_mean_neg", "z_sq_neg", "z_spread_neg", "z_mean_pos", "z_sq_pos", "z_spread_pos", "updates_per_second", "seconds",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


class Heard(Reporter):
    """Keeps what is said."""

    def __init__(self):
        self.lines = []

    def say(self, words):
        self.lines.append(words)

    def about(self, *parts):
        return [line for line in self.lines if all(part in line for part in parts)]


@pytest.fixture
def heard():
    return Heard()


def tiny(*settings):
    return resolve("digits", [*TINY, *settings])


def strict_rows(run):
    """The log read by a parser that takes no NaN."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in (run / "log.jsonl").read_text().splitlines()]


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# --- a run --------------------------------------------------------------------------------------------------------


def test_a_run_is_a_folder(tmp_path):
    model = train(tiny(), run=tmp_path / "run")
    run = tmp_path / "run"
    names = {p.name.split(".")[0] for p in run.iterdir()}
    assert names == {"config", "log", "model", "checkpoints", "events"}  # events: TensorBoard's file
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["00000000", "00000003", "00000006"]
    assert resolve(run) == tiny() and not model.training and model.updates == 6
    rows = strict_rows(run)
    assert [r["step"] for r in rows] == [2, 3, 4, 6] and all(set(r) == ROW_KEYS for r in rows)
    assert all(r["gap"] == pytest.approx(r["f_pos"] - r["f_neg"], abs=1e-6) for r in rows)
    again = lebm.load(run)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    assert torch.equal(model.sample(3, seed=4), again.sample(3, seed=4)) and again.updates == 6


def test_the_config_of_a_run_is_enough_to_run_it_again(tmp_path):
    train(tiny(), run=tmp_path / "a")
    train(tmp_path / "a" / "config.yaml", run=tmp_path / "b")
    a, b = (load_file(tmp_path / x / "model.safetensors") for x in "ab")
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_tensorboard_shows_the_same_numbers(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(tiny(), run=tmp_path / "run")
    events = accumulator.EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    shown = {e.step: e.value for e in events.Scalars("gap")}
    assert shown == pytest.approx({r["step"]: r["gap"] for r in strict_rows(tmp_path / "run")})


def test_without_a_run_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir(tmp_path))
    state = torch.random.get_rng_state()
    model = train(tiny())
    assert isinstance(model, Method) and sorted(os.listdir(tmp_path)) == before
    assert torch.equal(torch.random.get_rng_state(), state), "the global stream is the caller's"


def test_no_updates_is_a_model_as_it_begins(tmp_path):
    train(tiny("training.updates=0"), run=tmp_path / "run")
    a, b = lebm.load(tmp_path / "run"), build(tiny())
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_the_average_is_what_is_saved_for_use(tmp_path):
    returned = train(tiny("training.ema=0.5"), run=tmp_path / "run")
    tensors = load_file(tmp_path / "run" / "checkpoints" / "00000006" / "tensors.safetensors")
    model = load_file(tmp_path / "run" / "model.safetensors")
    names = [k for k in model if k.startswith("generator.")]
    assert all(torch.equal(model[k], tensors[f"ema.{k}"]) for k in names)
    assert not any(torch.equal(model[k], tensors[f"model.{k}"]) for k in names)
    assert all(torch.equal(model[k], tensors[f"model.{k}"]) for k in model if k.startswith("prior."))
    assert all(torch.equal(v, model[k]) for k, v in returned.state_dict().items())


def test_the_average_moves_by_one_minus_its_decay(tmp_path):
    train(tiny("training.ema=0.9", "training.updates=3", "training.checkpoint_every=1"), run=tmp_path / "run")
    two, three = (load_file(tmp_path / "run" / "checkpoints" / f"{i:08d}" / "tensors.safetensors") for i in (2, 3))
    name = "generator.layers.0.weight"
    expected = 0.9 * two[f"ema.{name}"] + 0.1 * three[f"model.{name}"]
    torch.testing.assert_close(three[f"ema.{name}"], expected)
    assert not torch.equal(three[f"ema.{name}"], two[f"ema.{name}"])


def test_a_whitened_base_moves_at_its_hundredth_update_to_the_moments_of_posterior_draws(tmp_path, monkeypatch):
    seen = []
    real = WhitenedGaussian.observe
    monkeypatch.setattr(WhitenedGaussian, "observe", lambda self, z: (seen.append(z.clone()), real(self, z))[1])
    config = [*GAUSSIAN, "method.base.kind=whitened", "method.posterior_chain.steps=1"]
    config += ["training.checkpoint_every=99", "training.log_every=99"]
    before = train(tiny(*config, "training.updates=99"), run=tmp_path / "run")
    assert torch.equal(before.prior.base.mean, torch.zeros(len(before.prior.base.mean)))
    model = train(tiny(*config, "training.updates=101"), run=tmp_path / "run", resume=True)  # across the fit
    mean = torch.zeros(len(model.prior.base.mean))
    for t, z in enumerate(seen[:100]):
        mean = mean.lerp(z.mean(0), 1 / (20 + t / 2))
    assert len(seen) == 101
    torch.testing.assert_close(model.prior.base.mean, mean)
    straight = train(tiny(*config, "training.updates=101"))
    assert all(torch.equal(v, straight.state_dict()[k]) for k, v in model.state_dict().items())


def test_rates_decay_once_an_epoch():
    config = tiny("training.decay=0.5", "optimizers.prior.rate=1e-4", "optimizers.generator.rate=1e-3")
    state = TrainingState(config, build(config), torch.device("cpu"))
    stages = Stages(config, state.method, state.optimizers)
    stages.enter(0)
    stages.prepare(0, epoch=3)
    rates = {name: o.param_groups[0]["lr"] for name, o in state.optimizers.items()}
    assert rates == pytest.approx({"prior": 1e-4 / 8, "generator": 1e-3 / 8})


# --- stopping -----------------------------------------------------------------------------------------------------


@pytest.fixture
def at_update(monkeypatch):
    """at_update(n, action): the action happens inside the n-th update from now; it is given the method."""

    def plan(n, action):
        real, seen = engine.update, []

        def update(method, *args, **kwargs):
            seen.append(1)
            if len(seen) == n:
                action(method)
            return real(method, *args, **kwargs)

        monkeypatch.setattr(engine, "update", update)

    return plan


def kill(signum, times=1):
    return lambda method: [os.kill(os.getpid(), signum) for _ in range(times)]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, at_update, signum, code):
    run, before = tmp_path / "my run", signal.getsignal(signum)
    at_update(2, kill(signum))
    with pytest.raises(Interrupted) as e:
        train(tiny(), run=run)
    assert e.value.exit_code == code
    for part in ("update 2 of 6", signum.name, f"lebm train '{run}' --resume"):
        assert part in str(e.value)
    assert signal.getsignal(signum) is before
    assert lebm.load(run) and [r["step"] for r in strict_rows(run)] == [2]
    train(run, run=run, resume=True)
    straight = train(tiny())
    assert all(torch.equal(a, b) for a, b in zip(lebm.load(run).parameters(), straight.parameters(), strict=True))


def test_a_second_ctrl_c_stops_at_once(tmp_path, at_update):
    at_update(2, kill(signal.SIGINT, times=2))
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), run=tmp_path / "run")
    assert lebm.load(tmp_path / "run")
    train(tmp_path / "run", run=tmp_path / "run", resume=True)


def test_time_is_up(tmp_path, heard):
    run = tmp_path / "run"
    train(tiny("training.updates=1000000"), run=run, max_seconds=0.2, reporter=heard)
    updates = strict_rows(run)[-1]["step"]
    assert 0 < updates < 1_000_000
    assert heard.about(f"time is up at update {updates} of 1000000", f"lebm train {run} --resume")
    train(run, run=run, resume=True, max_seconds=0)
    assert strict_rows(run)[-1]["step"] == updates + 1


def test_how_to_go_on_names_the_data_folder(tmp_path, heard):
    train(tiny(), run=tmp_path / "run", max_seconds=0, reporter=heard, data_dir=tmp_path / "my data")
    assert heard.about(f"--resume --data-dir '{tmp_path / 'my data'}'")


def test_progress_is_reported():
    shown = []

    class Bars(Heard):
        def progress(self, what):
            return nullcontext(lambda done, total, note="": shown.append((what, done, total, note)))

    train(tiny(), reporter=Bars())
    bars = [entry for entry in shown if entry[0] == "training"]
    assert [entry[1:3] for entry in bars] == [(2, 6), (3, 6), (4, 6), (6, 6)]
    assert all("mse" in entry[3] and "gap" in entry[3] and "updates/s" in entry[3] for entry in bars)


# --- divergence ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "quantity", "advice"),
    [
        ("optimizers.prior.rate=1e6", "z_sq_neg", "optimizers.prior.rate"),
        ("optimizers.generator.rate=1e6", "largest weight of the generator", "optimizers.generator.rate"),
        ("method.prior_chain.step_size=50", "z_sq_neg", "method.prior_chain.step_size"),
        ("method.posterior_chain.step_size=50", "z_sq_pos", "method.posterior_chain.step_size"),
        ("generator.sigma=1e-6", "", ""),
    ],
)
def test_divergence_stops_the_run_and_leaves_the_last_good_checkpoint(tmp_path, setting, quantity, advice):
    run = tmp_path / "run"
    with pytest.raises(Diverged) as e:
        train(tiny("training.updates=60", setting), run=run)
    message = str(e.value)
    assert message.startswith("diverged at update ") and quantity in message and advice in message
    assert "last good checkpoint" in message and str(run) in message
    assert e.value.exit_code == 3
    assert all(bool(torch.isfinite(p).all()) for p in lebm.load(run).parameters())
    rows = strict_rows(run)
    assert rows[-1]["warning"].startswith("diverged: ") and rows[-1]["step"] == rows[-2]["step"]
    tensors = load_file(sorted((run / "checkpoints").iterdir())[-1] / "tensors.safetensors")
    assert all(bool(torch.isfinite(t).all()) for t in tensors.values() if t.is_floating_point())
    with pytest.raises(Diverged):  # the checkpoint is good, the rates are not
        train(run, run=run, resume=True)


def test_divergence_late_in_a_run_leaves_the_learning_so_far(tmp_path, at_update, monkeypatch):
    """Weights that turn to NaN between two checkpoints: the first stays, and nothing newer is written."""
    at_update(5, lambda method: method.generator.layers[0].weight.data.fill_(math.nan))
    with pytest.raises(Diverged, match=r"update 6: .* checkpoint is update 3"):
        train(tiny(), run=tmp_path / "run")
    monkeypatch.undo()
    assert lebm.load(tmp_path / "run").sample(2).isfinite().all()
    resumed = train(tmp_path / "run", run=tmp_path / "run", resume=True, device="cpu")
    assert torch.equal(weights(resumed), weights(train(tiny(), device="cpu")))


GOOD = dict.fromkeys(ROW_KEYS, 0.5) | {"step": 1, "batch": 20}


def diverged(row, method):
    """What the first fatal check says."""
    words = (check.test(row) for check in method.checks() if check.fatal)
    return next((w for w in words if w), None)


def warnings(row, method):
    """What the other checks say, by name."""
    return {check.name: words for check in method.checks() if not check.fatal and (words := check.test(row))}


def test_what_counts_as_diverged():
    method = build(tiny())
    assert diverged(GOOD, method) is None
    for key in ("f_pos", "f_neg", "z_sq_neg", "z_sq_pos", "log_px", "grad_prior", "grad_generator"):
        for bad in (math.nan, math.inf, -math.inf):
            assert diverged(GOOD | {key: bad}, method).startswith(f"{key} is {bad}; lower ")
    assert diverged(GOOD | {"f_pos": -2e6}, method) and diverged(GOOD | {"z_sq_neg": 2e4}, method)
    assert diverged(GOOD | {"log_px": -1e9}, method) is None
    assert exploded({"prior": 3.0, "generator": 0.0}) is None
    assert "optimizers.prior.rate" in exploded({"prior": math.nan, "generator": 1.0})
    assert "optimizers.generator.rate" in exploded({"prior": 1.0, "generator": math.inf})


def test_the_largest_weight_of_each_network():
    method = build(tiny())
    assert all(0 < value < 10 for value in largest_weights(method).values())
    assert set(largest_weights(method)) == {"prior", "generator"}
    method.generator.layers[0].bias.data[0] = torch.nan
    assert str(largest_weights(method)["generator"]) == "nan"


BAD = [
    "z_sq_neg", "z_sq_pos", "f_pos", "log_px", "grad_prior", "grad_generator", "log_q_pos", "grad_encoder", "log_q_neg",
    "grad_flow",
]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "update", "has"),
    [
        ([], 1, {"prior_chain", "posterior_chain"}),
        (
            [*ENCODER, *FLOW, "method.posterior_start.objective=forward_kl", "method.prior_start.objective=forward_kl"],
            1,
            {"prior_chain", "posterior_chain", "encoder", "flow"},
        ),
        (
            [*ENCODER, *FLOW, "method.posterior_chain.steps=0", "method.prior_chain.steps=0"],
            1,
            {"encoder", "flow"},
        ),
        ([*ENCODER, ALONE], 4, {"prior_chain", "encoder"}),  # the encoder alone draws the updates 0 to 4
        ([*ENCODER, ALONE], 5, {"prior_chain", "posterior_chain", "encoder"}),
        ([*GAUSSIAN, "method.base.kind=whitened"], 1, {"posterior_chain"}),
    ],
)
def test_advice_names_only_what_the_run_has(settings, update, has):
    if "flow" in has:
        pytest.importorskip("zuko")
    config = tiny(*settings)
    method = build(config)
    config.at(update).method.apply(method)
    networks = {"encoder": "pos", "flow": "neg"}
    absent = {k for net, end in networks.items() if net not in has for k in (f"log_q_{end}", f"grad_{net}")}
    said = {key: diverged(GOOD | {key: math.nan}, method) for key in BAD if key not in absent}
    for words in said.values():
        for chain in ("prior_chain", "posterior_chain"):
            assert chain in has or f"method.{chain}.step" not in words
        for net in networks:
            assert net in has or f"optimizers.{net}.rate" not in words
    assert ("method.posterior_chain.step_size" in said["z_sq_pos"]) == ("posterior_chain" in has)
    encoder = "optimizers.encoder.rate"
    assert (encoder in said["z_sq_pos"]) == (encoder in said["log_px"]) == ("encoder" in has)
    assert ("method.prior_chain.step_size" in said["z_sq_neg"]) == ("prior_chain" in has)
    assert ("optimizers.flow.rate" in said["z_sq_neg"]) == ("flow" in has)
    if config.method.energy is None:
        assert "optimizers.prior.rate" not in said["z_sq_pos"]
        assert said["z_sq_neg"].split("; ")[1] == said["z_sq_pos"].split("; ")[1]


REACHING = ["method.base.kind=mixture", "method.base.components=2", *ENCODER]


@pytest.mark.parametrize(
    ("settings", "update", "reach"),
    [
        (["method.prior_chain.steps=100", "method.prior_chain.step_size=0.1"], 0, "0.5"),
        (["method.prior_chain.steps=250", "method.prior_chain.step_size=0.1"], 0, None),
        (
            ["method.prior_chain.steps=3", "method.prior_chain.step_size=0.1", "method.prior_chain.first_steps=[1.0]"],
            0,
            "0.51",
        ),
        (
            ["method.prior_chain.steps=3", "method.prior_chain.step_size=0.1", "method.prior_chain.first_steps=[1.5]"],
            0,
            None,
        ),
        (["method.prior_chain.steps=2", "method.base.kind=standard"], 0, None),
        ([*GAUSSIAN], 0, None),
        (["method.prior_chain.steps=2", "method.posterior_chain.steps=3"], 0, None),
        (["method.prior_chain.steps=2", "method.posterior_chain.steps=3", ALONE], 0, "0.16"),
        (["method.prior_chain.steps=2", "method.posterior_chain.steps=3", ALONE], 5, None),
    ],
)
def test_a_prior_chain_too_short_for_an_encoder_alone_is_named(settings, update, reach):
    config = tiny(*REACHING, "method.posterior_chain.steps=0", *settings)
    method = build(config)
    config.at(update).method.apply(method)
    words = warnings(GOOD, method).get("short_reach")
    assert words == short_reach(method, without_chain=not method.posterior_chain.steps)
    assert (words is None) if reach is None else f"of {reach}; " in words


@pytest.mark.parametrize("key", ["elbo", "grad_generator"])
def test_a_number_that_is_not_finite_stops_a_method_without_checks_too(tmp_path, monkeypatch, key):
    monkeypatch.setattr(LatentEBM, "checks", lambda self: ())
    train(tiny())  # healthy
    monkeypatch.setattr("lebm.training.health.gradient_norms", lambda method: {key: torch.tensor(math.inf)})
    with pytest.raises(Diverged, match=rf"update 2: {key} is inf; .*optimizers.generator.rate.* training.clip"):
        train(tiny(), run=tmp_path / "run")
    assert strict_rows(tmp_path / "run")[-1]["warning"].startswith(f"diverged: {key} is inf")


def test_an_encoder_that_runs_away_gets_advice_it_can_follow(tmp_path):
    settings = [*ENCODER, "method.posterior_chain.steps=0", "method.posterior_start.width=2"]
    with pytest.raises(Diverged) as e:
        train(tiny(*settings, "optimizers.encoder.rate=1e8", "training.updates=60"), run=tmp_path / "run")
    assert "optimizers.encoder.rate" in str(e.value) and "method.posterior_chain.step_size" not in str(e.value)


@pytest.mark.parametrize("which", ["prior", "posterior"])
def test_frozen_chains_are_reported_once_and_logged(tmp_path, heard, which):
    train(tiny(f"method.{which}_chain.step_size=1e-6"), run=tmp_path / "run", reporter=heard)
    assert len(heard.about("warning", f"the {which} chain is frozen", f"method.{which}_chain.step_size")) == 1
    logged = [r for r in strict_rows(tmp_path / "run") if "warning" in r]
    assert len(logged) == 1 and logged[0]["step"] == 2 and "frozen" in logged[0]["warning"]


def test_what_is_not_healthy():
    method = build(tiny())
    assert warnings(GOOD, method) == {}
    assert list(warnings(GOOD | {"z_spread_neg": 0.001}, method)) == ["prior_collapsed"]
    one = GOOD | {"batch": 1}
    assert warnings(one | {"z_spread_neg": 0.0}, method) == {}, "a single row has no spread"
    assert list(warnings(one | {"step": 500, "gap": -40.0}, method)) == ["energy_apart"]
    assert warnings(GOOD | {"step": 499, "gap": 40.0}, method) == {}
    assert warnings(GOOD | {"step": 900, "gap": 20.0}, method) == {}
    led = GOOD | {"step": 500, "z_sq_pos": 30.0, "z_sq_neg": 61.0}
    assert list(warnings(led, method)) == ["prior_far_out"]
    assert warnings(led | {"z_sq_neg": 59.0}, method) == warnings(led | {"step": 499}, method) == {}
    method.posterior_chain = TemperedChain(
        3, 0.1, noise=0.5
    )  # a posterior of half its noise is narrower than its prior
    assert warnings(led, method) == {}
    method.posterior_chain = Chain(3, 0.1)
    spread = GOOD | {"step": 10_000, "z_spread_pos": 50.0}
    assert warnings(spread, method) == {}, "where there is no flow, none has collapsed"
    assert warnings(GOOD | {"disp_neg": 0.0}, build(tiny(*GAUSSIAN))) == {}, "no chain is run"
    method.prior_chain, method.posterior_chain = Chain(0, 0.4), Chain(0, 0.1)
    (said,) = warnings(GOOD | {"z_spread_pos": 0.001, "log_q_pos": 0.0}, method).values()
    assert said.endswith("lower optimizers.prior.rate or optimizers.encoder.rate")
    (said,) = warnings(one | {"step": 500, "gap": -40.0, "log_q_neg": 0.0}, method).values()
    assert said.endswith("set method.energy.l2, or raise optimizers.flow.rate")


def test_a_base_that_cannot_follow_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(WhitenedGaussian, "refit_every", 2)
    monkeypatch.setattr("lebm.extensions.bases.FLOOR", -1e6)
    train(tiny("method.base.kind=whitened", "training.log_every=1", "training.updates=4"), run=tmp_path / "run")
    said = [r for r in strict_rows(tmp_path / "run") if "warning" in r]
    assert len(said) == 1 and said[0]["step"] == 3 and "the base stays where it is" in said[0]["warning"]


def test_the_log_is_of_the_base_that_the_update_used(tmp_path, monkeypatch):
    """log_q of a flow is a density of u: fitting the base anew moves all u, and must not show in the row of that
    update."""
    pytest.importorskip("zuko")
    rows = {}
    settings = [*FLOW, "method.prior_start.objective=forward_kl", "method.base.kind=whitened"]
    for refit in (4, 100):
        monkeypatch.setattr(WhitenedGaussian, "refit_every", refit)
        train(tiny(*settings, "training.updates=4", "training.log_every=4"), run=tmp_path / str(refit))
        rows[refit] = strict_rows(tmp_path / str(refit))[-1]["log_q_neg"]
    assert rows[4] == rows[100]


def test_another_precision_than_asked_for_is_logged(tmp_path):
    """Also where nobody hears the reporter."""
    train(tiny("precision=bfloat16", "training.updates=2"), run=tmp_path / "run", device="cpu")
    (said,) = (r for r in strict_rows(tmp_path / "run") if "warning" in r)
    assert said["step"] == 0 and "float32" in said["warning"]


def test_a_text_model_reports_whether_z_matters(tmp_path):
    small = ["generator.hidden=8", "generator.embedding=4", "nz=4", "method.energy.width=8", "data.limit=40"]
    small += ["training.batch=10", "training.updates=4", "training.log_every=1", "training.checkpoint_every=2"]
    config = resolve("text-demo", [*small, "method.posterior_chain.steps=2", "method.prior_chain.steps=2"])
    model = train(config, run=tmp_path / "run")
    rows = strict_rows(tmp_path / "run")
    assert all({"nll_word", "z_gain", "z_share"} <= set(r) for r in rows)
    assert [{"active_units", "z_information"} <= set(r) for r in rows] == [False, True, False, True]
    assert lebm.load(tmp_path / "run").generator.words().words == model.generator.words().words


# --- several processes --------------------------------------------------------------------------------------------


def test_each_of_several_processes_has_its_rows_and_its_stream(monkeypatch):
    config = tiny()
    method, rows = build(config), torch.arange(100).view(100, 1)
    whole = make_batches(config, method, rows, torch.device("cpu"))
    monkeypatch.setattr("lebm.training.train.world_size", lambda: 2)
    parts = []
    for number in range(2):
        monkeypatch.setattr("lebm.training.train.rank", lambda number=number: number)
        parts.append(make_batches(config, method, rows, torch.device("cpu"))(3))
    assert torch.equal(torch.cat(parts), whole(3)) and len(parts[0]) == 10
    assert stream_name("chain") == "chain"
    monkeypatch.setattr("lebm.training.state.world_size", lambda: 2)
    monkeypatch.setattr("lebm.training.state.rank", lambda: 1)
    assert stream_name("chain") == "chain/rank-1"


# --- the log ------------------------------------------------------------------------------------------------------


def test_a_log_cut_short_is_mended(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(
        b'{"step": 1}\n{"step": 2}\nrubbish \xff\n[1]\n{"step": "x"}\n'
        b'{"step": 3, "warning": "w"}\n{"step": 4}\n{"step": 5, "f'
    )
    assert [r["step"] for r in Run(tmp_path).rows()] == [1, 2, "x", 3, 4]
    Log(Run(tmp_path), resumed_at=3).close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3, "warning": "w"}\n'
    assert Run(tmp_path / "nothing").rows() == []


# --- a user of the library ------------------------------------------------------------------------------------------

IMAGES = np.random.default_rng(3).integers(0, 256, (30, 1, 8, 8), dtype=np.uint8)


def test_lebm_train_is_the_function_whatever_was_imported_before():
    import lebm.training.loop

    assert isinstance(lebm.train(tiny("training.updates=1")), Method)


def test_a_users_images_in_every_form():
    as_bytes = weights(train(tiny(), data=IMAGES))
    assert torch.equal(as_bytes, weights(train(tiny(), data=torch.from_numpy(IMAGES))))
    assert torch.equal(as_bytes, weights(train(tiny(), data=IMAGES.transpose(0, 2, 3, 1))))
    assert torch.equal(as_bytes, weights(train(tiny(), data=IMAGES[:, 0])))
    floats = weights(train(tiny(), data=(IMAGES / 127.5 - 1).astype(np.float32)))
    assert torch.allclose(as_bytes, floats, atol=1e-5)
    assert torch.allclose(as_bytes, weights(train(tiny(), data=IMAGES / 127.5 - 1)), atol=1e-5)
    assert not torch.equal(as_bytes, weights(train(tiny())))


def test_one_image():
    model = train(tiny(), data=IMAGES[:1])
    assert all(torch.isfinite(p).all() for p in model.parameters()) and model.sample(2).shape == (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (np.zeros((5, 1, 9, 9), np.uint8), "(n, 1, 8, 8)"),
        (np.full((5, 1, 8, 8), 7.0), "[-1, 1]"),
        (np.full((5, 1, 8, 8), np.nan), "NaN"),
        (np.zeros((5, 1, 8, 8), np.int64), "uint8"),
        (np.zeros((5, 1, 8, 8), object), "object"),
        (np.array(["a"]), "numbers"),
        (np.array(3.0), "numbers"),
        (np.zeros((0, 1, 8, 8), np.uint8), "at least one"),
        ([[1, 2]], "list"),
        ("digits", "str"),
    ],
)
def test_data_that_cannot_be(data, part, tmp_path):
    with pytest.raises(DataError) as e:
        train(tiny(), data=data, run=tmp_path / "run")
    assert part in str(e.value) and "\n" not in str(e.value)
    assert not (tmp_path / "run").exists(), "a mistake leaves nothing behind"


def test_a_run_on_handed_in_data_is_not_continued_on_another_set(tmp_path):
    run = tmp_path / "run"
    train(tiny(), data=IMAGES, run=run)
    with pytest.raises(DataError, match="handed to lebm.train"):
        train(run, run=run, resume=True)
    with pytest.raises(DataError, match="handed to lebm.train"):
        data.load(lebm.load(run).config)  # as an evaluation does
    train(tiny("training.updates=8"), data=IMAGES, run=run, resume=True)
    assert torch.equal(weights(lebm.load(run)), weights(train(tiny("training.updates=8"), data=IMAGES)))


class Line(nn.Module):
    """x = W z + noise: the smallest generator there can be."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(5, 16) / 4)

    def decode(self, z):
        return z @ self.w.t()

    def log_prob(self, x, z):
        return -0.5 * (x - self.decode(z)).square().sum(1)


ROWS = np.random.default_rng(1).normal(size=(50, 5)).astype(np.float32)


def w(model):
    return model.generator.module.w


def test_a_users_generator(tmp_path):
    run = tmp_path / "run"
    config = tiny("training.batch=10")
    model = train(config, data=ROWS, model=Line(), run=run)
    assert not torch.equal(w(model), Line().w) and model.sample(7).shape == (7, 5)
    with pytest.raises(CheckpointError, match="generator="):
        lebm.load(run)
    again = lebm.load(run, generator=Line())
    assert torch.equal(w(again), w(model))
    assert again.encode(ROWS).shape == (50, 16) and again.reconstruct(ROWS).shape == (50, 5)
    assert again.anomaly_score(ROWS).shape == (50,)
    assert "mse" not in strict_rows(run)[-1] and "log_px" in strict_rows(run)[-1]
    more = config.with_values(**{"training.updates": 8})
    train(more, data=ROWS, model=Line(), run=run, resume=True)
    assert torch.equal(w(lebm.load(run, generator=Line())), w(train(more, data=ROWS, model=Line())))


def test_a_users_generator_and_a_signal(tmp_path, at_update):
    at_update(2, kill(signal.SIGTERM))
    with pytest.raises(Interrupted, match="resume=True"):
        train(tiny(), data=ROWS, model=Line(), run=tmp_path / "run")
    at_update(2, kill(signal.SIGTERM))
    with pytest.raises(Interrupted, match="nothing was saved"):
        train(tiny(), data=ROWS, model=Line())


def test_a_generator_that_lacks_a_method_or_data(tmp_path):
    with pytest.raises(ConfigError, match="has no method log_prob"):
        train(tiny(), data=ROWS, model=nn.Linear(16, 5), run=tmp_path / "run")
    with pytest.raises(DataError, match="data=..."):
        train(tiny(), model=Line(), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Summed(Line):
    """One number in all instead of one a row, which would learn something else in silence."""

    def log_prob(self, x, z):
        return super().log_prob(x, z).sum()


class Columns(Line):
    def log_prob(self, x, z):
        return super().log_prob(x, z).unsqueeze(1)


class OfOurs(TableGenerator):
    """A class of the user's that derives from Generator is not wrapped, and is checked all the same."""

    def __init__(self):
        super().__init__(16, columns=5)

    def log_prob(self, x, z, *masks):
        return super().log_prob(x, z, *masks).unsqueeze(1)


@pytest.mark.parametrize("wrong", [Summed, Columns, OfOurs])
def test_a_log_prob_of_the_wrong_shape_is_found_before_the_work(tmp_path, wrong):
    with pytest.raises(ConfigError, match=f"log_prob of {wrong.__name__}"):
        train(tiny(), data=ROWS, model=wrong(), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Wide(Line):
    """Decodes rows of another width than the data has."""

    def decode(self, z):
        return super().decode(z).repeat(1, 2)


class Column(Line):
    """Decodes one number a row, which broadcasts against the data in silence."""

    def decode(self, z):
        return super().decode(z)[:, :1]


class OurColumn(TableGenerator):
    """The same of a class that derives from Generator."""

    def __init__(self):
        super().__init__(16, columns=5)

    def decode(self, z):
        return super().decode(z)[:, :1]


class Sizes(Line):
    """log_prob computes with another width than the data has."""

    def log_prob(self, x, z):
        return -(x - self.decode(z).repeat(1, 2)).square().sum(1)


class DetachedZ(Line):
    def log_prob(self, x, z):
        return super().log_prob(x, z.detach())


class DetachedWeights(Line):
    def decode(self, z):
        return z @ self.w.detach().t()


class Numpy(Line):
    def decode(self, z):
        return torch.from_numpy(z.detach().numpy() @ self.w.detach().numpy().T)


class WithoutZ(Line):
    """No posterior chain can move by a likelihood that does not know z."""

    def log_prob(self, x, z):
        return super().log_prob(x, torch.ones_like(z))


class WrongScore(TableGenerator):
    def __init__(self):
        super().__init__(16, columns=5)

    def score(self, x, z, *masks):
        return super().score(x, z, *masks).sum(1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Wide, r"the generator Wide gave rows of shape \(10,\) from decode, but the data has rows of shape \(5,\)"),
        (Column, r"the generator Column gave rows of shape \(1,\) .* \(5,\)"),
        (OurColumn, r"the generator OurColumn gave rows of shape \(1,\) .* \(5,\)"),
        (Sizes, r"the generator Sizes fails for x of shape \(2, 5\) and z of shape \(2, 16\): The size of tensor"),
        (DetachedZ, "log_prob of DetachedZ changes with z and has no gradient in z"),
        (DetachedWeights, "log_prob of DetachedWeights has no gradient in any of the generator's weights"),
        (Numpy, "log_prob of Numpy has no gradient"),
        (WithoutZ, "the generator WithoutZ fails for x of shape"),
        (WrongScore, r"score of WrongScore gave a tensor of shape \(2,\) for z of shape \(2, 16\)"),
    ],
)
def test_a_generator_that_cannot_learn_is_found_before_the_work(tmp_path, wrong, says):
    with pytest.raises(ConfigError, match=says):
        train(tiny(), data=ROWS, model=wrong(), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_questions_to_a_generator_change_nothing():
    """Neither its statistics nor its mode nor the caller's random stream; frozen weights need no gradient."""

    class Normalised(Line):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(16)
            self.drop = nn.Dropout(0.5)

        def decode(self, z):
            return super().decode(self.drop(self.norm(z))) + 0 * torch.rand(())

    method = build(tiny(), Normalised())
    method.generator.module.w.requires_grad_(False)
    before, state = copy.deepcopy(method.state_dict()), torch.random.get_rng_state()
    check_generator(method.train(), 16, torch.as_tensor(ROWS))
    assert method.training and method.generator.training and torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in method.state_dict().items())
    assert all(p.grad is None for p in method.parameters())


class Saturated(Line):
    """Units that no z reaches: the gradient exists, and is 0."""

    def decode(self, z):
        return torch.relu(super().decode(z) - 1000) * z[:, :1]


HELD = "training.stages=[{until: 9, networks: [prior]}]"
WEIGHED = "training.stages=[{until: 9, coefficients: {energy_l2: 1}}]"


@pytest.mark.parametrize(
    ("model", "settings", "times"),
    [
        (Saturated, [], 1),
        (Line, [], 0),
        (Saturated, ["optimizers.generator.rate=0"], 0),
        (Saturated, [HELD], 0),
        (Saturated, [WEIGHED], 0),
    ],
)
def test_a_gradient_of_0_is_told_once_where_a_network_should_move(heard, model, settings, times):
    train(tiny(*settings), data=ROWS, model=model(), reporter=heard)
    assert len(heard.about("the gradient of the generator is exactly 0", "optimizers.generator.rate")) == times
    assert not heard.about("the gradient of the prior")


def test_going_on_with_a_model():
    first = train(tiny())
    before = weights(first).clone()
    second = train(tiny(), model=first)
    assert not torch.equal(weights(second), before)
    for wrong in ("nz=5", "method.energy.width=8", "generator.sigma=0.5"):
        with pytest.raises(ConfigError, match="make them equal"):
            train(tiny(wrong), model=first)
    first.config = None  # as if it had been built from parts
    with pytest.raises(ConfigError, match="lebm.build"):
        train(tiny(), model=first)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"config": "digtis"}, ConfigError),
        ({"config": {"training.udpates": 3}}, ConfigError),
        ({"config": "digits", "device": "tpu"}, ConfigError),
        ({"config": "digits", "device": "cuda"}, ConfigError),
        ({"config": "digits", "resume": True}, CheckpointError),
        ({"config": {"preset": "digits", "data.name": "digist"}}, DataError),
        ({"config": "mnist", "data_dir": "nothing/here"}, DataError),
    ],
)
def test_a_users_mistake_is_a_user_error(arguments, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEBM_DATA", raising=False)
    with pytest.raises(error) as e:
        train(**arguments)
    assert isinstance(e.value, UserError) and "\n" not in str(e.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("source", "data", "says"),
    [(None, None, "NoneType"), ("text-demo", [1, 2], "give a list of sentences")],
)
def test_what_train_cannot_take(source, data, says):
    with pytest.raises((ConfigError, DataError), match=says):
        train(source, data=data)


@pytest.mark.parametrize(
    ("preset", "extra"),
    [
        ("svhn/paper", []),
        ("cifar10/paper", []),
        ("celeba64/paper", []),
        ("celeba128/paper", ["method.energy.width=32"]),
        ("svhn/gaussian", []),
        ("mnist/paper", []),
        ("images/paper", ["generator.size=16", "generator.channels=1"]),
    ],
)
def test_every_preset_learns_on_noise_of_its_shape(preset, extra):
    small = ["data.name=noise", "data.limit=8", "generator.ngf=2", "nz=4", "training.batch=2", "training.updates=1"]
    config = resolve(preset, [*small, "method.posterior_chain.steps=2", *extra])
    model = train(config)
    g = config.generator
    assert model.sample(2).shape == (2, g.channels, g.size, g.size)
    assert torch.isfinite(weights(model)).all()


# --- the machine ----------------------------------------------------------------------------------------------------


def test_a_tiny_model_learns_on_one_thread_and_a_larger_one_on_all():
    def flops(config):
        return build(config).generator.flops(config.training.batch)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with fitting_threads(flops(tiny()), "cpu"):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with fitting_threads(flops(resolve("mnist")), "cpu"):
            assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError), fitting_threads(flops(tiny()), "cpu"):
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_two_processes_do_not_share_a_run(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    lebm.train(tiny("training.updates=1"), run=tmp_path / "run")
    fd = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as another process would hold it
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError, match="another process is training"):
        lebm.train(tiny("training.updates=2"), run=tmp_path / "run", resume=True)
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    os.close(fd)
    lebm.train(tiny("training.updates=2"), run=tmp_path / "run", resume=True)

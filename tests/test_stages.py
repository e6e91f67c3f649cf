"""Stages: what is in force at each update, the networks that move, and coefficients."""

import json

import pytest
import torch
from torch import nn

import lebm
from lebm.config import resolve
from lebm.config.build import build
from lebm.core.errors import ConfigError
from lebm.core.progress import Reporter
from lebm.latent_ebm import LatentEBM
from lebm.training import engine
from lebm.training.stages import Stages
from lebm.training.state import TrainingState
from lebm.training.train import train

TINY = [
    "generator.ngf=4",
    "method.energy.width=16",
    "method.prior_chain.steps=5",
    "method.posterior_chain.steps=3",
    "training.updates=6",
    "training.log_every=1",
    "training.checkpoint_every=3",
    "training.batch=20",
]
ENCODER = ["method.posterior_start.kind=encoder", "method.posterior_start.width=4"]


def alone(until):
    return f"training.stages=[{{until: {until}, set: {{method.posterior_chain.steps: 0}}}}]"


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def tiny(*settings):
    return resolve("digits", [*TINY, *settings])


def rows(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def flat(net: nn.Module):
    return torch.cat([p.detach().flatten().clone() for p in net.parameters()])


def stages_of(config):
    state = TrainingState(config, build(config), torch.device("cpu"))
    return Stages(config, state.method, state.optimizers)


class Heard(Reporter):
    def __init__(self):
        self.lines = []

    def say(self, words):
        self.lines.append(words)


def test_the_first_updates_may_be_the_encoders_alone(tmp_path):
    """The same numbers as without a chain at all; then a chain refines, and moves z away from the proposal."""
    train(tiny(*ENCODER, alone(4)), run=tmp_path / "joins")
    train(tiny(*ENCODER, "method.posterior_chain.steps=0"), run=tmp_path / "alone")
    joins, never = rows(tmp_path / "joins"), rows(tmp_path / "alone")
    for key in ("log_px", "z_sq_pos", "gap", "grad_encoder"):
        assert [r[key] for r in joins[:4]] == [r[key] for r in never[:4]]
    assert [r["disp_pos"] > 0 for r in joins] == [False] * 4 + [True] * 2
    assert not any("warning" in r for r in joins)  # a chain that is not there is no frozen one
    heard = Heard()
    train(tiny(*ENCODER, alone(6)), reporter=heard)
    assert any(line.startswith("note") and "training.stages" in line for line in heard.lines)


def test_an_engine_is_made_once_for_each_stage(tmp_path, monkeypatch):
    made = []
    real = engine.choose

    def choose(config, *args):
        made.append(config.method.posterior_chain.steps)
        return real(config, *args)

    monkeypatch.setattr(engine, "choose", choose)
    settings = [*ENCODER, alone(2)]
    train(tiny(*settings, "training.updates=2"), run=tmp_path / "run")
    train(tiny(*settings, "training.updates=4"), run=tmp_path / "run", resume=True)  # just where the chain joins
    train(tiny(*settings, "training.updates=4"), run=tmp_path / "whole")
    assert made == [0, 3, 0, 3]


def test_after_learning_the_plain_configuration_applies(tmp_path):
    """Also where the run ends inside a stage: the model that is returned is the one that is loaded."""
    model = train(tiny(*ENCODER, alone(9)), run=tmp_path / "run")
    loaded = lebm.load(tmp_path / "run")
    assert model.samplers() == loaded.samplers() and model.posterior_chain.steps == 3
    x = torch.rand(3, 1, 8, 8) * 2 - 1
    assert torch.equal(model.encode(x), loaded.encode(x))


def test_what_on_epoch_is_given_draws_as_a_loaded_model_does():
    seen = []
    config = tiny(*ENCODER, alone(9), "data.limit=60", "training.ema=0.5")

    def watch(epoch, method):
        seen.append((epoch, method.posterior_chain.steps, flat(method.generator)))

    model = train(config, on_epoch=watch)
    assert [(epoch, steps) for epoch, steps, _ in seen] == [(1, 3), (2, 3)]
    assert torch.equal(seen[-1][2], flat(model.generator)), "the averaged weights"
    assert torch.equal(flat(train(config).generator), flat(model.generator)), "and nothing changes what is learned"


def test_a_network_that_a_stage_holds_stays_as_it_is(tmp_path):
    held = "training.stages=[{until: 3, networks: [prior]}]"
    start, three, six = (train(tiny(held, f"training.updates={n}"), run=tmp_path / str(n)) for n in (0, 3, 6))
    assert torch.equal(flat(start.generator), flat(three.generator))
    assert not torch.equal(flat(start.prior), flat(three.prior))
    assert not torch.equal(flat(three.generator), flat(six.generator))
    assert ["grad_generator" in r for r in rows(tmp_path / "6")] == [False] * 3 + [True] * 3
    assert all("grad_prior" in r for r in rows(tmp_path / "6"))


def test_rates_of_a_stage():
    first = "{until: 2, set: {optimizers.prior.rate: 0.5}}"
    stages = stages_of(tiny(f"training.stages=[{first}]", "optimizers.prior.rate=0.25", "training.decay=0.5"))

    def rate(updates, epoch):
        stages.enter(updates)
        stages.prepare(updates, epoch)
        return stages.optimizers["prior"].param_groups[0]["lr"]

    assert [rate(0, 0), rate(1, 1), rate(2, 1), rate(3, 2)] == pytest.approx([0.5, 0.25, 0.125, 0.0625])


def test_a_coefficient_moves_linearly_and_comes_back():
    first = "{until: 2, coefficients: {energy_l2: 3}}"
    second = "{until: 8, coefficients: {energy_l2: {start: 1, end: 0, over: 4}}}"
    stages = stages_of(tiny(f"training.stages=[{first}, {second}]", "method.energy.l2=0.1"))
    where = stages.method.energy_l2
    values = []
    for updates in range(9):
        stages.enter(updates)
        stages.prepare(updates, epoch=0)
        values.append(float(where))
    assert stages.method.energy_l2 is where, "filled in place, as a captured update reads it"
    assert values == pytest.approx([3, 3, 1, 0.75, 0.5, 0.25, 0, 0, 0.1])
    stages.enter(3)
    with stages.plain():
        assert float(where) == pytest.approx(0.1)
    assert float(where) == pytest.approx(0.75)


def test_a_coefficient_of_a_stage_is_what_the_loss_uses(tmp_path):
    settings = "training.stages=[{until: 3, coefficients: {energy_l2: 0.5}}]"
    staged = train(tiny(settings, "training.updates=3"))
    plain = train(tiny("method.energy.l2=0.5", "training.updates=3"))
    assert torch.equal(flat(staged), flat(plain))
    assert not torch.equal(flat(staged), flat(train(tiny("training.updates=3"))))


def test_ramps_and_held_networks_resume(tmp_path):
    first = "{until: 3, networks: [generator], coefficients: {energy_l2: {start: 1, end: 0, over: 3}}}"
    second = "{until: 5, coefficients: {energy_l2: {start: 0, end: 2, over: 4}}}"
    settings = f"training.stages=[{first}, {second}]"
    straight = train(tiny(settings))
    for n in (1, 2, 4, 5, 6):
        parts = train(tiny(settings, f"training.updates={n}"), run=tmp_path / "parts", resume=True)
    assert all(torch.equal(v, parts.state_dict()[k]) for k, v in straight.state_dict().items())


def test_a_coefficient_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ConfigError, match="'energy_12'.*energy_l2"):
        train(tiny("training.stages=[{until: 3, coefficients: {energy_12: 1}}]"), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_finish_is_called_after_the_last_update_and_its_result_is_saved(tmp_path, monkeypatch):
    """With the weights that are saved for use, once in a run that goes to its end."""
    calls = []

    def finish(self, rows):
        calls.append((len(rows), flat(self.generator)))
        self.prior.energy.layers[-1].bias.data.fill_(7.0)

    monkeypatch.setattr(LatentEBM, "finish", finish)
    config = tiny("training.ema=0.5", "data.limit=60")
    model = train(config, run=tmp_path / "run")
    (call,) = calls
    assert call[0] == 60 and torch.equal(call[1], flat(model.generator))
    assert float(lebm.load(tmp_path / "run").prior.energy.layers[-1].bias.detach()) == 7.0
    train(config, max_seconds=0)
    assert len(calls) == 1, "a run that is stopped before is not finished"


def test_a_method_is_told_between_updates(monkeypatch):
    told = []
    monkeypatch.setattr(LatentEBM, "between_updates", lambda self, updates: told.append(updates))
    train(tiny())
    assert told == [1, 2, 3, 4, 5, 6]

"""training.start_from: a run begins with the networks of another one."""

import json
import shutil

import pytest
import torch
from torch import nn

import lebm
from lebm.config import resolve
from lebm.core.errors import CheckpointError, ConfigError
from lebm.core.progress import Reporter
from lebm.extensions.bases import WhitenedGaussian
from lebm.generators import ImageGenerator
from lebm.run import Run
from lebm.training import train as package
from lebm.training.train import train

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
ENCODER = ["method.posterior_start.kind=encoder", "method.posterior_start.width=2"]
NO_CHAIN = "method.posterior_chain.steps=0"
WHITENED = "method.base.kind=whitened"


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def tiny(*settings):
    return resolve("digits", [*TINY, *settings])


def begun_with(path, *settings):
    return tiny("training.updates=0", f"training.start_from={path}", *settings)


def warnings(run):
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [row for row in rows if "warning" in row]


def same(a, b):
    return all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


class Heard(Reporter):
    def __init__(self):
        self.lines = []

    def say(self, words):
        self.lines.append(words)


def test_the_package_can_be_called_like_the_function():
    assert package.train is train and callable(lebm.train)


def test_a_run_can_start_with_the_networks_of_another(tmp_path):
    old = train(tiny("training.updates=2"), run=tmp_path / "old")
    new = train(begun_with(tmp_path / "old", "seed=7"), run=tmp_path / "new")
    assert same(old.generator, new.generator) and same(old.prior, new.prior)
    heard = Heard()
    other = train(begun_with(tmp_path / "old" / "model.safetensors", WHITENED), reporter=heard)
    (said,) = (line for line in heard.lines if "begun anew" in line)
    assert "prior" in said and "generator" not in said
    assert same(old.generator, other.generator)
    assert not torch.equal(other.prior.energy.layers[0].weight, old.prior.energy.layers[0].weight)
    again = train(begun_with(tmp_path / "old"), run=tmp_path / "again", resume=True)
    assert same(old.generator, again.generator), "also where a script says resume before there is anything"


def test_networks_go_on_under_another_objective_and_another_memory(tmp_path):
    """Neither shapes a network: an encoder that learned alone goes on with a chain."""
    old = train(tiny(*ENCODER, WHITENED, NO_CHAIN, "training.updates=2"), run=tmp_path / "old")
    after = [*ENCODER, WHITENED, "method.base.memory=50", "method.energy.l2=0.1"]
    new = train(begun_with(tmp_path / "old", *after), run=tmp_path / "new")
    assert same(old.posterior_start, new.posterior_start) and same(old.prior, new.prior)
    assert not warnings(tmp_path / "new")
    wider = train(begun_with(tmp_path / "old", *after, "method.posterior_start.width=3"), run=tmp_path / "wider")
    assert same(old.prior, wider.prior)
    ours, theirs = (m.posterior_start.q.net.layers[0].weight.shape for m in (wider, old))
    assert ours != theirs
    (row,) = warnings(tmp_path / "wider")
    assert row["step"] == 0 and row["warning"].endswith(": encoder"), "also where nobody hears the reporter"


def test_what_a_base_has_seen_goes_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(WhitenedGaussian, "refit_every", 2)
    old = train(tiny(WHITENED, "training.updates=4"), run=tmp_path / "old")
    new = train(begun_with(tmp_path / "old", WHITENED))
    assert not torch.equal(old.prior.base.mean, torch.zeros(16)) and same(old.prior, new.prior)


def test_a_chain_without_steps_is_no_way_to_begin_and_no_hindrance_to_go_on(tmp_path, monkeypatch):
    none = [*ENCODER, "method.posterior_start.objective=forward_kl", NO_CHAIN]
    with pytest.raises(ConfigError, match="method.posterior_chain.steps is 0"):
        train(tiny(*none), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with monkeypatch.context() as m:  # as another version may have let it begin
        m.setattr("lebm.training.train.check_learning", lambda config: None)
        train(tiny(*none, "training.updates=2"), run=tmp_path / "run")
    assert lebm.load(tmp_path / "run").sample(2).shape == (2, 1, 8, 8)
    train(tiny(*none, "training.updates=3"), run=tmp_path / "run", resume=True)


def test_a_generator_that_stands_on_ours_starts_from_a_run_of_ours(tmp_path):
    class Mine(ImageGenerator):
        def make_encoder(self, nz, width, depth):
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 2 * nz))

    start = [*ENCODER, NO_CHAIN]
    old = train(tiny(*start, "training.updates=2"), run=tmp_path / "old")
    config = begun_with(tmp_path / "old", *start)
    g = config.generator
    mine = Mine(config.nz, g.size, g.channels, g.ngf, g.base, g.widths, g.last, g.leak, g.sigma)
    new = train(config, model=mine, run=tmp_path / "new")
    assert same(old.generator, new.generator) and same(old.prior, new.prior)
    (row,) = warnings(tmp_path / "new")
    assert row["warning"].endswith(": encoder"), "one of another kind"


def test_a_users_generator_starts_from_its_own_run(tmp_path):
    class Line(nn.Linear):
        decode = nn.Linear.forward

        def log_prob(self, x, z):
            return -(x - self.decode(z)).square().sum(1)

    x = torch.randn(40, 3)
    old = train(tiny("training.updates=2"), x, Line(16, 3), run=tmp_path / "old")
    new = train(begun_with(tmp_path / "old"), x, Line(16, 3))
    assert same(old, new)


def test_replayed_chains_stay_with_their_run(tmp_path):
    """They are of another base and energy: those of the new run start from noise."""
    replay = ["method.prior_start.kind=replay", "method.prior_start.chains=8", "training.batch=4"]
    old = train(tiny(*replay, "training.updates=2"), run=tmp_path / "old")
    new = train(begun_with(tmp_path / "old", *replay))
    assert same(old.prior, new.prior) and old.prior_start.filled() == 8 and new.prior_start.filled() == 0


def test_a_run_starts_from_one_model_only(tmp_path):
    old = train(tiny("training.updates=1"), run=tmp_path / "old")
    with pytest.raises(ConfigError, match="training.start_from .* one of the two"):
        train(begun_with(tmp_path / "old"), model=old)


def test_a_frozen_generator_keeps_its_weights_while_the_prior_learns(tmp_path, monkeypatch):
    monkeypatch.setattr(WhitenedGaussian, "refit_every", 2)
    old = train(tiny("training.updates=2"), run=tmp_path / "old")
    settings = [
        f"training.start_from={tmp_path / 'old'}",
        WHITENED,
        "optimizers.generator.rate=0",
        "training.updates=3",
    ]
    new = train(tiny(*settings), run=tmp_path / "new")
    assert same(old.generator, new.generator)
    assert not torch.equal(new.prior.base.root, torch.eye(16))
    (tmp_path / "old").rename(tmp_path / "gone")  # what is learned since does not need it
    train(tmp_path / "new", run=tmp_path / "new", resume=True)


def test_networks_that_do_not_fit_are_refused(tmp_path):
    train(tiny("training.updates=0"), run=tmp_path / "old")
    with pytest.raises(ConfigError, match=r"training.start_from is .*old.* generator.sigma = 0.2; .* 0.5"):
        train(begun_with(tmp_path / "old", "generator.sigma=0.5"))
    with pytest.raises(CheckpointError, match="nowhere"):
        train(begun_with("nowhere"))
    with pytest.raises(CheckpointError, match=r"gone/digits/paper .*lebm train digits/paper$"):
        train(begun_with("gone/digits/paper"))


def test_a_model_of_another_kind_is_no_start(tmp_path):
    small = ["generator.hidden=4", "generator.embedding=4", "training.updates=0"]
    train(resolve("text-demo", small), run=tmp_path / "words")
    with pytest.raises(ConfigError, match="generator.kind text; .* image"):
        train(begun_with(tmp_path / "words"))


def test_a_run_knows_whose_networks_it_began_with(tmp_path):
    """And of a third run all updates count, also after it has been resumed."""
    train(tiny("name=one", "training.updates=2"), run=tmp_path / "one")
    assert Run(tmp_path / "one").start is None
    second = ["name=two", f"training.start_from={tmp_path / 'one'}", "training.updates=3"]
    train(tiny(*second), run=tmp_path / "two")
    assert Run(tmp_path / "two").start == {"name": "one", "updates": 2}
    third = ["name=three", f"training.start_from={tmp_path / 'two'}"]
    train(tiny(*third, "training.updates=1"), run=tmp_path / "three")
    train(tiny(*third, "training.updates=2"), run=tmp_path / "three", resume=True)
    assert Run(tmp_path / "three").start == {"name": "two", "updates": 5}


def test_of_two_starts_the_last_counts(tmp_path):
    rows = [
        {"step": 0, "start": {"name": "x", "updates": n}} for n in (1, 2)
    ]  # the first was killed before its checkpoint
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert Run(tmp_path).start["updates"] == 2
    (tmp_path / "log.jsonl").write_text('{"start": {"name": 1, "updates": "many"}}\n{"start": 3}\n')
    assert Run(tmp_path).start is None
    shutil.rmtree(tmp_path)
    assert Run(tmp_path).start is None

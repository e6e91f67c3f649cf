"""The loop: what it logs, when it stops, and what lebm.train takes from a user of the library."""

import io
import json
import math
import os
import signal

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

import lebm
import lebm.prior
from lebm import learn, loop, report, training
from lebm.cells import updates
from lebm.config import Chain, Chains, resolve
from lebm.errors import CheckpointError, ConfigError, DataError, Diverged, Interrupted, UserError
from lebm.evaluate import evaluate
from lebm.generators import ImageGenerator
from lebm.health import diverged, exploded, frozen, short
from lebm.log import Log, progress_bar, read, started_from
from lebm.model import LatentEBM
from lebm.state import TrainingState
from lebm.training import train

TINY = [
    "generator.ngf=4",
    "prior.width=16",
    "chains.prior.steps=5",
    "chains.posterior.steps=3",
    "training.steps=6",
    "training.log_every=2",
    "training.checkpoint_every=3",
    "training.batch=20",
]
ROW_KEYS = {
    "step", "epoch", "f_pos", "f_neg", "gap", "log_px", "mse", "grad_prior", "grad_generator", "disp_neg", "disp_pos",
    "z_mean_neg", "z_sq_neg", "z_spread_neg", "z_mean_pos", "z_sq_pos", "z_spread_pos", "steps_per_second", "seconds",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def tiny(*settings):
    return resolve("digits", [*TINY, *settings])


def strict_rows(run):
    """The log read by a parser that takes no NaN."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in (run / "log.jsonl").read_text().splitlines()]


@pytest.fixture
def heard(tmp_path):
    """A console that writes to a file, and what was said on it."""
    with open(tmp_path / "heard.txt", "w+") as f:
        console = Console(file=f)

        def words():
            f.flush()
            return (tmp_path / "heard.txt").read_text()

        yield console, words


# --- a run --------------------------------------------------------------------------------------------------------


def test_a_run_is_a_folder(tmp_path):
    model = train(tiny(), run=tmp_path / "run")
    run = tmp_path / "run"
    names = {p.name.split(".")[0] for p in run.iterdir()}
    assert names == {"config", "log", "model", "checkpoints", "events"}  # events: TensorBoard's file
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["00000000", "00000003", "00000006"]
    assert resolve(run) == tiny() and not model.training
    rows = strict_rows(run)
    assert [r["step"] for r in rows] == [2, 3, 4, 6] and all(set(r) == ROW_KEYS for r in rows)
    assert all(r["gap"] == pytest.approx(r["f_pos"] - r["f_neg"], abs=1e-6) for r in rows)
    again = lebm.load(run)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    assert torch.equal(model.sample(3, seed=4), again.sample(3, seed=4))


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
    assert isinstance(model, LatentEBM) and sorted(os.listdir(tmp_path)) == before
    assert torch.equal(torch.random.get_rng_state(), state), "the global stream is the caller's"


def test_no_steps_is_a_model_as_it_begins(tmp_path):
    train(tiny("training.steps=0"), run=tmp_path / "run")
    a, b = lebm.load(tmp_path / "run"), LatentEBM(tiny())
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_the_average_is_what_is_kept(tmp_path):
    train(tiny("learning.ema=0.5"), run=tmp_path / "run")
    tensors = load_file(tmp_path / "run" / "checkpoints" / "00000006" / "tensors.safetensors")
    model = load_file(tmp_path / "run" / "model.safetensors")
    names = [k for k in model if k.startswith("generator.")]
    assert all(
        torch.equal(model[k], tensors[f"ema.{i}"]) for i, k in enumerate(n for n, _ in lebm.load(tmp_path / "run").named_parameters() if n in names)
    )
    assert not any(torch.equal(model[k], tensors[f"model.{k}"]) for k in names)
    assert all(torch.equal(model[k], tensors[f"model.{k}"]) for k in model if k.startswith("prior."))


def test_the_average_moves_by_one_minus_its_decay(tmp_path):
    train(tiny("learning.ema=0.9", "training.steps=3", "training.checkpoint_every=1"), run=tmp_path / "run")
    kept = [load_file(tmp_path / "run" / "checkpoints" / f"{i:08d}" / "tensors.safetensors") for i in (2, 3)]
    name = "generator.layers.0.weight"
    i = [n for n, _ in lebm.load(tmp_path / "run").named_parameters() if n.startswith("generator.")].index(name)
    expected = 0.9 * kept[0][f"ema.{i}"] + 0.1 * kept[1][f"model.{name}"]
    torch.testing.assert_close(kept[1][f"ema.{i}"], expected)
    assert not torch.equal(kept[1][f"ema.{i}"], kept[0][f"ema.{i}"])


def test_a_fitted_base_moves_at_its_hundredth_update_to_the_moments_of_posterior_draws(tmp_path, monkeypatch):
    seen = []
    real = lebm.prior.GaussianPrior.see
    monkeypatch.setattr(lebm.prior.GaussianPrior, "see", lambda self, z: (seen.append(z.clone()), real(self, z))[1])
    config = ("prior.kind=gaussian", "prior.base=fitted", "chains.posterior.steps=1", "training.checkpoint_every=99", "training.log_every=99")
    before = train(tiny(*config, "training.steps=99"), run=tmp_path / "run")
    assert torch.equal(before.prior.mean, torch.zeros(len(before.prior.mean)))
    model = train(tiny(*config, "training.steps=101"), run=tmp_path / "run", resume=True)  # across the fit
    mean = torch.zeros(len(model.prior.mean))
    for t, z in enumerate(seen[:100]):
        mean = mean.lerp(z.mean(0), 1 / (20 + t / 2))
    assert len(seen) == 101
    torch.testing.assert_close(model.prior.mean, mean)
    straight = train(tiny(*config, "training.steps=101"))
    assert all(torch.equal(v, straight.state_dict()[k]) for k, v in model.state_dict().items())


def test_rates_decay_once_an_epoch():
    rates = ("learning.prior_rate=1e-4", "learning.generator_rate=1e-3")
    state = TrainingState(tiny("learning.decay=0.5", *rates), LatentEBM(tiny()), torch.device("cpu"))
    state.set_rates(3)
    assert [g["lr"] for g in state.optimizer.param_groups] == pytest.approx([1e-4 / 8, 1e-3 / 8])


# --- stopping -----------------------------------------------------------------------------------------------------


@pytest.fixture
def at_step(monkeypatch):
    """at_step(n, action): the action happens inside the n-th step from now."""

    def plan(n, action):
        real, seen = learn.learn_step, []

        def step(*args, **kwargs):
            seen.append(1)
            if len(seen) == n:
                action()
            return real(*args, **kwargs)

        monkeypatch.setattr(learn, "learn_step", step)

    return plan


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, at_step, signum, code):
    run, before = tmp_path / "my run", signal.getsignal(signum)
    at_step(2, lambda: os.kill(os.getpid(), signum))
    with pytest.raises(Interrupted) as e:
        train(tiny(), run=run)
    assert e.value.exit_code == code
    assert str(e.value) == f"stopped at step 2 of 6 by {signum.name}; saved. Go on with: lebm train '{run}' --resume"
    assert signal.getsignal(signum) is before
    assert lebm.load(run) and [r["step"] for r in strict_rows(run)] == [2]
    train(run, run=run, resume=True)
    straight = train(tiny())
    assert all(torch.equal(a, b) for a, b in zip(lebm.load(run).parameters(), straight.parameters(), strict=True))


def test_a_second_ctrl_c_stops_at_once(tmp_path, at_step):
    at_step(2, lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)])
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), run=tmp_path / "run")
    assert lebm.load(tmp_path / "run")
    train(tmp_path / "run", run=tmp_path / "run", resume=True)


def test_time_is_up(tmp_path, heard):
    console, words = heard
    run = tmp_path / "run"
    train(tiny("training.steps=1000000"), run=run, max_seconds=0.2, console=console)
    steps = strict_rows(run)[-1]["step"]
    assert 0 < steps < 1_000_000 and f"time is up at step {steps} of 1000000; saved. Go on with: lebm train {run} --resume" in words()
    train(run, run=run, resume=True, max_seconds=0)
    assert strict_rows(run)[-1]["step"] == steps + 1


def test_how_to_go_on_names_the_data_folder(tmp_path, heard):
    console, words = heard
    train(tiny(), run=tmp_path / "run", max_seconds=0, console=console, data_dir=tmp_path / "my data")
    assert f"--resume --data-dir '{tmp_path / 'my data'}'" in words()


def test_progress_in_a_file_is_a_line_now_and_then(heard):
    console, words = heard
    with progress_bar(console, "training") as update:
        for i in range(1, 1001):
            update(i, 1000, note="mse 0.1")
    with progress_bar(console, "reading"):
        pass
    assert words().splitlines() == ["training 1000/1000  mse 0.1"]


def test_progress_on_a_terminal(tmp_path):
    with open(tmp_path / "out", "w") as f:
        with progress_bar(Console(file=f, force_terminal=True), "training") as update:
            update(3, 10, note="mse [0.1]")
        with progress_bar(None, "nothing") as update:
            update(1, 2)
    assert "3/10" in (tmp_path / "out").read_text()


# --- divergence ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "quantity", "advice"),
    [
        ("learning.prior_rate=1e6", "z_sq_neg", "learning.prior_rate"),
        ("learning.generator_rate=1e6", "largest weight of the generator", "learning.generator_rate"),
        ("chains.prior.step_size=50", "z_sq_neg", "chains.prior.step_size"),
        ("chains.posterior.step_size=50", "z_sq_pos", "chains.posterior.step_size"),
        ("generator.sigma=1e-6", "", ""),
    ],
)
def test_divergence_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path, setting, quantity, advice):
    run = tmp_path / "run"
    with pytest.raises(Diverged) as e:
        train(tiny("training.steps=60", setting), run=run)
    message = str(e.value)
    assert message.startswith("diverged at step ") and quantity in message and advice in message and "last good checkpoint is step" in message
    assert e.value.exit_code == 3
    assert all(bool(torch.isfinite(p).all()) for p in lebm.load(run).parameters())
    rows = strict_rows(run)
    assert rows[-1]["warning"].startswith("diverged: ") and rows[-1]["step"] == rows[-2]["step"]
    tensors = load_file(sorted((run / "checkpoints").iterdir())[-1] / "tensors.safetensors")
    assert all(bool(torch.isfinite(t).all()) for t in tensors.values() if t.is_floating_point())
    with pytest.raises(Diverged):  # the checkpoint is good, the rates are not
        train(run, run=run, resume=True)


def test_divergence_late_in_a_run_keeps_the_learning_so_far(tmp_path, monkeypatch):
    """Weights that turn to NaN between two checkpoints: the first stays, and nothing newer is written."""
    real, seen = learn.learn_step, []

    def step(model, *args):
        seen.append(1)
        if len(seen) == 5:
            model.generator.layers[0].weight.data.fill_(math.nan)
        return real(model, *args)

    monkeypatch.setattr(learn, "learn_step", step)
    with pytest.raises(Diverged, match=r"step 6: .* the last good checkpoint is step 3"):
        train(tiny(), run=tmp_path / "run")
    monkeypatch.undo()
    assert lebm.load(tmp_path / "run").sample(2).isfinite().all()
    assert all(
        torch.equal(a, b)
        for a, b in zip(train(tmp_path / "run", run=tmp_path / "run", resume=True).parameters(), train(tiny()).parameters(), strict=True)
    )


GOOD = dict.fromkeys(ROW_KEYS, 0.5) | {"step": 1}


def test_what_counts_as_diverged():
    assert diverged(GOOD, tiny()) is None
    for key in ("f_pos", "f_neg", "z_sq_neg", "z_sq_pos", "log_px", "grad_prior", "grad_generator"):
        for bad in (math.nan, math.inf, -math.inf):
            assert diverged(GOOD | {key: bad}, tiny()).startswith(f"{key} is {bad}; lower ")
    assert diverged(GOOD | {"f_pos": -2e6}, tiny()) and diverged(GOOD | {"z_sq_neg": 2e4}, tiny())
    assert diverged(GOOD | {"log_px": -1e9}, tiny()) is None
    assert exploded({"prior": 3.0, "generator": 0.0}) is None
    assert "learning.prior_rate" in exploded({"prior": math.nan, "generator": 1.0})
    assert "learning.generator_rate" in exploded({"prior": 1.0, "generator": math.inf})


BAD = ("z_sq_neg", "z_sq_pos", "f_pos", "log_px", "grad_prior", "grad_generator", "log_q_pos", "grad_encoder", "log_q_neg", "grad_flow")
ALONE = ("draw.posterior=warm", "encoder.teach=follow", "draw.alone=5")


@pytest.mark.parametrize(
    ("settings", "step", "has"),
    [
        ((), 1, {"chains.prior", "chains.posterior"}),
        (("draw.posterior=warm", "draw.prior=warm"), 1, {"chains.prior", "chains.posterior", "encoder", "flow"}),
        (("draw.posterior=amortised", "draw.prior=flow"), 1, {"encoder", "flow"}),
        (ALONE, 5, {"chains.prior", "encoder"}),  # the encoder alone draws the updates 0 to 4
        (ALONE, 6, {"chains.prior", "chains.posterior", "encoder"}),
        (("prior.kind=gaussian", "prior.base=fitted"), 1, {"chains.posterior"}),
    ],
)
def test_advice_names_only_what_the_run_has(settings, step, has):
    config = tiny(*settings)
    networks = {"encoder": "pos", "flow": "neg"}
    keys = [k for k in BAD if not any(k in (f"log_q_{end}", f"grad_{net}") and net not in has for net, end in networks.items())]
    said = {key: diverged(GOOD | {"step": step, key: math.nan}, config) for key in keys}
    for words in said.values():
        for kind in ("chains.prior", "chains.posterior"):
            assert kind in has or f"{kind}.step" not in words
        for net in networks:
            assert net in has or f"learning.{net}_rate" not in words
    assert ("chains.posterior.step_size or first_steps" in said["z_sq_pos"]) == ("chains.posterior" in has)
    assert ("learning.encoder_rate" in said["z_sq_pos"]) == ("learning.encoder_rate" in said["log_px"]) == ("encoder" in has)
    assert ("chains.prior.step_size" in said["z_sq_neg"]) == ("chains.prior" in has)
    assert ("learning.flow_rate" in said["z_sq_neg"]) == ("flow" in has)
    if config.prior.kind == "gaussian":
        assert "prior_rate" not in said["z_sq_pos"] and said["z_sq_neg"].split("; ")[1] == said["z_sq_pos"].split("; ")[1]


REACHING = ("prior.base=mixture", "prior.parts=2", "draw.posterior=amortised")


@pytest.mark.parametrize(
    ("settings", "reach"),
    [
        (("chains.prior.steps=100", "chains.prior.step_size=0.1"), "0.5"),
        (("chains.prior.steps=250", "chains.prior.step_size=0.1"), None),
        (("chains.prior.steps=3", "chains.prior.step_size=0.1", "chains.prior.first_steps=[1.0]"), "0.51"),
        (("chains.prior.steps=3", "chains.prior.step_size=0.1", "chains.prior.first_steps=[1.5]"), None),
        (("chains.prior.steps=2", "prior.base=standard"), None),
        (("chains.prior.steps=2", "prior.kind=gaussian"), None),
        (("chains.prior.steps=2", "draw.posterior=warm", "encoder.teach=follow"), None),
        (("chains.prior.steps=2", "draw.posterior=warm", "encoder.teach=follow", "draw.alone=5"), "0.16"),
    ],
)
def test_a_prior_chain_too_short_for_an_encoder_alone_is_named(settings, reach):
    words = short(tiny(*REACHING, *settings))
    assert (words is None) if reach is None else f"of {reach}; " in words


def test_an_encoder_that_runs_away_gets_advice_it_can_follow(tmp_path):
    settings = ("draw.posterior=amortised", "encoder.width=2", "learning.encoder_rate=1e8", "training.steps=60")
    with pytest.raises(Diverged) as e:
        train(tiny(*settings), run=tmp_path / "run")
    assert "learning.encoder_rate" in str(e.value) and "chains.posterior.step_size" not in str(e.value)


@pytest.mark.parametrize("kind", ["prior", "posterior"])
def test_frozen_chains_are_said_once_and_logged(tmp_path, heard, kind):
    console, words = heard
    train(tiny(f"chains.{kind}.step_size=1e-6"), run=tmp_path / "run", console=console)
    assert words().count(f"the {kind} chain is frozen") == 1 and f"raise chains.{kind}.step_size" in words()
    warnings = [r for r in strict_rows(tmp_path / "run") if "warning" in r]
    assert len(warnings) == 1 and warnings[0]["step"] == 2 and "frozen" in warnings[0]["warning"]


def test_what_counts_as_frozen():
    chains = tiny().chains
    assert list(frozen(GOOD, chains, 20)) == []
    assert [w[:18] for w in frozen(GOOD | {"z_spread_neg": 0.001}, chains, 20)] == ["the prior samples "]
    assert list(frozen(GOOD | {"z_spread_neg": 0.0}, chains, 1)) == [], "a single row has no spread"
    assert [w[:36] for w in frozen(GOOD | {"step": 500, "gap": -40.0}, chains, 1)] == ["the prior's draws do not keep up wit"]
    assert list(frozen(GOOD | {"step": 499, "gap": 40.0}, chains, 20)) == list(frozen(GOOD | {"step": 900, "gap": 20.0}, chains, 20)) == []
    led = GOOD | {"step": 500, "z_sq_pos": 30.0, "z_sq_neg": 61.0}
    assert [w[:40] for w in frozen(led, chains, 20)] == ["the prior's draws lie much farther out t"]
    half = Chains(chains.prior, Chain(3, 0.1, noise=0.5))  # a posterior of half its noise is narrower than its prior
    assert list(frozen(led, half, 20)) == list(frozen(led | {"z_sq_neg": 59.0}, chains, 20)) == list(frozen(led | {"step": 499}, chains, 20)) == []
    assert list(frozen(GOOD | {"step": 10_000, "z_spread_pos": 50.0}, chains, 20)) == [], "where there is no flow, none has collapsed"
    assert list(frozen(GOOD | {"disp_neg": 0.0}, tiny("prior.kind=gaussian").chains, 20)) == [], "no chain is run"
    none = Chains(Chain(0, 0.4), Chain(0, 0.1))
    (said,) = frozen(GOOD | {"z_spread_pos": 0.001, "log_q_pos": 0.0}, none, 20)
    assert said.endswith("lower learning.prior_rate or learning.encoder_rate")
    (said,) = frozen(GOOD | {"step": 500, "gap": -40.0, "log_q_neg": 0.0}, none, 1)
    assert said.endswith("set learning.l2, or raise learning.flow_rate")


# --- the log ------------------------------------------------------------------------------------------------------


def test_a_log_cut_short_is_mended(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\nrubbish \xff\n[1]\n{"step": "x"}\n{"step": 3, "warning": "w"}\n{"step": 4}\n{"step": 5, "f')
    assert [r["step"] for r in read(path)] == [1, 2, "x", 3, 4]
    Log(tmp_path, resumed_at=3).close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3, "warning": "w"}\n'
    assert read(tmp_path / "nothing") == []


# --- a user of the library ------------------------------------------------------------------------------------------


IMAGES = np.random.default_rng(3).integers(0, 256, (30, 1, 8, 8), dtype=np.uint8)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_own_images_in_every_form():
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


def test_a_run_on_own_data_is_not_continued_or_measured_on_another_set(tmp_path):
    run = tmp_path / "run"
    train(tiny(), data=IMAGES, run=run)
    with pytest.raises(DataError, match="handed to lebm.train"):
        train(run, run=run, resume=True)
    with pytest.raises(DataError, match="handed to lebm.train"):
        evaluate(run)
    train(tiny("training.steps=8"), data=IMAGES, run=run, resume=True)
    assert torch.equal(weights(lebm.load(run)), weights(train(tiny("training.steps=8"), data=IMAGES)))


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


def test_own_generator(tmp_path):
    run = tmp_path / "run"
    config = tiny("training.batch=10")
    model = train(config, data=ROWS, model=Line(), run=run)
    assert not torch.equal(model.generator.w, Line().w) and model.sample(7).shape == (7, 5)
    with pytest.raises(CheckpointError, match="generator of your own; pass it"):
        lebm.load(run)
    again = lebm.load(run, generator=Line())
    assert torch.equal(again.generator.w, model.generator.w)
    assert again.infer(ROWS).shape == (50, 16) and again.reconstruct(ROWS).shape == (50, 5) and again.anomaly_score(ROWS).shape == (50,)
    assert "mse" not in strict_rows(run)[-1] and "log_px" in strict_rows(run)[-1]
    more = config.with_values(**{"training.steps": 8})
    train(more, data=ROWS, model=Line(), run=run, resume=True)
    assert torch.equal(lebm.load(run, generator=Line()).generator.w, train(more, data=ROWS, model=Line()).generator.w)


def test_own_generator_and_a_signal(tmp_path, at_step):
    at_step(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted, match="Go on with the same call of lebm.train and resume=True"):
        train(tiny(), data=ROWS, model=Line(), run=tmp_path / "run")
    at_step(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted, match="nothing was kept"):
        train(tiny(), data=ROWS, model=Line())


def test_a_generator_that_lacks_a_method_or_data(tmp_path):
    with pytest.raises(ConfigError, match="has no method log_prob"):
        train(tiny(), data=ROWS, model=nn.Linear(16, 5), run=tmp_path / "run")
    with pytest.raises(DataError, match="needs its data too"):
        train(tiny(), model=Line(), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_going_on_with_a_model():
    first = train(tiny())
    before = weights(first).clone()
    second = train(tiny(), model=first)
    assert not torch.equal(weights(second), before)
    for wrong in ("nz=5", "prior.width=8", "generator.sigma=0.5"):
        with pytest.raises(ConfigError, match="make them equal"):
            train(tiny(wrong), model=first)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"config": "digtis"}, ConfigError),
        ({"config": {"training.stpes": 3}}, ConfigError),
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
    ("preset", "extra"),
    [
        ("svhn", []),
        ("cifar10", []),
        ("celeba64", []),
        ("celeba128", ["prior.width=32"]),
        ("svhn-gaussian", []),
        ("mnist", []),
        ("images", ["generator.size=16", "generator.channels=1"]),
    ],
)
def test_every_preset_learns_on_noise_of_its_shape(preset, extra):
    small = ["data.name=noise", "data.limit=8", "generator.ngf=2", "nz=4", "training.batch=2", "training.steps=1", "chains.posterior.steps=2"]
    config = resolve(preset, [*small, *extra])
    model = train(config)
    g = config.generator
    assert model.sample(2).shape == (2, g.channels, g.size, g.size)
    assert torch.isfinite(weights(model)).all()


# --- the machine ----------------------------------------------------------------------------------------------------


def test_a_tiny_model_learns_on_one_thread_and_a_larger_one_on_all():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with training.fitting_threads(LatentEBM(tiny())):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with training.fitting_threads(LatentEBM(resolve("mnist"))):
            assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError), training.fitting_threads(LatentEBM(tiny())):
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_two_processes_do_not_share_a_run(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    lebm.train(tiny("training.steps=1"), run=tmp_path / "run")
    fd = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as another process would hold it
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError, match="another process is training"):
        lebm.train(tiny("training.steps=2"), run=tmp_path / "run", resume=True)
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    os.close(fd)
    lebm.train(tiny("training.steps=2"), run=tmp_path / "run", resume=True)


# --- starting with the networks of another run ------------------------------------------------------------------------


def same(a, b):
    return all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


def test_a_run_can_start_with_the_networks_of_another(tmp_path):
    old = train(tiny("training.steps=2"), run=tmp_path / "old")
    new = train(tiny("training.steps=0", f"training.start_from={tmp_path / 'old'}", "seed=7"), run=tmp_path / "new")
    assert same(old.generator, new.generator) and same(old.prior, new.prior)
    said = Console(file=io.StringIO(), width=200)
    other = train(tiny("training.steps=0", f"training.start_from={tmp_path / 'old' / 'model.safetensors'}", "prior.base=fitted"), console=said)
    assert "begun anew: prior\n" in said.file.getvalue()
    assert same(old.generator, other.generator) and not torch.equal(other.prior.layers[0].weight, old.prior.layers[0].weight)
    again = train(tiny("training.steps=0", f"training.start_from={tmp_path / 'old'}"), run=tmp_path / "again", resume=True)
    assert same(old.generator, again.generator), "also where a script says resume before there is anything"


def test_networks_go_on_under_another_lesson_and_another_memory(tmp_path):
    """Neither shapes a network: an encoder that learned alone goes on with a chain."""
    base = ["encoder.width=2", "prior.base=fitted"]
    old = train(tiny(*base, "draw.posterior=amortised", "training.steps=2"), run=tmp_path / "old")
    after = [*base, "draw.posterior=warm", "encoder.teach=follow", "prior.memory=50", "training.steps=0", f"training.start_from={tmp_path / 'old'}"]
    new = train(tiny(*after), run=tmp_path / "new")
    assert same(old.inference, new.inference) and same(old.prior, new.prior)
    assert not [row for row in strict_rows(tmp_path / "new") if "warning" in row]
    wider = train(tiny(*after, "encoder.width=3"), run=tmp_path / "wider")
    assert same(old.prior, wider.prior) and wider.inference.q.net.layers[0].weight.shape != old.inference.q.net.layers[0].weight.shape
    (row,) = [row for row in strict_rows(tmp_path / "wider") if "warning" in row]
    assert row["step"] == 0 and row["warning"].endswith("old, and so begun anew: encoder"), "also where nobody reads the console"


def test_chains_without_steps_are_no_way_to_begin_and_no_hindrance_to_go_on(tmp_path, monkeypatch):
    none = ["draw.posterior=warm", "encoder.teach=follow", "encoder.width=2", "chains.posterior.steps=0"]
    with pytest.raises(ConfigError, match="only amortised draws z without a chain"):
        train(tiny(*none), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with monkeypatch.context() as m:  # as a version did that let them begin
        m.setattr(training, "check_learning", lambda config: None)
        train(tiny(*none, "training.steps=2"), run=tmp_path / "run")
    assert lebm.load(tmp_path / "run").sample(2).shape == (2, 1, 8, 8)
    train(tiny(*none, "training.steps=3"), run=tmp_path / "run", resume=True)


def test_a_generator_that_stands_on_ours_starts_from_a_run_of_ours(tmp_path):
    class Mine(ImageGenerator):
        pass

    way = ["draw.posterior=amortised", "encoder.width=2"]
    old = train(tiny(*way, "training.steps=2"), run=tmp_path / "old")
    config = tiny(*way, "training.steps=0", f"training.start_from={tmp_path / 'old'}")
    new = train(config, model=Mine(config.nz, config.generator), run=tmp_path / "new")
    assert same(old.generator, new.generator) and same(old.prior, new.prior)
    (row,) = [row for row in strict_rows(tmp_path / "new") if "warning" in row]
    assert row["warning"].endswith("begun anew: encoder"), "one of another kind"


def test_a_generator_of_ones_own_starts_from_its_own_run(tmp_path):
    class Line(nn.Linear):
        decode = nn.Linear.forward

        def log_prob(self, x, z):
            return -(x - self.decode(z)).square().sum(1)

    x = torch.randn(40, 3)
    old = train(tiny("training.steps=2"), x, Line(16, 3), run=tmp_path / "old")
    new = train(tiny("training.steps=0", f"training.start_from={tmp_path / 'old'}"), x, Line(16, 3))
    assert same(old, new)


def test_kept_chains_stay_with_their_run(tmp_path):
    """They are of another p_0 and energy: those of the new run start from noise."""
    way = ["draw.prior=persistent", "draw.chains=8", "training.batch=4"]
    old = train(tiny(*way, "training.steps=2"), run=tmp_path / "old")
    new = train(tiny(*way, "training.steps=0", f"training.start_from={tmp_path / 'old'}"))
    assert same(old.prior, new.prior) and old.synthesis.filled() == 8 and new.synthesis.filled() == 0


def test_a_run_starts_from_one_model_only(tmp_path):
    old = train(tiny("training.steps=1"), run=tmp_path / "old")
    with pytest.raises(ConfigError, match="a model was handed in; give one of the two"):
        train(tiny("training.steps=1", f"training.start_from={tmp_path / 'old'}"), model=old)


def test_a_p_0_that_cannot_follow_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("lebm.loop.REFIT", 2)
    monkeypatch.setattr("lebm.prior.FLOOR", -1e6)
    train(tiny("prior.base=fitted", "training.log_every=1", "training.steps=4"), run=tmp_path / "run")
    said = [r for r in strict_rows(tmp_path / "run") if "warning" in r]
    assert len(said) == 1 and said[0]["step"] == 3 and "p_0 stays where it is" in said[0]["warning"]


def test_the_log_is_of_the_p_0_that_the_step_saw(tmp_path, monkeypatch):
    """log_q of a flow is a density of u: fitting p_0 anew moves all u, and must not show in the row of that step."""
    pytest.importorskip("zuko")
    rows = {}
    for refit in (4, 100):
        monkeypatch.setattr("lebm.loop.REFIT", refit)
        train(tiny("draw.prior=warm", "prior.base=fitted", "training.steps=4", "training.log_every=4"), run=tmp_path / str(refit))
        rows[refit] = strict_rows(tmp_path / str(refit))[-1]["log_q_neg"]
    assert rows[4] == rows[100]


def test_a_frozen_generator_keeps_its_weights_while_the_prior_learns(tmp_path, monkeypatch):
    monkeypatch.setattr("lebm.loop.REFIT", 2)
    old = train(tiny("training.steps=2"), run=tmp_path / "old")
    settings = (f"training.start_from={tmp_path / 'old'}", "prior.base=fitted", "learning.generator_rate=0", "training.steps=3")
    new = train(tiny(*settings), run=tmp_path / "new")
    assert same(old.generator, new.generator)
    assert not torch.equal(new.prior.root, torch.eye(len(new.prior.root)))
    (tmp_path / "old").rename(tmp_path / "gone")  # what is learned since does not need it
    train(tmp_path / "new", run=tmp_path / "new", resume=True)


def test_networks_that_do_not_fit_are_refused(tmp_path):
    train(tiny("training.steps=0"), run=tmp_path / "old")
    with pytest.raises(ConfigError, match=r"training.start_from is .*old, which has generator.sigma = 0.2; this run has 0.5: make them equal"):
        train(tiny(f"training.start_from={tmp_path / 'old'}", "generator.sigma=0.5"))
    with pytest.raises(CheckpointError, match="nowhere"):
        train(tiny("training.start_from=nowhere"))
    with pytest.raises(CheckpointError, match=r"gone/digits does not exist; .*; learn it first: lebm train digits$"):
        train(tiny("training.start_from=gone/digits"))


def began(run):
    return started_from(read(run / "log.jsonl"))


def test_a_run_keeps_whose_networks_it_began_with(tmp_path):
    """And of a third run all updates count, also after it has been resumed."""
    train(tiny("experiment=one", "training.steps=2"), run=tmp_path / "one")
    assert began(tmp_path / "one") is None
    train(tiny("experiment=two", "training.steps=3", f"training.start_from={tmp_path / 'one'}"), run=tmp_path / "two")
    assert began(tmp_path / "two") == {"experiment": "one", "updates": 2}
    third = ("experiment=three", f"training.start_from={tmp_path / 'two'}")
    train(tiny(*third, "training.steps=1"), run=tmp_path / "three")
    train(tiny(*third, "training.steps=2"), run=tmp_path / "three", resume=True)
    assert began(tmp_path / "three") == {"experiment": "two", "updates": 5}
    found = evaluate(tmp_path / "three", ("mse",), limit=2, pictures=False)
    assert found["protocol"]["start"] == {"experiment": "two", "updates": 5} and found["steps"] == 2
    assert updates(found) == "7 updates, the first 5 as `two`"
    pages = {name: report.write(tmp_path / name).read_text(encoding="utf-8") for name in ("one", "three")}
    assert "<dt>after those of</dt><dd>two, 5</dd>" in pages["three"] and "after those of" not in pages["one"]
    rows = [{"step": 0, "start": {"experiment": "x", "updates": n}} for n in (1, 2)]  # the first start was killed before its first checkpoint
    assert started_from(rows)["updates"] == 2 and started_from([{"start": {"experiment": 1, "updates": "many"}}, {"start": 3}]) is None


def test_another_precision_than_asked_for_is_logged(tmp_path):
    """Also where nobody reads the console."""
    train(tiny("precision=bfloat16", "training.steps=2"), run=tmp_path / "run", device="cpu")
    (said,) = (r for r in strict_rows(tmp_path / "run") if "warning" in r)
    assert said["step"] == 0 and "computes in float32" in said["warning"]


@pytest.mark.parametrize(
    ("source", "data", "says"), [(None, None, "the configuration is a NoneType"), ("text-demo", [1, 2], "give a list of sentences")]
)
def test_what_train_cannot_take(source, data, says):
    with pytest.raises((ConfigError, DataError), match=says):
        train(source, data=data)


def test_a_model_of_another_kind_is_no_start(tmp_path):
    small = ["generator.hidden=4", "generator.embedding=4", "training.steps=0"]
    train(resolve("text-demo", small), run=tmp_path / "words")
    with pytest.raises(ConfigError, match="a model of kind text; this run learns one of kind image"):
        train(tiny(f"training.start_from={tmp_path / 'words'}"))


def test_the_first_updates_may_be_the_encoders_alone(tmp_path):
    """Under draw.alone the same numbers as amortised; then a chain refines, and moves z away from the proposal."""
    way = ["training.log_every=1", "encoder.width=4", "encoder.teach=follow"]
    train(tiny(*way, "draw.posterior=warm", "draw.alone=4"), run=tmp_path / "joins")
    train(tiny(*way, "draw.posterior=amortised"), run=tmp_path / "alone")
    joins, alone = strict_rows(tmp_path / "joins"), strict_rows(tmp_path / "alone")
    for key in ("log_px", "z_sq_pos", "gap", "grad_encoder"):
        assert [r[key] for r in joins[:4]] == [r[key] for r in alone[:4]]
    assert [r["disp_pos"] > 0 for r in joins] == [False] * 4 + [True] * 2
    assert not any("warning" in r for r in joins)  # a chain that is not there is no frozen one
    said = Console(file=io.StringIO(), width=200)
    train(tiny(*way, "draw.posterior=warm", "draw.alone=6"), console=said)
    assert "no chain refines its z" in said.file.getvalue()


def test_an_engine_is_made_once_for_each_part_of_a_run(tmp_path, monkeypatch):
    made, way = [], ("draw.posterior=warm", "encoder.teach=follow", "encoder.width=4", "draw.alone=2")
    real = loop.choose_engine
    monkeypatch.setattr(loop, "choose_engine", lambda state, *a: (made.append(state.step), real(state, *a))[1])
    train(tiny(*way, "training.steps=2"), run=tmp_path / "run")
    train(tiny(*way, "training.steps=4"), run=tmp_path / "run", resume=True)  # just where the chain joins
    train(tiny(*way, "training.steps=4"), run=tmp_path / "whole")
    assert made == [0, 2, 0, 2]

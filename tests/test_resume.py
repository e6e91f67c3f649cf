"""A run that stops goes on as if it had not: bit for bit, after a pause, a signal or a kill at any moment."""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import lebm
from lebm.config import resolve
from lebm.core.errors import CheckpointError, ConfigError
from lebm.core.progress import Reporter
from lebm.core.tensors import load_tensors
from lebm.extensions.bases import WhitenedGaussian
from lebm.run import Run
from lebm.training import checkpoint
from lebm.training.state import TrainingState
from lebm.training.train import train

TINY = [
    "generator.ngf=4",
    "method.energy.width=16",
    "method.prior_chain.steps=5",
    "method.posterior_chain.steps=3",
    "training.log_every=1",
    "training.checkpoint_every=2",
]
ENCODER = ["method.posterior_start.kind=encoder", "method.posterior_start.width=4"]
FLOW = ["method.prior_start.kind=flow", "method.prior_start.width=8", "method.prior_start.layers=2"]
FORWARD = ["method.posterior_start.objective=forward_kl", "method.prior_start.objective=forward_kl"]
NO_CHAINS = ["method.posterior_chain.steps=0", "method.prior_chain.steps=0"]
BETAS = ["optimizers.prior.betas=[0.9, 0.99]", "optimizers.generator.betas=[0.9, 0.99]"]
FEATURES = {
    "plain": [],
    "ema": ["training.ema=0.9"],
    "clip": ["training.clip=0.5"],
    "l2": ["method.energy.l2=0.1"],
    "all": ["training.ema=0.9", "training.clip=0.5", "method.energy.l2=0.1", "training.decay=0.5", *BETAS],
    "decay": ["training.decay=0.5"],
    "optimisers": [
        "optimizers.prior.kind=sgd",
        "optimizers.generator.kind=adamw",
        "optimizers.generator.weight_decay=0.1",
    ],
    "gaussian": ["method.energy=null", "method.prior_chain.steps=0"],
    "whitened": ["method.base.kind=whitened"],
    "mixture": ["method.base.kind=mixture", "method.base.components=3"],
    "flow base": ["method.base.kind=flow", "method.base.layers=2", "method.base.width=8"],
    "forward": [*ENCODER, *FLOW, *FORWARD],
    # A chain joins between the pause and the end.
    "stage": [*ENCODER, "training.stages=[{until: 3, set: {method.posterior_chain.steps: 0}}]"],
    "replay": ["method.prior_start.kind=replay", "method.prior_start.chains=30", "method.prior_start.refresh=0.3"],
    "networks alone, ema": [*ENCODER, *FLOW, *NO_CHAINS, "training.ema=0.9", "training.decay=0.5"],
}
TIMES = ("seconds", "updates_per_second")


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def tiny(*settings):
    return resolve("digits", [*TINY, *settings])


def last_checkpoint(run):
    folder = sorted((run / "checkpoints").iterdir())[-1]
    state = json.loads((folder / "state.json").read_text())
    tensors, _ = load_tensors(folder / "tensors.safetensors")
    return tensors, {k: v for k, v in state.items() if k not in ("seconds", "file")}


def rows(run):
    lines = (run / "log.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# --- bit for bit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feature", FEATURES)
def test_two_and_two_updates_are_four(tmp_path, feature, monkeypatch):
    """Three updates an epoch: the pause lies inside one, the boundary after it; a base that follows moves at updates 2
    and 4."""
    monkeypatch.setattr(WhitenedGaussian, "refit_every", 2)
    settings = [*FEATURES[feature], "data.limit=60", "training.batch=20"]
    if any("kind=flow" in s for s in settings):
        pytest.importorskip("zuko")
    train(tiny(*settings, "training.updates=4"), run=tmp_path / "straight")
    train(tiny(*settings, "training.updates=2"), run=tmp_path / "parts")
    train(tiny(*settings, "training.updates=4"), run=tmp_path / "parts", resume=True)
    (a, state_a), (b, state_b) = last_checkpoint(tmp_path / "straight"), last_checkpoint(tmp_path / "parts")
    assert same(a, b) and state_a == state_b
    kinds = {k.split(".")[0] for k in a}
    assert kinds == {"model", "optimizer", "rng"} | ({"ema"} if "ema" in feature or feature == "all" else set())
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("straight", "parts")]
    assert same(*models)
    if feature == "replay":  # the chains of the buffer are in there
        assert int(b["model.prior_start.rows"]) == 80 and b["model.prior_start.z"].abs().min() > 0
    assert rows(tmp_path / "straight") == rows(tmp_path / "parts")
    assert [r["epoch"] for r in rows(tmp_path / "parts")] == [0, 0, 0, 1]
    assert resolve(tmp_path / "straight") == resolve(tmp_path / "parts")


def test_every_pause_gives_the_same_end(tmp_path):
    settings = [*FEATURES["all"], "data.limit=60", "training.batch=20"]
    train(tiny(*settings, "training.updates=7"), run=tmp_path / "straight")
    for updates in range(8):
        train(tiny(*settings, f"training.updates={updates}"), run=tmp_path / "parts", resume=True)
    assert same(last_checkpoint(tmp_path / "straight")[0], last_checkpoint(tmp_path / "parts")[0])
    assert rows(tmp_path / "straight") == rows(tmp_path / "parts")


def test_updates_done_again_are_not_logged_twice(tmp_path):
    run = tmp_path / "run"
    train(tiny("training.updates=5"), run=run)
    with open(run / "log.jsonl", "a") as f:  # what a killed process had done after its last checkpoint
        f.write('{"step": 6, "gap": 1.0}\n{"step": 7, "gap"')
    train(tiny("training.updates=8"), run=run, resume=True)
    assert [r["step"] for r in rows(run)] == list(range(1, 9)) and rows(run)[5]["gap"] != 1.0


def test_a_finished_run_resumes_to_itself(tmp_path):
    run = tmp_path / "run"
    train(tiny("training.updates=4"), run=run)
    before = {p.name: p.read_bytes() for p in run.rglob("*") if p.is_file() and "tfevents" not in p.name}
    train(run, run=run, resume=True)
    assert before == {p.name: p.read_bytes() for p in run.rglob("*") if p.is_file() and "tfevents" not in p.name}


def test_weights_older_than_their_checkpoint_are_written_again(tmp_path):
    """A kill may fall between the last checkpoint and model.safetensors; the run is then at its end and takes no
    step."""
    run = tmp_path / "run"
    train(tiny("training.updates=2"), run=run)
    old = (run / "model.safetensors").read_bytes()
    train(tiny("training.updates=4"), run=run, resume=True)
    new = (run / "model.safetensors").read_bytes()
    for damaged in (old, None):
        (run / "model.safetensors").unlink()
        if damaged:
            (run / "model.safetensors").write_bytes(damaged)
        train(run, run=run, resume=True)
        assert (run / "model.safetensors").read_bytes() == new != old


# --- what may change ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    run = tmp_path_factory.mktemp("done") / "run"
    train(tiny("training.updates=2"), run=run, device="cpu")
    return run


@pytest.mark.parametrize(
    "change",
    [
        "seed=2",
        "nz=8",
        "training.batch=50",
        "optimizers.prior.rate=1e-3",
        "method.prior_chain.steps=6",
        "method.base.kind=whitened",
        "data.limit=100",
        "precision=float32",
        "training.stages=[{until: 5}]",
    ],
)
def test_another_experiment_is_not_a_resume(done, change):
    key = change.split("=")[0]
    before = sorted(p.stat().st_mtime_ns for p in done.rglob("*"))
    with pytest.raises(CheckpointError) as e:
        train(tiny("training.updates=2", change), run=done, resume=True)
    assert key in str(e.value) and "--resume" in str(e.value) and "\n" not in str(e.value)
    assert sorted(p.stat().st_mtime_ns for p in done.rglob("*")) == before


def test_the_name_how_long_and_how_often_may_change(tmp_path):
    run = tmp_path / "run"
    train(tiny("training.updates=2"), run=run)
    changes = [
        "training.updates=3",
        "training.log_every=7",
        "training.checkpoint_every=9",
        "engine=reference",
        "name=longer",
    ]
    train(tiny(*changes), run=run, resume=True)
    assert resolve(run).name == lebm.load(run).config.name == "longer"
    assert resolve(run).training.log_every == 7 and resolve(run).training.updates == 3
    assert checkpoint.saved_updates(run / "checkpoints") == [0, 2, 3]


@pytest.mark.parametrize("updates", [0, 3])
def test_a_finished_run_says_so_and_how_to_go_on(tmp_path, updates):
    run, reporter, lines = tmp_path / "run", Reporter(), []
    reporter.say = lines.append
    train(tiny(f"training.updates={updates}"), run=run, reporter=reporter)
    assert lines == []
    train(run, run=run, resume=True, reporter=reporter)
    assert len(lines) == bool(updates)
    assert all("all 3 updates are made" in line and "--set training.updates=" in line for line in lines)


def test_who_may_start_where(tmp_path, done):
    with pytest.raises(CheckpointError, match="already holds a run; .* resume=True .*--resume"):
        train(tiny(), run=done)
    file, foreign = tmp_path / "file", tmp_path / "foreign"
    file.write_text("precious")
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    for resume in (True, False):
        with pytest.raises(CheckpointError, match="is a file"):
            train(tiny(), run=file, resume=resume)
        with pytest.raises(CheckpointError, match="not empty and holds no run"):
            train(tiny(), run=foreign, resume=resume)
    assert file.read_text() == "precious" and [p.name for p in foreign.iterdir()] == ["thesis.tex"]


def test_a_new_folder_may_be_resumed_or_empty(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / ".tmp-abc.yaml").touch()  # a kill before config.yaml was there
    for name in ("new", "empty", "killed"):
        train(tiny("training.updates=1"), run=tmp_path / name, resume=True)
        assert checkpoint.saved_updates(tmp_path / name / "checkpoints") == [0, 1]
    assert not (tmp_path / "killed" / ".tmp-abc.yaml").exists()


# --- damage ---------------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_says_what_to_delete_and_then_the_run_goes_on(tmp_path):
    run = tmp_path / "run"
    train(tiny("training.updates=4"), run=run)
    straight = last_checkpoint(run)[0]
    newest = run / "checkpoints" / "00000004"
    content = (newest / "tensors.safetensors").read_bytes()
    (newest / "tensors.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=f"delete {newest} to go on from update 2"):
        train(run, run=run, resume=True)
    for p in newest.iterdir():
        p.unlink()
    newest.rmdir()
    train(run, run=run, resume=True)
    assert same(last_checkpoint(run)[0], straight) and [r["step"] for r in rows(run)] == [1, 2, 3, 4]


def test_a_checkpoint_of_another_run(tmp_path):
    for name, width in (("a", 16), ("b", 8)):
        train(tiny("training.updates=2", f"method.energy.width={width}"), run=tmp_path / name)
    (tmp_path / "a" / "checkpoints").rename(tmp_path / "gone")
    (tmp_path / "b" / "checkpoints").rename(tmp_path / "a" / "checkpoints")
    with pytest.raises(CheckpointError, match="does not fit this model"):
        train(tmp_path / "a", run=tmp_path / "a", resume=True)


@pytest.mark.parametrize("damage", ["moments", "rng", "no rng", "ema", "seconds"])
def test_a_checkpoint_with_the_right_sum_and_the_wrong_content(tmp_path, damage):
    run = tmp_path / "run"
    train(tiny("training.updates=2", "training.ema=0.5"), run=run)
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("updates: 2", "updates: 5"))
    tensors, state = checkpoint.load_latest(run / "checkpoints")
    if damage == "moments":
        tensors = {k: torch.zeros(2) if k.endswith("exp_avg") else v for k, v in tensors.items()}
    elif damage == "rng":
        tensors["rng.chain"] = tensors["rng.chain"][:100]
    elif damage == "no rng":
        del tensors["rng.chain"]
    elif damage == "ema":
        del tensors["ema.generator.layers.0.weight"]
    else:
        state["seconds"] = "long"
    checkpoint.save(run / "checkpoints", 3, tensors, {k: v for k, v in state.items() if k not in ("file", "updates")})
    with pytest.raises(CheckpointError, match="not a checkpoint of this run"):
        train(run, run=run, resume=True)


def test_fewer_updates_than_there_are_leave_the_run_as_it_is(tmp_path):
    train(tiny("training.updates=4"), run=tmp_path / "run")
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(CheckpointError, match=r"has 4 updates already, and training.updates is 3"):
        train(tiny("training.updates=3"), run=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before


def test_a_damaged_config(tmp_path):
    run = tmp_path / "run"
    train(tiny("training.updates=1"), run=run)
    (run / "config.yaml").write_text("nz: [")
    with pytest.raises(ConfigError, match="config.yaml"):
        train(tiny("training.updates=1"), run=run, resume=True)


# --- SIGKILL --------------------------------------------------------------------------------------------------------

KILLED = [*TINY, "training.batch=20", "data.limit=100", "training.ema=0.9", "training.decay=0.9"]


def learn(run, updates, every, kill_at):
    """In a process of its own: go on with the run; the kill comes after the kill_at-th call that touches the disk, or
    from outside."""
    torch.set_num_threads(1)
    if kill_at:
        seen = []

        def deadly(real):
            def call(*args, **kwargs):
                result = real(*args, **kwargs)
                seen.append(1)
                if len(seen) == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            return call

        for owner, name in ((os, "fsync"), (Path, "replace"), (os, "unlink"), (os, "rmdir"), (os, "mkdir")):
            setattr(owner, name, deadly(getattr(owner, name)))
    config = resolve("digits", [*KILLED, f"training.updates={updates}", f"training.checkpoint_every={every}"])
    train(config, run=run, resume=True, device="cpu")


@pytest.fixture(scope="module")
def nursery():
    """Children born with everything imported: a fork server, so that no thread of this process comes along."""
    context = multiprocessing.get_context("forkserver")
    modules = ["lebm.training.train", "torch._dynamo", "torch.utils.tensorboard", "sklearn.datasets", "pytest"]
    context.set_forkserver_preload(modules)

    def child(*args):
        process = context.Process(target=learn, args=args)
        process.start()
        return process

    return child


def check_readable(run):
    """Whatever lies there under its final name is whole."""
    if not (run / "config.yaml").exists():
        return
    assert yaml.safe_load((run / "config.yaml").read_text())["name"] == "digits/paper"
    folder = run / "checkpoints"
    for updates in checkpoint.saved_updates(folder):
        part = folder / f"{updates:08d}"
        assert json.loads((part / "state.json").read_text())["updates"] == updates
        assert load_file(part / "tensors.safetensors")
    assert len(checkpoint.saved_updates(folder)) <= 4
    if checkpoint.saved_updates(folder):
        assert checkpoint.load_latest(folder)
    if (run / "model.safetensors").exists():
        model = lebm.load(run)
        assert model.sample(1, spec=model.choose("prior", steps=0)).isfinite().all()
    logged = [row["step"] for row in Run(run).rows()]
    assert logged == sorted(set(logged))


def same_end(run, straight):
    return (
        same(last_checkpoint(run)[0], last_checkpoint(straight)[0])
        and (run / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()
        and rows(run) == rows(straight)
        and not list(run.rglob(".tmp-*"))
    )


def newest(run):
    return max(checkpoint.saved_updates(run / "checkpoints"), default=-1)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_killed_at_random_moments(tmp_path, nursery):
    updates, chance = 150, random.Random(20)
    learn(tmp_path / "straight", updates, 3, 0)
    run, kills = tmp_path / "run", 0
    for _ in range(40):
        before, process = newest(run), nursery(run, updates, 3, 0)
        if chance.random() < 0.8:  # mostly in the midst of learning, now and then before it
            while process.is_alive() and newest(run) == before:
                time.sleep(0.002)
        process.join(chance.uniform(0.0, 0.15) if kills < 12 else None)
        if process.is_alive():
            process.kill()
            process.join()
        check_readable(run)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    assert process.exitcode == 0 and kills >= 3, f"{kills} kills"
    assert same_end(run, tmp_path / "straight")


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_killed_at_every_kind_of_write(tmp_path, nursery):
    """The kill falls right after the n-th call that touches the disk, for many n; each time the run is whole, and goes
    on to the same end."""
    learn(tmp_path / "straight", 3, 1, 0)
    for n in range(1, 200):
        run = tmp_path / f"run-{n}"
        process = nursery(run, 3, 1, n)
        process.join()
        check_readable(run)
        if process.exitcode == 0:  # fewer calls than n
            break
        assert process.exitcode == -signal.SIGKILL
        process = nursery(run, 3, 1, 0)
        process.join()
        assert process.exitcode == 0 and same_end(run, tmp_path / "straight"), f"killed after call {n}"
    assert n > 40


def test_the_state_is_read_while_nobody_else_can_write_it(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    train(tiny("training.updates=2"), run=tmp_path / "run")
    real, locked = TrainingState.resume_from, []

    def looked(self, run):
        fd = os.open(run.path, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked.append(True)
        os.close(fd)
        real(self, run)

    monkeypatch.setattr(TrainingState, "resume_from", looked)
    train(tiny("training.updates=3"), run=tmp_path / "run", resume=True)
    assert locked == [True]


def test_a_run_that_lost_its_checkpoints_is_not_begun_anew(tmp_path):
    """Beginning anew would overwrite the only trained model and empty the log."""
    settings = [*TINY, "training.batch=20", "data.limit=40", "training.updates=4"]
    train(resolve("digits", settings), run=tmp_path / "run", device="cpu")
    for path in sorted((tmp_path / "run" / "checkpoints").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    before = {
        name: (tmp_path / "run" / name).read_bytes() for name in ("model.safetensors", "log.jsonl", "config.yaml")
    }
    with pytest.raises(CheckpointError, match="no checkpoint"):
        train(
            resolve("digits", [*settings[:-1], "training.updates=8"]), run=tmp_path / "run", resume=True, device="cpu"
        )
    assert before == {name: (tmp_path / "run" / name).read_bytes() for name in before}


def test_a_run_that_another_process_began_meanwhile_is_left_alone(tmp_path, monkeypatch):
    """Between the check of the folder and the lock on it, another process may begin and end a run there."""
    import lebm.training.train as module

    settings = [*TINY, "training.batch=20", "data.limit=40", "training.updates=4"]
    read_rows = module.training_rows

    def late(*args):
        rows = read_rows(*args)
        monkeypatch.setattr(module, "training_rows", read_rows)
        train(resolve("digits", [*settings, "seed=2"]), run=tmp_path / "run", device="cpu")
        return rows

    monkeypatch.setattr(module, "training_rows", late)
    with pytest.raises(CheckpointError, match="already holds a run"):
        train(resolve("digits", [*settings, "seed=1"]), run=tmp_path / "run", device="cpu")
    assert resolve(tmp_path / "run").seed == 2

"""Every command on a tiny trained run: what it writes, and how it refuses."""

import csv
import errno
import json
import os
import pickle
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from rich.console import Console

import lebm
from lebm import cli
from lebm.cli import common
from lebm.cli.common import POSTERIOR_STARTS, PRIOR_STARTS, Terminal
from lebm.cli.use import SCORES
from lebm.cli.use import _score_in_words as score_in_words
from lebm.config import EncoderStart, FlowStart, NoiseStart, ReplayStart, preset_names, resolve
from lebm.core import files
from lebm.core.tensors import load_tensors, save_tensors
from lebm.data import DATASETS, Dataset, Splits
from lebm.measure import METRICS
from lebm.measure.result import KEYS
from lebm.method import Method
from lebm.training import checkpoint
from lebm.training.train import train

TINY = {
    "generator.ngf": 4,
    "method.energy.width": 16,
    "method.prior_chain.steps": 5,
    "method.posterior_chain.steps": 3,
    "training.updates": 6,
    "training.log_every": 2,
    "training.checkpoint_every": 3,
    "training.batch": 20,
}
SETTINGS = [x for k, v in TINY.items() for x in ("--set", f"{k}={v}")]
ALONE = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "80"}
PIXELS = np.random.default_rng(2).integers(0, 256, (7, 8, 8), dtype=np.uint8)


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("LEBM_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("trained") / "run"
    train(resolve("digits", [f"{k}={v}" for k, v in TINY.items()]), run=run, device="cpu")
    return run


@pytest.fixture
def run(trained, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(trained, tmp_path / "run")


class Answer:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def call(monkeypatch, capsys):
    """call("sample", run, …): the program in this process; how it ended and what it answer."""

    def program(*args):
        monkeypatch.setattr(sys, "argv", ["lebm", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as e:
            cli.main()
        return Answer(e.value.code or 0, *capsys.readouterr())

    return program


@pytest.fixture
def ok(call):
    def program(*args):
        answer = call(*args)
        assert answer.code == 0, answer.err
        return answer

    return program


@pytest.fixture
def refused(call):
    """The call ends with code 2 and one sentence on standard error that contains all the parts."""

    def program(*args, says=()):
        answer = call(*args)
        assert answer.code == 2 and answer.out == "" and "Traceback" not in answer.err, answer.err
        lines = answer.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: ") and len(lines[0]) < 900, answer.err
        assert all(str(part) in lines[0] for part in says), lines[0]
        return lines[0]

    return program


def snapshot(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# --- the program itself ---------------------------------------------------------------------------------------------


def test_version_and_help(ok, call):
    assert ok("--version").out == f"lebm {lebm.__version__}\n"
    assert all(
        word in ok("--help").out
        for word in ("train", "demo", "sample", "reconstruct", "score", "evaluate", "presets", "data")
    )
    for command in ("train", "demo", "sample", "reconstruct", "score", "evaluate", "presets", "data"):
        assert "--help" in ok(command, "--help").out
    assert call().code == 2


def test_python_m_is_the_same_program():
    done = subprocess.run([sys.executable, "-m", "lebm", "--version"], capture_output=True, text=True, env=ALONE)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"lebm {lebm.__version__}\n", "")


def seconds(*words, runs=5):
    """The least processor time of a program over several runs: what it takes where nothing else runs."""
    times = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], env=ALONE, capture_output=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["train", "--help"], ["train", "svnh/paper"]])
def test_a_quick_answer(words):
    assert seconds("-m", "lebm", *words) <= 0.4
    heavy = "{'torch', 'numpy', 'sklearn', 'matplotlib', 'scipy', 'PIL'} & set(sys.modules)"
    program = (
        f"import sys; sys.argv[1:] = {words}; from lebm import cli\ntry: cli.main()\nexcept SystemExit: print({heavy})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ALONE)
    assert done.stdout.splitlines()[-1] == "set()", "nothing heavy was imported"


def test_importing_the_package_costs_little_more_than_torch():
    assert seconds("-c", "import torch, lebm", runs=3) - seconds("-c", "import torch", runs=3) <= 0.2


def test_the_metrics_are_listed_from_their_objects(ok):
    out = ok("metrics").out
    for metric in METRICS.values():
        assert f"{metric.name}: {metric.title}" in out and metric.about in out and metric.direction in out


def test_the_schema_is_json(ok):
    schema = json.loads(ok("schema").out)
    assert {"data", "generator", "method", "optimizers", "training"} <= set(schema["properties"])


def test_help_names_every_score_and_start(ok):
    from lebm.detect.scores import SCORES as KNOWN

    assert SCORES.split(", ") == [*sorted(KNOWN, key=SCORES.index), "combined"]
    assert PRIOR_STARTS.split(", ") == [
        kind.model_fields["kind"].default for kind in (NoiseStart, FlowStart, ReplayStart)
    ]
    assert POSTERIOR_STARTS.split(", ") == [kind.model_fields["kind"].default for kind in (NoiseStart, EncoderStart)]
    assert "encoder" in ok("reconstruct", "--help").out and "flow" in ok("sample", "--help").out


def test_progress_in_a_file_is_a_line_now_and_then(capsys):
    with Terminal().progress("training") as update:
        for i in range(1, 1001):
            update(i, 1000, note="mse 0.1")
    with Terminal().progress("reading"):
        pass
    assert capsys.readouterr().err.splitlines() == ["training 1000/1000  mse 0.1"]


def test_progress_on_a_terminal(tmp_path, monkeypatch):
    with open(tmp_path / "out", "w") as f:
        monkeypatch.setattr(common, "stderr", lambda: Console(file=f, force_terminal=True))
        with Terminal().progress("training") as update:
            update(3, 10, note="mse [0.1]")
    assert "3/10" in (tmp_path / "out").read_text()


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["train"], "PRESET_OR_YAML"),
        (["train", "--foo"], "--foo"),
        (["trian"], "train"),
        (["sample"], "RUN"),
        (["sample", "run", "--out", "x.png", "-n", "0"], "-n"),
        (["sample", "run", "--out", "x.png", "-n", "many"], "integer"),
        (["score", "run", "--out", "x.csv"], "--input"),
        (["train", "digits", "--device", "gpu"], "cuda"),
        (["train", "digits", "--seed", "-1"], "--seed"),
        (["train", "digits", "--max-seconds", "-1"], "--max-seconds"),
        (["evaluate", "run", "--samples", "1"], "--samples"),
    ],
)
def test_a_typo_is_explained(call, args, word, tmp_path):
    answer = call(*args)
    assert (
        answer.code == 2 and word in answer.err and "Traceback" not in answer.err and len(answer.err.splitlines()) < 12
    )
    assert os.listdir(tmp_path) == []


def test_presets(ok, refused, tmp_path):
    table = ok("presets").out
    assert all(name in table for name in preset_names())
    for name in preset_names():
        shown = ok("presets", name).out
        (tmp_path / "shown.yaml").write_text(shown)
        assert resolve("shown.yaml") == resolve(name)
    refused("presets", "svhm", says=["did you mean svhn"])


def test_the_presets_say_what_a_generator_makes(ok):
    lines = {line.split()[1]: line for line in ok("presets").out.splitlines() if line.startswith("│")}
    assert "image 8x8x1" in lines["digits/paper"] and "text, 512 units" in lines["ptb/paper"]


def test_absent_numbers_are_absent_rows(capsys):
    common.print_metrics({"metrics": {"mse": 0.5, "mse_100": None}})
    shown = capsys.readouterr().out
    assert "mse" in shown and "mse_100" not in shown and "none" not in shown


def test_a_score_is_called_by_its_name(trained):
    class Plain(Method):
        pass

    class Own(Method):
        def anomaly(self, x, rng, spec=None):
            return x

    names = [score_in_words(SimpleNamespace(name="joint", method=m)) for m in (lebm.load(trained), Plain(), Own())]
    assert names == ["joint", "-log p(x|z), the score of Plain", "the score of Own"]
    assert score_in_words(SimpleNamespace(name="error", method=Plain())) == "error"


def test_training_is_not_always_algorithm_1(ok):
    assert "Learn a model." in ok("train", "--help").out


def test_the_hint_after_training_is_one_that_works(ok, monkeypatch):
    rows = torch.randn(40, 2)
    table = Dataset("rows", lambda *_: Splits(rows[:30], rows[30:]), lambda root: root, "", "", "", "table")
    monkeypatch.setitem(DATASETS, "rows", table)
    kind = ["--set", "generator.kind=table", "--set", "data.name=rows", "--set", "training.batch=10"]
    hint = ok("train", "digits", *kind, "--set", "training.updates=1", "--run", "rows").err.split("or   lebm ")[-1]
    ok(*hint.split())


def test_data_says_where_or_how(ok, tmp_path, monkeypatch):
    alone = ok("data").out
    assert "73,257 training" in alone and "non-commercial use only" in alone
    assert "no data folder" in alone and "digits: found in" in alone and "mnist: not found" in alone
    assert "http://ufldl.stanford.edu/housenumbers/" in alone, "an address is not cut"
    raw = tmp_path / "my data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ):
        (raw / name).touch()
    given = ok("data", "--data-dir", tmp_path / "my data").out
    monkeypatch.setenv("LEBM_DATA", str(tmp_path / "my data"))
    assert f"data folder: {tmp_path / 'my data'}\n" in given and f"mnist: found in {raw}\n" in given
    assert ok("data").out == given


def test_nobody_reads_to_the_end():
    """`lebm presets svhn | head -1`: no complaint."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lebm", "presets", "svhn"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ALONE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()


# --- train ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "preset",
    [
        "svhn/paper",
        "cifar10/paper",
        "celeba64/paper",
        "celeba128/paper",
        "svhn/gaussian",
        "mnist/paper",
        "images/paper",
        "digits",
    ],
)
def test_dry_run(ok, preset, tmp_path):
    answer = ok("train", preset, "--dry-run", "--set", "seed=5")
    (tmp_path / "printed.yaml").write_text(answer.out)
    assert resolve(tmp_path / "printed.yaml") == resolve(preset, ["seed=5"])
    counts = re.fullmatch(r"parameters: (?:prior ([\d,]+), )?generator ([\d,]+); device cpu", answer.err.strip())
    assert counts, answer.err
    assert os.listdir(tmp_path) == ["printed.yaml"]
    if preset == "svhn/paper":  # 100-200-200-1, and 100 -> 512 -> 256 -> 128 -> 3 with 4x4 kernels
        prior = 100 * 200 + 200 + 200 * 200 + 200 + 200 + 1
        generator = 16 * (100 * 512 + 512 * 256 + 256 * 128 + 128 * 3) + 512 + 256 + 128 + 3
        assert [int(c.replace(",", "")) for c in counts.groups()] == [prior, generator]


def test_train_here_and_again(ok, tmp_path):
    answer = ok("train", "digits", *SETTINGS)
    assert (
        answer.out == ""
        and "training 6/6" in answer.err
        and "lebm evaluate runs/digits/paper" in answer.err
        and "checkpoint_every: 3" in answer.err
    )
    assert lebm.load("runs/digits/paper")
    ok("train", "runs/digits/paper", "--seed", "3")  # a run folder is also a configuration
    assert resolve("runs/digits/paper-2").seed == 3
    assert "drift_limit" not in answer.err, "only what differs from the preset"
    every = ok("train", "digits", *SETTINGS, "--verbose").err
    assert "drift_limit: 0.0" in every and "checkpoint_every: 3" in every


def test_the_seed_and_the_run_folder(ok, tmp_path):
    for name, seed in (("a", 1), ("b", 2), ("[c] d", 1)):
        answer = ok("train", "digits", *SETTINGS, "--run", name, "--seed", seed)
        assert f"run folder: {name}\n" in answer.err
    a, b, c = (lebm.load(name).sample(2) for name in ("a", "b", "[c] d"))
    assert torch.equal(a, c) and not torch.equal(a, b)


@pytest.mark.parametrize("preset", ["svhn", "cifar10", "celeba64"])
def test_train_on_noise(ok, preset):
    small = [
        "data.name=noise",
        "data.limit=8",
        "generator.ngf=2",
        "training.batch=2",
        "training.updates=2",
        "method.posterior_chain.steps=2",
    ]
    ok("train", preset, *(x for s in small for x in ("--set", s)), "--run", "run")
    ok("sample", "run", "-n", 3, "--out", "x.npz", "--steps", 2)
    side = resolve(preset).generator.size
    assert np.load("x.npz")["x"].shape == (3, 3, side, side)


def test_train_own_pictures(ok):
    Path("pictures").mkdir()
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (12, 20, 17, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(f"pictures/{i}.png")
    small = [
        "data.path=pictures",
        "generator.size=16",
        "generator.ngf=2",
        "training.batch=4",
        "training.updates=2",
        "method.prior_chain.steps=2",
    ]
    ok("train", "images", *(x for s in small for x in ("--set", s)))
    ok("reconstruct", "runs/images/paper", "--input", "pictures", "--out", "x.png")
    ok("reconstruct", "runs/images/paper", "--input", "pictures", "--out", "x.npz")
    assert np.load("x.npz")["x_hat"].shape == (12, 3, 16, 16)


def test_resume(ok, run, refused):
    ok("train", run, "--resume", "--set", "training.updates=8")
    assert checkpoint.saved_updates(run / "checkpoints")[-1] == 8
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [2, 3, 4, 6, 8]
    before = snapshot(run)
    refused("train", run, "--resume", "--seed", 9, says=["seed = 1, not 9", f"lebm train {run} --resume"])
    refused("train", "digits", "--run", run, "--resume", says=["--resume"])
    assert snapshot(run) == before


def test_resume_without_a_folder_means_the_run_of_that_name(ok, refused):
    ok("train", "digits", *SETTINGS)
    ok("train", "digits", *SETTINGS, "--resume", "--set", "training.updates=8")
    assert (
        os.listdir("runs/digits") == ["paper"]
        and checkpoint.saved_updates(Path("runs/digits/paper/checkpoints"))[-1] == 8
    )
    Path("runs/digits/paper-2").mkdir()
    refused("train", "digits", "--resume", says=["runs/digits/paper", "runs/digits/paper-2", "say which"])


def test_max_seconds(ok, tmp_path):
    ok("train", "digits", *SETTINGS, "--set", "training.updates=100000", "--run", "my run", "--max-seconds", "0.3")
    answer = ok("train", "my run", "--resume", "--max-seconds", "0.1")
    assert "time is up at update" in answer.err
    command = re.search(r"Go on with: (lebm train .*)", answer.err).group(1)
    assert command == "lebm train 'my run' --resume"


def start(*args):
    return subprocess.Popen(
        [sys.executable, "-m", "lebm", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ALONE,
    )


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(ok, signum, code, tmp_path):
    process = start("train", "digits", *SETTINGS, "--set", "training.updates=1000000", "--run", "my run")
    while process.poll() is None and not checkpoint.saved_updates(tmp_path / "my run" / "checkpoints")[1:]:
        time.sleep(0.02)
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code and out == "" and "Traceback" not in err, err
    step = checkpoint.saved_updates(tmp_path / "my run" / "checkpoints")[-1]
    assert (
        err.splitlines()[-1]
        == f"stopped at update {step} of 1000000 by {signum.name}; saved. Go on with: lebm train 'my run' --resume"
    )
    command = shlex.split(err.rpartition("Go on with: lebm ")[2])
    ok(*command, "--set", f"training.updates={step + 2}")
    assert checkpoint.saved_updates(tmp_path / "my run" / "checkpoints")[-1] == step + 2


@pytest.mark.parametrize(
    "setting", ["optimizers.prior.rate=1e6", "optimizers.generator.rate=1e6", "method.posterior_chain.step_size=50"]
)
def test_diverged(call, setting, ok):
    answer = call("train", "digits", *SETTINGS, "--set", setting, "--run", "run")
    last = answer.err.splitlines()[-1]
    assert answer.code == 3 and re.match(
        r"diverged at update \d+: .*; lower .*; the last good checkpoint is update \d+ in run", last
    ), last
    assert "Traceback" not in answer.err
    ok("sample", "run", "-n", 2, "--out", "x.npz")
    assert np.isfinite(np.load("x.npz")["x"]).all()


def test_a_warning_is_printed(ok):
    assert (
        "warning at update 2: the prior chain is frozen"
        in ok("train", "digits", *SETTINGS, "--set", "method.prior_chain.step_size=1e-6").err
    )


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["digtis"], ["did you mean digits"]),
        (["digits", "--set", "training.updtes=3"], ["training.updtes", "did you mean training.updates"]),
        (["digits", "--set", "training.updates=x"], ["training.updates is 'x'"]),
        (["digits", "--set", "training.updates"], ["KEY=VALUE"]),
        (["digits", "--device", "cuda"], ["no CUDA device"]),
        (["digits", "--set", "data.name=digist"], ["digist", "did you mean digits"]),
        (["mnist"], ["LEBM_DATA", "train-images"]),
        (["mnist", "--data-dir", "nothing"], ["nothing does not exist"]),
        (["images"], ["data.path"]),
        (["images", "--set", "data.path=nothing"], ["nothing"]),
        (["images", "--set", "data.path=empty"], ["empty", "no pictures"]),
        (["images", "--set", "data.path=bad"], ["bad/a.png"]),
        (["images", "--set", "data.path=mixed.npy"], ["mixed.npy"]),
        (["digits", "--run", "file"], ["is a file"]),
        (["digits", "--run", "file/below"], ["file"]),
        (["digits", "--run", "bad"], ["not empty and holds no run"]),
        (["digits", "--run", "bad", "--resume"], ["not empty and holds no run"]),
        (["digits", "--resume", "--run", "file"], ["is a file"]),
        (["empty", "--resume"], ["empty", "config.yaml"]),
        (["nothing.yaml"], ["nothing.yaml does not exist"]),
        (["broken.yaml"], ["broken.yaml", "YAML", "line 1"]),
        (["file"], ["file holds a str"]),
    ],
)
def test_train_refuses(call, args, says, tmp_path):
    Path("empty").mkdir()
    Path("bad").mkdir()
    (tmp_path / "bad" / "a.png").write_text("no picture")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "broken.yaml").write_text("nz: [1")
    np.save("mixed.npy", np.array([np.zeros(3), np.zeros(4)], dtype=object), allow_pickle=True)
    before = snapshot(tmp_path)
    answer = call("train", *args)
    last = answer.err.splitlines()[-1]
    assert (
        answer.code == 2
        and last.startswith("error: ")
        and all(s in last for s in says)
        and "Traceback" not in answer.err
    ), answer.err
    assert snapshot(tmp_path) == before and not (tmp_path / "runs").exists(), "a mistake leaves nothing behind"


def test_an_existing_run_is_not_overwritten(refused, run):
    before = snapshot(run)
    refused("train", "digits", *SETTINGS, "--run", run, says=["already holds a run", "--resume"])
    assert snapshot(run) == before


def test_the_demo(ok, monkeypatch, call, rough_log_z):
    small = resolve("digits", [f"{k}={v}" for k, v in TINY.items()])
    monkeypatch.setattr("lebm.config.resolve", lambda name: small)
    for _ in range(2):  # the second time it finds its run and measures it again
        answer = ok("demo", "--run", "demo")
        assert "frechet_gaussian" in answer.out and "from N(0, I)" in answer.out
        report = answer.out.splitlines()[-1].removeprefix("report: ")
        assert Path(report).is_absolute() and Path(report).stat().st_size > 10_000


# --- a full disk ----------------------------------------------------------------------------------------------------


def test_no_space_left(call, ok, run, monkeypatch):
    """The second checkpoint from now finds the disk full."""
    real, calls = files.write_synced, []

    def full(path, content):
        calls.append(path)
        if len(calls) == 6:
            path.write_bytes(content[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path, content)

    for module in (files, checkpoint):
        monkeypatch.setattr(module, "write_synced", full)
    answer = call("train", run, "--resume", "--set", "training.updates=12")
    last = answer.err.splitlines()[-1]
    assert (
        answer.code == 2
        and last.startswith("error: No space left on device")
        and "--resume" in last
        and "Traceback" not in answer.err
    )
    for module in (files, checkpoint):
        monkeypatch.setattr(module, "write_synced", real)
    assert not list(run.rglob(".tmp-*")) and lebm.load(run)
    assert checkpoint.load_latest(run / "checkpoints")[1]["updates"] == 9
    ok("train", run, "--resume")
    straight = train(resolve("digits", [*(f"{k}={v}" for k, v in TINY.items()), "training.updates=12"]))
    assert all(torch.equal(a, b) for a, b in zip(lebm.load(run).parameters(), straight.parameters(), strict=True))


@pytest.mark.parametrize(
    ("command", "target"),
    [("sample", "x.png"), ("sample", "x.npz"), ("reconstruct", "x.npz"), ("score", "x.csv"), ("evaluate", None)],
)
def test_no_space_for_a_result(call, run, monkeypatch, tmp_path, command, target):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    np.save("in.npy", PIXELS)
    options = {
        "sample": [],
        "reconstruct": ["--input", "in.npy"],
        "score": ["--input", "in.npy"],
        "evaluate": ["--samples", 10],
    }[command]
    if target:
        (tmp_path / target).write_text("precious")
    monkeypatch.setattr(os, "replace" if target == "x.png" else "fsync", full)
    answer = call(command, run, *options, *(["--out", target] if target else []))
    assert answer.code == 2 and "error: No space left on device" in answer.err and "Traceback" not in answer.err
    if target:
        assert (tmp_path / target).read_text() == "precious"
    assert not [p for p in tmp_path.rglob(".*") if p.is_file()]


def test_a_limit_on_files(run, ok):
    """A real limit of the system, as a full disk is: writes fail in the middle."""
    before = snapshot(run / "checkpoints")
    limit = (run / "model.safetensors").stat().st_size // 2
    done = subprocess.run(
        [sys.executable, "-m", "lebm", "train", str(run), "--resume", "--set", "training.updates=40"],
        capture_output=True,
        text=True,
        env=ALONE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    last = done.stderr.splitlines()[-1]
    assert (
        done.returncode == 2
        and "Traceback" not in done.stderr
        and last.startswith("error: File too large")
        and "--resume" in last
    ), done.stderr
    assert snapshot(run / "checkpoints") == before and lebm.load(run) and not list(run.rglob(".tmp-*"))
    ok("train", run, "--resume")


def test_a_full_disk(run, tmp_path):
    """A disk of 1 MB with 48 kB left, in a mount namespace of its own, where that is allowed."""
    (tmp_path / "disk").mkdir()
    script = """mount -t tmpfs -o size=1M none disk && cp -r run disk/run || exit 77
    cat /dev/zero > disk/ballast 2> /dev/null; truncate -s -48K disk/ballast
    exec "$0" -c "$1"
    """
    program = """import os, sys; from lebm.cli import main
def lebm(line):
    sys.argv = ["lebm", *line.split()]
    try: main()
    except SystemExit as e: print("code", e.code, flush=True)
lebm("train disk/run --resume --set training.updates=400 --set training.checkpoint_every=1")
lebm("sample disk/run -n 4 --out x.npz")
os.unlink("disk/ballast")
lebm("train disk/run --resume --max-seconds 0")"""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, sys.executable, program], capture_output=True, text=True, env=ALONE
    )
    if done.returncode in (1, 77) and "code" not in done.stdout:
        pytest.skip("mounting is not allowed here")
    assert done.stdout.split() == ["code", "2", "code", "0", "code", "0"] and "Traceback" not in done.stderr, (
        done.stderr
    )
    assert "error: No space left on device" in done.stderr


# --- sample, reconstruct, score -------------------------------------------------------------------------------------


def tiles(path, side=8):
    """How many images stand in a grid: rows and columns of opaque squares."""
    alpha = np.asarray(Image.open(path))[..., -1]
    scale = next(i for i in range(alpha.shape[1]) if i + 1 == alpha.shape[1] or alpha[0, i + 1] == 0) + 1
    assert scale % side == 0
    opaque = alpha > 0
    return int(opaque.sum()) / scale**2


@pytest.mark.parametrize("n", [1, 5, 16])
def test_sample_png(ok, trained, n):
    answer = ok("sample", trained, "-n", n, "--out", "x.png")
    assert f"{n} image{'s' * (n > 1)} in x.png" in answer.err and tiles("x.png") == n


def test_sample_npz(ok, trained):
    ok("sample", trained, "-n", 600, "--out", "a.npz", "--seed", 3)
    ok("sample", trained / "model.safetensors", "-n", 9, "--out", "new/folder/b.NPZ", "--seed", 3)
    ok("sample", trained, "-n", 9, "--out", "c.npz", "--seed", 4)
    ok("sample", trained, "-n", 9, "--out", "d.npz", "--seed", 3, "--steps", 0)
    a, b, c, d = (np.load(f)["x"] for f in ("a.npz", "new/folder/b.NPZ", "c.npz", "d.npz"))
    assert a.shape == (600, 1, 8, 8) and a.dtype == np.float32 and np.abs(a).max() <= 1
    assert np.array_equal(a[:9], b) and not np.array_equal(b, c) and not np.array_equal(b, d)
    assert np.array_equal(a, lebm.load(trained).sample(600, seed=3).numpy())
    assert list(np.load("a.npz")) == ["x"] and not list(trained.rglob(".*"))


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    for i, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(folder / ("more" if i > 4 else ".") / f"{9 - i}.png")
    (folder / "notes.txt").write_text("not a picture")
    return folder


def read_csv(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def test_reconstruct(ok, trained, pictures):
    np.save("in.npy", PIXELS)
    answer = ok("reconstruct", trained, "--input", "in.npy", "--out", "x.npz")
    with np.load("x.npz") as arrays:
        assert set(arrays) == {"x_hat", "z", "mse"}
        assert arrays["x_hat"].shape == (7, 1, 8, 8) and arrays["z"].shape == (7, 16) and arrays["mse"].shape == (7,)
        x = PIXELS[:, None] / 127.5 - 1
        assert np.allclose(arrays["mse"], ((x - arrays["x_hat"]) ** 2).mean((1, 2, 3)), atol=1e-5)
        assert f"mean squared error {arrays['mse'].mean():.4f}" in answer.err
    ok("reconstruct", trained, "--input", pictures, "--out", "x.png")
    assert tiles("x.png") == 14
    ok("reconstruct", trained, "--input", pictures / "9.png", "-i", pictures / "8.png", "--out", "y.PNG", "--steps", 1)
    assert tiles("y.PNG") == 4


def test_a_table_is_no_picture(ok, refused):
    rows = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    np.save("rows.npy", rows)
    kind = {
        "generator": {"kind": "table", "columns": 5, "width": 8},
        "nz": 3,
        "method.posterior_chain.steps": 2,
        "method.prior_chain.steps": 2,
    }
    train({"preset": "digits", **kind, "training.updates": 2, "training.batch": 20}, data=rows, run="rows")
    for command in ("sample", "reconstruct", "interpolate"):
        inputs = [] if command == "sample" else ["--input", "rows.npy"]
        refused(command, "rows", *inputs, "--out", "x.png", says=["kind table", ".npz"])
        ok(command, "rows", *inputs, "--out", f"{command}.npz")
    assert np.load("sample.npz")["x"].shape == (64, 5) and np.load("reconstruct.npz")["x_hat"].shape == (40, 5)
    assert np.load("interpolate.npz")["z"].shape == (20, 9, 3)
    ok("score", "rows", "--input", "rows.npy", "--out", "x.csv")
    assert len(read_csv("x.csv")) == 40 and not Path("x-strangest.png").exists()
    refused("explore", "rows", says=["rows is a model of kind table; these pages are for images"])
    refused("neighbours", "rows", says=["rows is a model of kind table"])
    refused("score", "rows", "--input", "nothing.npy", "--out", "x.csv", says=["nothing.npy"])


def test_score(ok, trained, pictures):
    np.save("in.npy", PIXELS)
    ok("score", trained, "--input", "in.npy", "--out", "a.csv")
    rows = read_csv("a.csv")
    assert list(rows[0]) == ["index", "file", "score"] and [r["index"] for r in rows] == [str(i) for i in range(7)]
    assert [r["file"] for r in rows] == [f"in.npy[{i}]" for i in range(7)]
    scores = lebm.load(trained).anomaly_score(PIXELS).tolist()
    assert [float(r["score"]) for r in rows] == pytest.approx(scores, rel=1e-7)

    ok("score", trained, "--input", "in.npy", "--out", "b.csv", "--sort")
    descending = read_csv("b.csv")
    assert sorted(map(str, descending)) == sorted(map(str, rows))
    assert [float(r["score"]) for r in descending] == sorted(map(float, (r["score"] for r in rows)), reverse=True)

    ok("score", trained, "--input", pictures, "--out", "c.csv")
    named = {r["file"]: float(r["score"]) for r in read_csv("c.csv")}
    assert named == pytest.approx({f"{'more/' if i > 4 else ''}{9 - i}.png": s for i, s in enumerate(scores)}, rel=1e-5)
    ok("score", trained, "-i", pictures / "7.png", "-i", pictures / "9.png", "--out", "d.csv")
    assert [(r["index"], r["file"]) for r in read_csv("d.csv")] == [("0", "7.png"), ("1", "9.png")], (
        "in the order given"
    )
    ok("score", trained, "--input", pictures / "7.png", pictures / "9.png", "--out", "e.csv")  # as a shell writes *.png
    assert read_csv("e.csv") == read_csv("d.csv")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("empty", ["empty", "no pictures"]),
        ("bad", ["bad/a.png", "cannot be decoded"]),
        ("bad/a.png", ["bad/a.png", "cannot be decoded"]),
        ("cut.png", ["cut.png"]),
        ("mixed.npy", ["mixed.npy", "object"]),
        ("nan.npy", ["nan.npy", "NaN"]),
        ("size.npy", ["size.npy", "(2, 1, 9, 9)", "(n, 1, 8, 8)"]),
        ("range.npy", ["range.npy", "[-1, 1]"]),
        ("none.npy", ["none.npy"]),
        ("cut.npy", ["cut.npy", "truncated"]),
        ("pickle.npy", ["pickle.npy"]),
        ("text.txt", ["text.txt"]),
        ("nothing", ["nothing does not exist"]),
    ],
)
@pytest.mark.parametrize("command", ["reconstruct", "score"])
def test_inputs_that_cannot_be(refused, trained, tmp_path, name, says, command):
    Path("empty").mkdir()
    Path("bad").mkdir()
    (tmp_path / "bad" / "a.png").write_text("no picture")
    Image.fromarray(PIXELS[0]).save("cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:60])
    np.save("mixed.npy", np.array([np.zeros(3), np.zeros(4)], dtype=object), allow_pickle=True)
    np.save("nan.npy", np.full((2, 1, 8, 8), np.nan))
    np.save("size.npy", np.zeros((2, 1, 9, 9), np.uint8))
    np.save("range.npy", np.full((2, 1, 8, 8), 7.0))
    np.save("none.npy", np.zeros((0, 1, 8, 8), np.uint8))
    np.save("cut.npy", PIXELS)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-9])
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(PIXELS))
    (tmp_path / "text.txt").write_text("words")
    target = tmp_path / ("x.csv" if command == "score" else "x.npz")
    target.write_text("precious")
    refused(command, trained, "--input", name, "--out", target, says=says)
    assert target.read_text() == "precious"


class Canary:
    def __reduce__(self):
        return os.mkdir, ("CANARY",)


def spoil(run, how):
    model = run / "model.safetensors"
    content = model.read_bytes()
    if how == "truncated":
        model.write_bytes(content[:-50])
    elif how == "corrupt":
        model.write_bytes(content[:20] + b"\xff\xff" + content[22:])
    elif how == "empty":
        model.write_bytes(b"")
    elif how == "foreign":
        safetensors.torch.save_file({"a": torch.zeros(3)}, model)
    elif how == "pickle":
        model.write_bytes(pickle.dumps(Canary()))
    elif how == "torch":
        torch.save({"a": Canary()}, model)
    elif how == "no model":
        model.unlink()
    elif how == "no run":
        (run / "config.yaml").unlink()
    elif how == "no folder":
        shutil.rmtree(run)
    elif how == "other shape":
        tensors, note = load_tensors(model)
        note["config"]["nz"] = 7
        save_tensors(model, tensors, note)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("truncated", "damaged"),
        ("corrupt", "damaged"),
        ("empty", "not a whole safetensors file"),
        ("foreign", "not written by lebm"),
        ("pickle", "pickle"),
        ("torch", "pickle"),
        ("no model", "no model.safetensors yet"),
        ("no run", "not a run folder"),
        ("no folder", "does not exist"),
        ("other shape", "does not fit"),
    ],
)
def test_runs_that_cannot_be(refused, run, how, says, tmp_path):
    np.save("in.npy", PIXELS)
    spoil(run, how)
    for target in ("x.npz", "x.csv"):
        (tmp_path / target).write_text("precious")
    before = snapshot(tmp_path)
    refused("sample", run, "--out", "x.npz", says=[run, says])
    refused("reconstruct", run, "--input", "in.npy", "--out", "x.npz", says=[run, says])
    refused("score", run, "--input", "in.npy", "--out", "x.csv", says=[run, says])
    refused("evaluate", run, says=[run, says])
    assert snapshot(tmp_path) == before and not (tmp_path / "CANARY").exists()


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("x.gif", ".png or .npz"),
        ("x", "ends in nothing"),
        ("folder.png", "is a folder"),
        ("file/x.png", "file is a file"),
        ("/proc/nothing/x.png", ""),
    ],
)
def test_targets_that_cannot_be(refused, call, trained, target, says, tmp_path):
    Path("folder.png").mkdir()
    (tmp_path / "file").write_text("precious")
    if says:
        refused("sample", trained, "--out", target, says=[target, says])
    else:  # found out only when it is written
        answer = call("sample", trained, "-n", 1, "--out", target)
        assert answer.code == 2 and answer.err.splitlines()[-1].startswith("error: ") and "Traceback" not in answer.err
    assert (tmp_path / "file").read_text() == "precious" and os.listdir("folder.png") == []


def test_a_target_without_permission(refused, trained, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    refused("sample", trained, "--out", "x.png", says=["not writable"])
    refused("evaluate", trained, "--result", "x.json", says=["--result", "not writable"])


def test_options_that_would_do_nothing(refused, run, pictures, tmp_path):
    refused("train", run, says=("is a run", "--resume", "--run"))
    refused("train", run, "--resume", "--set", "training.updates=1", says=("updates already", "training.updates is 1"))
    refused("train", "digits", "--dry-run", "--set", "data.name=foo", says=("no data set is called 'foo'",))
    refused("train", "digits", "--dry-run", "--set", "generator.kind=text", says=("generator.kind is text",))
    refused("sample", run, "-n", 2, "--out", "x.png", "--temperature", "0.5", says=("temperature", "kind image"))
    refused("sample", run, "-n", 10_001, "--out", "x.png", says=("-n is 10001", "--out FILE.npz"))
    refused(
        "score",
        run,
        "--input",
        pictures,
        "--out",
        "x.csv",
        "--normal",
        "nowhere",
        says=("--normal", "joint", "leave it out"),
    )
    refused("chains", run, "--steps", 5, "--result", "r.json", says=("--result", "--samples 10000"))
    refused("chains", run, "--steps", 5, "--metric", "foo", says=("--metric is 'foo'", "fid or frechet"))
    (tmp_path / "empty").mkdir()
    refused("report", tmp_path / "empty", "--no-compute", says=("not a run folder",))
    assert not list((tmp_path / "empty").iterdir()) and not Path("x.png").exists()


def test_own_generator_is_for_python(refused, tmp_path):
    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(5, 16))

        def decode(self, z):
            return z @ self.w.t()

        def log_prob(self, x, z):
            return -(x - self.decode(z)).square().sum(1)

    train(
        resolve("digits", [f"{k}={v}" for k, v in TINY.items()]),
        data=np.zeros((30, 5), np.float32),
        model=Line(),
        run="own",
    )
    refused("sample", "own", "--out", "x.png", says=["lebm.load('own', generator=...)"])


# --- evaluate -------------------------------------------------------------------------------------------------------


def test_evaluate(ok, run, tmp_path):
    answer = ok("evaluate", run, "--samples", 50, "--result", "results/tiny.json", "--seed", 2)
    summary = json.loads((run / "metrics.json").read_text())
    assert tuple(summary) == KEYS and summary == json.loads((tmp_path / "results" / "tiny.json").read_text())
    assert set(summary["metrics"]) == {"frechet", "frechet_gaussian", "mse", "mse_100"}
    assert summary["command"] == f"lebm evaluate {run.name} --samples 50 --result results/tiny.json --seed 2"
    assert (summary["seed"], summary["updates"], summary["name"]) == (2, 6, "digits/paper")
    assert all(f"{k}" in answer.out and f"{v:.4f}" in answer.out for k, v in summary["metrics"].items())
    assert answer.out.splitlines()[-1] == f"report: {run / 'report.html'}"


def test_evaluate_some(ok, refused, run):
    assert "mse_100" not in ok("evaluate", run, "--metrics", "frechet", "--samples", 20).out
    refused("evaluate", run, "--metrics", "mse,fidd", says=["unknown metric 'fidd'", "frechet, mse"])
    refused("evaluate", run / "model.safetensors", says=["give the run folder"])
    refused("evaluate", run, "--result", "x.txt", says=[".json"])


# --- what is nobody's mistake ---------------------------------------------------------------------------------------


def test_out_of_memory_is_a_sentence(call, trained, monkeypatch):
    for error in (
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
    ):
        monkeypatch.setattr(lebm.LatentEBM, "sample", lambda *a, error=error, **k: (_ for _ in ()).throw(error))
        answer = call("sample", trained, "--out", "x.png")
        assert answer.code == 2 and answer.err.startswith("error: there is not enough memory")


def test_a_bug_is_not_hidden(trained, monkeypatch):
    monkeypatch.setattr(lebm.LatentEBM, "sample", lambda *a, **k: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["lebm", "sample", str(trained), "--out", "x.png"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_ctrl_c_outside_of_training(call, trained, monkeypatch):
    monkeypatch.setattr("lebm.data.load", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    answer = call("train", "digits")
    assert answer.code == 130 and "stopped at once" in answer.err

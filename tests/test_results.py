"""The form of a published number."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lebm.core.errors import ConfigError
from lebm.measure import result as results

SCHEMA = [
    *("name", "metrics", "per_seed", "protocol", "data", "config", "seed", "updates", "device", "seconds", "code"),
    "command",
]


def test_every_key_and_no_other():
    made = results.result(name="digits", metrics={"mse": 0.1}, seed=3)
    assert list(made) == SCHEMA == list(results.KEYS)
    assert made["metrics"] == {"mse": 0.1} and made["per_seed"] is None and made["code"] and made["command"]
    assert results.result(code="abc", command="x")["code"] == "abc"
    with pytest.raises(KeyError, match="metric"):
        results.result(metric=3)


def test_written_as_json_that_any_reader_takes(tmp_path):
    path = tmp_path / "new" / "r.json"
    results.write(
        path, results.result(metrics={"a": math.nan, "b": [math.inf, 1.5], "c": {"d": -math.inf}}, data={"name": "β"})
    )
    read = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert read["metrics"] == {"a": None, "b": [None, 1.5], "c": {"d": None}} and read["data"]["name"] == "β"
    assert path.read_text().endswith("}\n") and [p.name for p in path.parent.iterdir()] == ["r.json"]


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["/usr/bin/lebm", "evaluate", "my run", "--samples", "5"], "lebm evaluate 'my run' --samples 5"),
        (["/x/src/lebm/__main__.py", "evaluate", "run"], "lebm evaluate run"),
        (["study.py", "--fast"], "study.py --fast"),
    ],
)
def test_how_the_program_was_called(monkeypatch, argv, shown):
    monkeypatch.setattr(sys, "argv", argv)
    assert results.command() == shown


def git(folder, *args):
    names = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(folder), *names, *args], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The source in a folder of its own, as after an installation."""
    source = Path(results.__file__).parents[1]
    copy = tmp_path / "place" / "lebm"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(results, "__file__", str(copy / "measure" / "result.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return copy


def test_outside_git_the_code_is_a_sum_of_its_source(elsewhere):
    first = results.code_version()
    assert first.startswith("sha256:") and len(first) == 71 and results.code_version() == first
    (elsewhere / "__pycache__").mkdir()
    (elsewhere / "__pycache__" / "x.pyc").write_text("x")
    assert results.code_version() == first
    (elsewhere / "method.py").write_text((elsewhere / "method.py").read_text() + "\n")
    assert results.code_version() != first


@pytest.mark.skipif(shutil.which("git") is None, reason="no git here")
def test_in_git_the_code_is_the_commit(elsewhere):
    git(elsewhere.parent, "init", "-q")
    assert results.code_version().startswith("sha256:"), "a repository around it that does not hold it says nothing"
    git(elsewhere.parent, "add", "lebm")
    git(elsewhere.parent, "commit", "-q", "-m", "all")
    head = git(elsewhere.parent, "rev-parse", "HEAD")
    assert results.code_version() == head and len(head) == 40
    (elsewhere.parent / "unrelated").touch()
    assert results.code_version() == head
    (elsewhere / "method.py").write_text("")
    assert results.code_version() == f"{head}+changes"


def test_without_git_at_all(elsewhere, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert results.code_version().startswith("sha256:")


def seed_of(i, protocol, sha256="0"):
    """What an evaluation gave of the seed i."""
    facts = {"name": "e", "config": {"seed": i}, "data": {"sha256": sha256}, "updates": 9, "seconds": 1}
    return {**facts, "metrics": {"fppl": 1.0 * i}, "protocol": protocol}


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("nll", {"sentences": "all 300 test sentences"}, {"sentences": "the first 5 test sentences"}),
        ("nll", {"sampler": {"steps": 10, "options": {"noise": 0.5}}}, {"sampler": {"steps": 10, "options": {}}}),
        ("mse", {"steps": {"mse": 20}}, {"steps": {"mse": 40}}),
        ("nll", {"proposal": {"start": "noise"}}, {"proposal": {"start": "encoder"}}),
        ("nll", {"estimate": "the first 100 of them"}, {"estimate": "the first 5 of them"}),
        ("nll", {"temperatures": [500, 50]}, {"temperatures": [5, 5]}),
        ("nll", {"particles": [1000, 32]}, {"particles": [10, 3]}),
        ("fppl", {"sampler": {"start": "flow"}}, {"sampler": {"start": "noise"}}),
        ("fppl", {"sentences": {"generated": 9}}, {"sentences": {"generated": 5}}),
        ("fppl", {"language_model": {"hidden": 512}}, {"language_model": {"hidden": 8}}),
        ("speed", {"timed": "median of up to 5 calls"}, {}),
        ("speed", {"engine": "the fast engine is not available"}, {}),
    ],
)
def test_what_was_measured_otherwise_has_no_mean(name, one, other):
    with pytest.raises(ConfigError, match=f"{name} measured with {next(iter(one))} = .*alike first: --metrics {name}"):
        results.mean([seed_of(1, {name: one}), seed_of(2, {name: other})])


def test_what_a_measurement_measures_may_differ_between_seeds():
    sentences = lambda n: {"generated": 9, "mean_words": n, "cut_at_generator_length": n}  # noqa: E731
    judge = lambda n: {"hidden": 8, "stopped": f"best of {n} epochs", "validation_ppl": n}  # noqa: E731
    runs = [seed_of(i, {"fppl": {"sentences": sentences(i), "language_model": judge(i), "seconds": i}}) for i in (1, 3)]
    assert results.mean(runs)["metrics"] == {"fppl": 2.0, "fppl_spread": pytest.approx(math.sqrt(2))}


@pytest.mark.parametrize("together", [results.mean, results.side_by_side])
def test_numbers_on_different_data_do_not_go_together(together):
    assert together([seed_of(1, {}), seed_of(2, {})])["data"] == {"sha256": "0"}
    with pytest.raises(ConfigError, match="different data"):
        together([seed_of(1, {}), seed_of(2, {}, sha256="1")])


def test_the_device_has_a_name():
    assert results.device_name(torch.device("cpu")).startswith("CPU (")

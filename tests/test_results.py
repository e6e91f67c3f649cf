"""The form of a published number."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lebm import results

SCHEMA = ["experiment", "metrics", "per_seed", "protocol", "data", "config", "seed", "steps", "device", "seconds", "code", "command"]


def test_every_key_and_no_other():
    made = results.result(experiment="digits", metrics={"mse": 0.1}, seed=3)
    assert list(made) == SCHEMA == list(results.KEYS)
    assert made["metrics"] == {"mse": 0.1} and made["per_seed"] is None and made["code"] and made["command"]
    assert results.result(code="abc", command="x")["code"] == "abc"
    with pytest.raises(KeyError, match="metric"):
        results.result(metric=3)


def test_written_as_json_that_any_reader_takes(tmp_path):
    path = tmp_path / "new" / "r.json"
    results.write(path, results.result(metrics={"a": math.nan, "b": [math.inf, 1.5], "c": {"d": -math.inf}}, data={"name": "β"}))
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
    return subprocess.run(["git", "-C", str(folder), *names, *args], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The source in a folder of its own, as after an installation."""
    source = Path(results.__file__).parent
    copy = tmp_path / "place" / "lebm"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(results, "__file__", str(copy / "results.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return copy


def test_outside_git_the_code_is_a_sum_of_its_source(elsewhere):
    first = results.code_version()
    assert first.startswith("sha256:") and len(first) == 71 and results.code_version() == first
    (elsewhere / "__pycache__").mkdir()
    (elsewhere / "__pycache__" / "x.pyc").write_text("x")
    assert results.code_version() == first
    (elsewhere / "learn.py").write_text((elsewhere / "learn.py").read_text() + "\n")
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
    (elsewhere / "learn.py").write_text("")
    assert results.code_version() == f"{head}+changes"


def test_without_git_at_all(elsewhere, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert results.code_version().startswith("sha256:")


def test_the_device_has_a_name():
    assert results.device_name(torch.device("cpu")).startswith("CPU (")

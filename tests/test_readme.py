"""README.md runs. Python blocks are executed as they are; `lebm ...` lines run in a folder of their own, in the order of the page.

So that the page can show real settings, the long commands get a few more arguments here (TINY); nothing else is changed. The folder
`pictures` and the file `sentences.txt` that the page speaks of are made by the test. Lines of make, pip and git are not run: their targets must exist.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image

import lebm
from lebm import cli
from lebm.config import resolve

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TINY = {
    "train": ["--set", "training.steps=2", "--set", "training.checkpoint_every=1"],
    "train --resume": ["--set", "training.steps=3"],
    "evaluate": ["--samples", "60"],
    "chains": ["--samples", "60"],
}
NOT_RUN = {
    "anomaly",
    "demo",
    "bench",
    "fetch",
    "fid",
    "explore",
}  # these take half a minute and more, a network or Inception, or serve on; their arguments are checked below


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.S | re.M)


def commands():
    """The shell lines of the page as lists of words, comments cut off."""
    lines = (shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines())
    return [words for words in lines if words]


def lebm_commands():
    return [words[1:] for words in commands() if words[0] == "lebm"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder with a few pictures, a text and the repository's models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEBM_DATA", raising=False)
    Path("models").symlink_to(ROOT / "models")
    Path("pictures").mkdir()
    Path("sentences.txt").write_text("the sea is calm .\nthe sea is wild .\n" * 20)
    rng = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(rng.integers(0, 256, (70, 64, 3), dtype=np.uint8)).save(f"pictures/{i}.png")
    return tmp_path


def call(words, monkeypatch):
    """Run a command in this process; its exit code."""
    tiny = TINY.get("train --resume" if "--resume" in words else words[0], [])
    monkeypatch.setattr(sys, "argv", ["lebm", *words, *([] if "--dry-run" in words else tiny)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code or 0


def test_the_python_example_runs(here, capsys):
    (code,) = blocks("python")
    assert len(code.splitlines()) <= 18
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["x"].shape == (64, 1, 8, 8) and float(names["x"].abs().max()) <= 1
    assert names["z"].shape == (64, 16) and names["x_hat"].shape == (64, 1, 8, 8)
    assert names["score"].shape == (64,) and bool(torch.isfinite(names["score"]).all())
    with Image.open("samples.png") as grid:
        assert grid.width > 100
    assert (here / "runs/quick/log.jsonl").is_file()


def test_every_command_line_runs(here, monkeypatch, capfd, rough_log_z):
    for words in lebm_commands():
        if words[0] in NOT_RUN:
            continue
        before = set(here.rglob("*"))
        assert call(words, monkeypatch) == 0, f"lebm {shlex.join(words)}: {capfd.readouterr().err}"
        if "--out" in words:
            out = here / words[words.index("--out") + 1]
            assert out.is_file() and out.stat().st_size > 30, out
            out.unlink()  # the next command must make its own
        elif words[0] in ("presets", "data", "--version") or "--dry-run" in words:
            assert capfd.readouterr().out.strip() and set(here.rglob("*")) == before
    assert {"config.yaml", "log.jsonl", "model.safetensors", "checkpoints", "metrics.json", "figures", "report.html"} <= {
        p.name for p in (here / "runs/digits").iterdir()
    }
    assert json.loads((here / "runs/digits/metrics.json").read_text())["steps"] == 3  # --resume went on


def test_a_wrong_line_would_be_seen(here, monkeypatch, capfd):
    assert call(["train", "digits", "--set", "training.step=2"], monkeypatch) == 2
    assert call(["sample", "runs/nowhere", "--out", "x.png"], monkeypatch) == 2
    assert call(["smaple", "runs/digits"], monkeypatch) == 2


def test_every_command_of_the_program_is_on_the_page():
    shown = {words[0] for words in lebm_commands()}
    assert {c.name or c.callback.__name__ for c in cli.app.registered_commands} == {w for w in shown if not w.startswith("-")}


def test_commands_that_are_not_run_here_take_the_arguments_shown():
    group = typer.main.get_command(cli.app)
    checked = [words for words in lebm_commands() if words[0] in NOT_RUN]
    assert {words[0] for words in checked} == NOT_RUN
    for name, *arguments in checked:
        group.commands[name].make_context(name, arguments)  # parses, does not run
    with pytest.raises(Exception, match="(?i)no such option"):
        group.commands["demo"].make_context("demo", ["--nothing"])


def test_python_dash_m_is_the_same_program():
    done = subprocess.run([sys.executable, "-m", "lebm", "--version"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and re.fullmatch(r"lebm \d+\.\d+\.\d+\S*\n", done.stdout), done.stderr


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {words[1] for words in commands() if words[0] == "make"}
    assert {"demo", "test"} <= targets
    for target in targets | set(re.findall(r"`make (\w+)`", README)):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target
    assert {words[0] for words in commands()} <= {"make", "lebm", "pip", "git"}
    assert "pip install -e ." in README and (ROOT / "pyproject.toml").is_file()


# --- the file tree --------------------------------------------------------------------------------------------------


def tree_paths(text):
    """Indented names -> paths. Two spaces a level; the first word of a line is the name, the rest its description."""
    stack, out = [], []
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        stack = [*stack[:depth], name.rstrip("/")]
        out.append("/".join(stack) + ("/" if name.endswith("/") else ""))
    return out


def tree():
    (text,) = blocks("text")
    return tree_paths(text)


@pytest.mark.parametrize("path", tree())
def test_what_the_tree_shows_is_there(path):
    assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file(), path


def test_what_is_there_is_in_the_tree():
    source = ROOT / "src" / "lebm"
    real = {f"src/lebm/{p.name}" for p in source.glob("*.py")} | {
        f"src/lebm/{p.name}/" for p in source.iterdir() if p.is_dir() and p.name != "__pycache__"
    }
    real |= {p.relative_to(ROOT).as_posix() for pattern in ("docs/*.md", "examples/*.py", "*.md") for p in ROOT.glob(pattern)}
    assert real - set(tree()) == set()


def test_the_tree_reader_reads_trees():
    assert tree_paths("a.py   one\nb/\n  c/     two\n    d.py\n  e.py\nf") == ["a.py", "b/", "b/c/", "b/c/d.py", "b/e.py", "f"]


# --- results --------------------------------------------------------------------------------------------------------


def test_the_markers_for_the_table_are_there_once_and_in_order():
    begin, end = "<!-- results:begin -->", "<!-- results:end -->"
    assert README.count(begin) == README.count(end) == 1
    assert README.index(begin) < README.index(end)


def test_the_words_around_the_tables_quote_no_number():
    """Numbers stand between the markers, where `make results` writes them; tests/test_tables.py holds them to the result files."""
    section = README.split("## Results against the paper")[1].split("\n## ")[0]
    around = section.split("<!-- results:begin -->")[0] + section.split("<!-- results:end -->")[1]
    assert re.findall(r"\d+\.\d+", around) == []


def test_the_models_that_come_along():
    files = sorted((ROOT / "models").glob("*.safetensors"))
    assert [f.name for f in files] == sorted(re.findall(r"^\| `(.+?)`", (ROOT / "models" / "README.md").read_text(), re.M))
    for f in files:
        model = lebm.load(f)
        assert f.stat().st_size < 20 << 20 and model.config.generator == resolve(f.stem).generator and model.config.draw == resolve(f.stem).draw
        x = model.sample(2, steps=2)
        assert x.shape == (2, 3, 32, 32) and torch.isfinite(x).all() and float(x.std()) > 0.1  # an untrained generator gives grey

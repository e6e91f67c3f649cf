"""README.md runs. Its Python block is executed as it is; its `lebm` lines run in a folder of their own, in the order of the page.

Long commands get a few more arguments here (TINY). The folder `pictures` and the file `sentences.txt` that the page speaks of are made
by the test. Lines of make, pip and git are not run; their targets must exist.
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
    "train": ["--set", "training.updates=2", "--set", "training.checkpoint_every=1"],
    "train --resume": ["--set", "training.updates=3"],
    "evaluate": ["--samples", "60"],
}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.S | re.M)


def shell_lines():
    """The lines of shell blocks as lists of words, comments cut off."""
    lines = (shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines())
    return [words for words in lines if words]


def table_rows():
    """The cells of the table of commands."""
    rows = re.findall(r"^\| (`lebm .*) \|$", README, flags=re.M)
    return [row.split(" | ") for row in rows]


def quoted(text):
    """Commands between backticks that are `lebm` and at least one more word in lower case, as lists of words."""
    return [shlex.split(code)[1:] for code in re.findall(r"`(lebm [a-z][^`]*)`", text)]


def commands_to_run():
    """Those of shell blocks, then those in the first column of the table, and what the table says of resuming."""
    out = [words[1:] for words in shell_lines() if words[0] == "lebm"]
    for first, second in table_rows():
        out += quoted(first)
        out += [words for words in quoted(second) if len(words) > 1]
    return out


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
    monkeypatch.setattr(sys, "argv", ["lebm", *words, *tiny])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code or 0


def test_the_page_is_read_in_a_minute():
    assert len(README.splitlines()) <= 150


def test_the_python_example_runs(here):
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
    for words in commands_to_run():
        before = set(here.rglob("*"))
        assert call(words, monkeypatch) == 0, f"lebm {shlex.join(words)}: {capfd.readouterr().err}"
        if "--out" in words:
            out = here / words[words.index("--out") + 1]
            assert out.is_file() and out.stat().st_size > 30, out
            out.unlink()  # the next command must make its own
        elif words[0] in ("presets", "data"):
            assert capfd.readouterr().out.strip() and set(here.rglob("*")) == before
    files = {"config.yaml", "log.jsonl", "model.safetensors", "checkpoints", "metrics.json", "figures", "report.html"}
    assert files <= {p.name for p in (here / "runs/digits").iterdir()}
    assert json.loads((here / "runs/digits/metrics.json").read_text())["updates"] == 3  # --resume went on


def test_a_wrong_line_would_be_seen(here, monkeypatch, capfd):
    assert call(["train", "digits", "--set", "training.update=2"], monkeypatch) == 2
    assert call(["sample", "runs/nowhere", "--out", "x.png"], monkeypatch) == 2
    assert call(["smaple", "runs/digits"], monkeypatch) == 2


def test_every_command_of_the_program_is_on_the_page():
    shown = {words[0] for words in [*quoted(README), *commands_to_run()]}
    assert set(typer.main.get_command(cli.app).commands) == shown


def test_python_dash_m_is_the_same_program():
    args = [sys.executable, "-m", "lebm", "--version"]
    done = subprocess.run(args, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and re.fullmatch(r"lebm \d+\.\d+\.\d+\S*\n", done.stdout), done.stderr


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {words[1] for words in shell_lines() if words[0] == "make"}
    assert {"demo", "test"} <= targets
    for target in targets | set(re.findall(r"`make (\w+)`", README)):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target
    assert {words[0] for words in shell_lines()} <= {"make", "lebm"}
    assert "pip install -e ." in README and (ROOT / "pyproject.toml").is_file()


# --- what is where --------------------------------------------------------------------------------------------------


def tree_paths(text):
    """Indented names -> paths. Two spaces a level; the first word of a line is the name, the rest its description."""
    stack, out = [], []
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name, description = line.split(maxsplit=1)
        assert len(description.split()) >= 3, line
        stack = [*stack[:depth], name.rstrip("/")]
        out.append("/".join(stack) + ("/" if name.endswith("/") else ""))
    return out


def tree():
    (text,) = blocks("text")
    return tree_paths(text)


@pytest.mark.parametrize("path", tree())
def test_what_the_tree_shows_is_there(path):
    assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file(), path


def tracked():
    """The files that git knows; none where the code did not come as a repository."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines()


def test_what_is_there_is_in_the_tree():
    tops = [p for p in (ROOT / "src" / "lebm").iterdir() if p.name != "__pycache__"]
    real = {p.relative_to(ROOT).as_posix() + "/" * p.is_dir() for p in tops}
    real |= {f"{name.split('/')[0]}/" for name in tracked() if "/" in name and name[0] != "."}
    assert real - set(tree()) - {"src/"} == set()
    assert len(tops) <= 26


def test_the_tree_reader_reads_trees():
    text = "a.py   one two three\nb/  x y z\n  c/     two b c\n    d.py  1 2 3\n  e.py 4 5 6\nf  7 8 9"
    assert tree_paths(text) == ["a.py", "b/", "b/c/", "b/c/d.py", "b/e.py", "f"]


# --- results --------------------------------------------------------------------------------------------------------


def test_the_markers_for_the_table_are_there_once_and_in_order():
    begin, end = "<!-- results:begin -->", "<!-- results:end -->"
    assert README.count(begin) == README.count(end) == 1
    assert README.index(begin) < README.index(end)


def test_the_words_around_the_tables_quote_no_number():
    """Numbers stand between the markers, where `make results` writes them; tests/test_tables.py compares them with the result files."""
    section = README.split("## Results")[1].split("\n## ")[0]
    around = section.split("<!-- results:begin -->")[0] + section.split("<!-- results:end -->")[1]
    assert re.findall(r"\d+\.\d+", around) == []


def test_the_models_that_come_along():
    files = sorted((ROOT / "models").glob("*.safetensors"))
    listed = re.findall(r"^\| `(.+?)`", (ROOT / "models" / "README.md").read_text(), re.M)
    assert [f.name for f in files] == sorted(listed)
    for f in files:
        model, preset = lebm.load(f), resolve(f.stem.replace("-", "/", 1))
        assert f.stat().st_size < 20 << 20
        assert model.config.generator == preset.generator
        assert model.config.method.prior_start == preset.method.prior_start
        assert model.config.method.posterior_start == preset.method.posterior_start
        x = model.sample(2, spec=model.choose("prior", steps=2))
        assert x.shape == (2, 3, 32, 32) and torch.isfinite(x).all()
        assert float(x.std()) > 0.1  # an untrained generator gives grey

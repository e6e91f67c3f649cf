"""CONTRIBUTING.md says that adding something is one file and one line in a list. Here its examples are added to a copy of
the package, as a person would, and used: what it says is true, and what it shows works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```(?:python|yaml)\n# src/(\S+)\n(.*?)^```", PAGE, flags=re.S | re.M))

# Of each: the file of the package with the list, what is replaced there, by what, and how many lines are then new.
LINES = {
    "method": ("config/methods.py", r"(METHODS = \(.*?\n)\)", r'\1    "baselines.beta_vae:BetaVAEConfig",\n)', 1),
    "generator": (
        "config/generators.py",
        r"(GENERATORS = \(.*?\n)\)",
        r'\1    "generators.linear:LinearConfig",\n)',
        1,
    ),
    "metric": ("measure/__init__.py", r"(REGISTERED = \(.*?\n)\)", r'\1    "measure.pixel_spread:PIXEL_SPREAD",\n)', 1),
    "data set": ("data/__init__.py", r"(MODULES = \(.*?)\)\n", r'\1, "stripes")\n', 1),
    "start": (
        "config/methods.py",
        r"AnyPosteriorStart = Annotated\[",
        "from lebm.extensions.mean_start import MeanStartConfig\nAnyPosteriorStart = Annotated[MeanStartConfig | ",
        2,  # an import, and the name in the union
    ),
}

PROGRAM = """
import sys
import numpy as np
import lebm
from lebm.core.errors import ConfigError
from lebm.config import preset_names, resolve

assert lebm.__file__.startswith({copy!r}), lebm.__file__  # the copy is used, not the installed package
try:
    resolve("digits/wyde")
except ConfigError as e:
    assert "did you mean digits/wide?" in str(e)
assert "torch" not in sys.modules, "a mistyped preset is told before the added method is imported, and PyTorch with it"

import torch
from lebm.config import json_schema
from lebm.measure import analysis, describe_metrics
from lebm.measure.evaluate import evaluate
from lebm.run import Run
from lebm.show import report

assert resolve("digits/wide").generator.ngf == 32 and "digits/wide" in preset_names()

# The method, on the preset, with a stage that moves its coefficient; it resumes and loads like any other.
stage = {{"until": 3, "coefficients": {{"beta": {{"start": 0, "end": 0.2, "over": 2}}}}}}
config = {{"preset": "digits/wide", "method": {{"kind": "beta-vae", "beta": 0.5}}, "training.updates": 2,
          "training.batch": 20, "training.log_every": 1, "training.stages": [stage]}}
lebm.train(config, run="vae", device="cpu")
method = lebm.train({{**config, "training.updates": 4}}, run="vae", resume=True, device="cpu")
betas = [row["beta"] for row in Run("vae").rows()]
assert np.allclose(betas, [0, 0.1, 0.2, 0.5]), betas
assert method.config.method.kind == "beta-vae" and method.coefficients()["beta"] == 0.5
model = lebm.load("vae")
x = model.sample(5, seed=1)
assert type(model).__name__ == "BetaVAE" and torch.equal(x, method.sample(5, seed=1))
assert x.shape == model.reconstruct(x).shape == (5, 1, 8, 8)
assert model.anomaly_score(x).shape == (5,) and model.coefficients()["beta"] == 0.5

# The metric.
result = evaluate("vae", ["pixel_spread", "mse"], samples=20, pictures=False, device="cpu")
metrics, protocol = result["metrics"], result["protocol"]
assert set(metrics) >= {{"pixel_spread", "mse"}} and metrics["pixel_spread"] > 0 and metrics["mse"] > 0
assert protocol["pixel_spread"]["sampler"]["start"] == "noise", protocol
assert protocol["mse"]["sampler"]["start"] == "encoder", protocol
assert "pixel_spread" in {{name for name, *_ in describe_metrics()}}

# Its page and its numbers are of what it has: one prior, which is not learned, and neither energy nor chains.
assert "frechet_gaussian" not in evaluate("vae", ["frechet"], samples=20, device="cpu")["metrics"]
assert analysis.complete(analysis.Subject("vae", "cpu")) == []
page = report.write("vae").read_text()
for words in ("earned prior", ">Diagnostics<", "nergy along", "f is known", " yet", "mse_100"):
    assert words not in page, words
assert page.count("Grid of images") == 1 and "Paths between images" in page and "Nearest training images" in page
assert "beta-vae" in str(json_schema()) and {{"BetaVAEConfig", "LinearConfig"}} <= set(json_schema()["$defs"])

# The data set and the start.
settings = {{"preset": "digits", "data.name": "stripes", "method.posterior_start.kind": "mean", "training.updates": 2}}
model = lebm.train(settings, device="cpu")
assert model.posterior_start.mean.abs().sum() > 0 and model.samplers()["posterior"].start == "mean"

# The generator.
config = {{"nz": 2, "generator": {{"kind": "linear", "columns": 5}}, "training.updates": 2, "training.batch": 10}}
model = lebm.train(config, np.random.default_rng(0).normal(size=(50, 5)), device="cpu")
assert type(model.generator).__name__ == "LinearGenerator" and model.sample(3).shape == (3, 5)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package with everything that CONTRIBUTING.md adds to it; and how many lines of each list are new."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src" / "lebm", folder / "lebm", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES.items():
        path = folder / name
        assert not path.exists(), name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    lines = {}
    for what, (name, before, after, _) in LINES.items():
        path = folder / "lebm" / name
        old = path.read_text(encoding="utf-8")
        new, times = re.subn(before, after, old, flags=re.S)
        assert times == 1, f"{name} has {before} {times} times"
        lines[what] = len(set(new.splitlines()) - set(old.splitlines()))
        path.write_text(new, encoding="utf-8")
    return folder, lines


def test_every_example_is_one_file_and_a_line_in_a_list(package):
    names = {Path(name).name for name in FILES}
    assert names == {"beta_vae.py", "linear.py", "mean_start.py", "stripes.py", "pixel_spread.py", "wide.yaml"}
    assert package[1] == {what: new for what, (*_, new) in LINES.items()}


def test_what_was_added_learns_samples_and_is_measured(package, tmp_path):
    folder = package[0]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM.format(copy=str(folder))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_lists_are_named_on_the_page():
    text = re.sub(r"```.*?```", "", PAGE, flags=re.S)
    for file, _, after, _ in LINES.values():
        assert f"src/lebm/{file}" in text
        for entry in re.findall(r'"\w+\.\w+:\w+",|MeanStartConfig\b|"stripes"', after):
            assert f"`{entry}`" in text
    for name in ("METHODS", "GENERATORS", "AnyPosteriorStart", "AnyBase", "MODULES", "REGISTERED", "VARIANTS"):
        assert f"`{name}`" in text


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".py")])
def test_the_examples_keep_to_the_style(name, tmp_path):
    path = tmp_path / Path(name).name
    path.write_text(FILES[name], encoding="utf-8")
    config = ROOT / "pyproject.toml"
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--config", str(config), "--no-cache", str(path)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr

"""CONTRIBUTING.md says that adding something is one file and a name in a list. Here its examples are added to a copy of the package and
used: what it says is true, and what it shows works."""

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

# A file of the package, the word before which a name is put into its list, what is put there, and the module of the name.
LISTS = {
    "BetaVAEConfig": ("config/methods.py", r"LatentEBMConfig,\s*\)", "BetaVAEConfig, ", "lebm.baselines.beta_vae"),
    "LinearConfig": ("config/generators.py", r"ImageConfig \|", "LinearConfig | ", "lebm.generators.linear"),
    "MeanStartConfig": (
        "config/methods.py",
        r"NoiseStart \| EncoderStart",
        "MeanStartConfig | ",
        "lebm.extensions.mean_start",
    ),
    "PIXEL_SPREAD": ("measure/__init__.py", r"\bSPEED,", "PIXEL_SPREAD, ", "lebm.measure.pixel_spread"),
}

PROGRAM = """
import numpy as np
import lebm
from lebm.config import json_schema, resolve
from lebm.measure import describe_metrics
from lebm.measure.evaluate import evaluate

assert lebm.__file__.startswith({copy!r}), lebm.__file__
assert resolve("digits/wide").generator.ngf == 32

# The method, on the preset and measured by the metric; it resumes and loads like any other.
config = {{"preset": "digits/wide", "method": {{"kind": "beta-vae", "beta": 0.5}}, "training.updates": 2, "training.batch": 20}}

lebm.train(config, run="vae")
lebm.train({{**config, "training.updates": 4}}, run="vae", resume=True)
model = lebm.load("vae")
x = model.sample(3)
assert type(model).__name__ == "BetaVAE" and x.shape == model.reconstruct(x).shape == (3, 1, 8, 8)
assert len(model.anomaly_score(x)) == 3 and model.coefficients()["beta"] == 0.5
metrics = evaluate("vae", ["pixel_spread", "mse"], samples=20, pictures=False)["metrics"]
assert metrics["pixel_spread"] > 0 and metrics["mse"] > 0
assert "pixel_spread" in {{name for name, *_ in describe_metrics()}} and "beta-vae" in str(json_schema())

# The data set and the start.
settings = {{"preset": "digits", "data.name": "stripes", "method.posterior_start.kind": "mean", "training.updates": 2}}
model = lebm.train(settings)
assert model.posterior_start.mean.abs().sum() > 0 and model.samplers()["posterior"].start == "mean"

# The generator.
config = {{"nz": 2, "generator": {{"kind": "linear", "columns": 5}}, "training.updates": 2}}
assert lebm.train(config, np.random.default_rng(0).normal(size=(50, 5))).sample(2).shape == (2, 5)
"""


def insert(file, before, addition, name, module):
    """Put a name into its list, and import it where the file imports others."""
    text = file.read_text(encoding="utf-8")
    (place,) = re.finditer(before, text)
    text = text[: place.start()] + addition + text[place.start() :]
    first = text.index("\nfrom ", text.index("from __future__") + 1)
    file.write_text(f"{text[:first]}\nfrom {module} import {name}{text[first:]}", encoding="utf-8")


@pytest.fixture
def copy(tmp_path):
    """The package with everything that CONTRIBUTING.md adds to it."""
    package = tmp_path / "package" / "lebm"
    shutil.copytree(ROOT / "src" / "lebm", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES.items():
        path = package.parent / name
        assert not path.exists(), name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name, (file, before, addition, module) in LISTS.items():
        insert(package / file, before, addition, name, module)
    modules = package / "data" / "__init__.py"
    text = modules.read_text(encoding="utf-8")
    modules.write_text(re.sub(r"^(MODULES = \(.*?)\)$", r'\1, "stripes")', text, flags=re.M | re.S), encoding="utf-8")
    return package.parent


def test_every_example_is_one_file_and_a_name_in_a_list(copy, tmp_path):
    names = {Path(name).name for name in FILES}
    assert names == {"beta_vae.py", "linear.py", "mean_start.py", "stripes.py", "pixel_spread.py", "wide.yaml"}
    program = PROGRAM.format(copy=str(copy))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_the_lists_are_named_on_the_page():
    text = re.sub(r"```.*?```", "", PAGE, flags=re.S)
    for name, (file, *_) in LISTS.items():
        assert f"src/lebm/{file}" in text
        assert name in text or name == "PIXEL_SPREAD"
    for name in ("METHODS", "AnyGenerator", "AnyPosteriorStart", "AnyBase", "MODULES", "METRICS", "VARIANTS"):
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

"""The examples run as a person runs them, on few steps, and leave what they promise."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lebm
from lebm.core.errors import CheckpointError

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def width(path):
    with Image.open(path) as picture:
        return picture.width


def imports(name):
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    plain = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    return plain | {n.module.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}


def test_every_example_is_tested():
    assert {p.stem for p in EXAMPLES.glob("*.py")} == {"one_page", "own_images", "own_generator", "anomaly"}


# --- one_page.py ----------------------------------------------------------------------------------------------------


def test_one_page_learns_and_writes_a_grid(tmp_path, capsys):
    example("one_page").main(["--updates", "40", "--out", str(tmp_path / "grid.png")])
    said = capsys.readouterr().out
    errors = [float(v) for v in re.findall(r"mse ([\d.]+)", said)]
    assert len(errors) == 2 and errors[-1] < 0.6 * errors[0], said
    with Image.open(tmp_path / "grid.png") as grid:
        picture = np.asarray(grid)
    assert picture.shape == (512, 512) and picture.std() > 10


def test_one_page_stands_alone_on_one_page():
    assert imports("one_page") - set(sys.stdlib_module_names) <= {"torch", "numpy", "sklearn", "PIL", "matplotlib"}
    assert len((EXAMPLES / "one_page.py").read_text(encoding="utf-8").splitlines()) <= 95


def test_one_page_has_the_gaussian_term_right():
    """The gradient of its log prior is grad f - z: with f = 0 it is -z."""
    page = example("one_page")
    z = torch.randn(7, page.NZ, requires_grad=True)
    (grad,) = torch.autograd.grad(page.log_prior(lambda z: z.new_zeros(len(z)), z).sum(), z)
    assert torch.allclose(grad, -z)


def test_one_page_and_the_package_run_the_same_chain():
    """Same start, same noise, same target: bit-close ends. The chain's convention is one."""
    page = example("one_page")
    z0 = torch.randn(50, 3, dtype=torch.float64)
    torch.manual_seed(5)
    ours = page.langevin(lambda z: -0.5 * (z - 1).square().sum(1) / 0.3, z0, 7, 0.4)
    package = lebm.langevin(lambda z: -(z - 1) / 0.3, z0, lebm.Chain(7, 0.4), torch.Generator().manual_seed(5))
    assert torch.allclose(ours, package, atol=1e-12)


def test_one_page_posterior_is_prior_plus_likelihood(monkeypatch):
    page = example("one_page")
    f, g = page.networks()
    x, z = torch.rand(4, 1, 8, 8) * 2 - 1, torch.randn(4, page.NZ)
    seen = {}
    monkeypatch.setattr(
        page, "langevin", lambda log_pi, z0, steps, s: seen.update(value=log_pi(z), chain=(steps, s)) or z0
    )
    page.sample_posterior(f, g, x)
    expected = f(z) - 0.5 * z.square().sum(1) - (x - g(z)).square().sum((1, 2, 3)) / (2 * 0.3**2)
    assert torch.allclose(seen["value"], expected, rtol=1e-5)
    assert seen["chain"] == (20, 0.1)


# --- with the package -----------------------------------------------------------------------------------------------


def test_own_images(tmp_path, capsys):
    out = tmp_path / "run"
    example("own_images").main(["--updates", "40", "--out", str(out)])
    said = capsys.readouterr().out
    assert width(out / "samples.png") > 64
    assert width(out / "reconstructions.png") > 64
    assert (out / "model.safetensors").is_file()
    own, noise = (
        float(re.search(pattern, said).group(1)) for pattern in (r"median is (-?[\d.]+)", r"median score (-?[\d.]+)")
    )
    assert noise > own, said


def test_own_images_takes_a_folder(tmp_path, capsys):
    pictures = tmp_path / "mine"
    pictures.mkdir()
    for i in range(4):
        Image.new("RGB", (40, 30), (60 * i, 10, 200)).save(pictures / f"p{i}.jpg")
    example("own_images").main(["--images", str(pictures), "--updates", "1", "--out", str(tmp_path / "run")])
    assert re.search(r"p[0-3]\.jpg", capsys.readouterr().out)
    assert sorted(p.name for p in pictures.iterdir()) == [f"p{i}.jpg" for i in range(4)]
    assert lebm.load(tmp_path / "run").config.data.path == str(pictures)


def test_own_generator(tmp_path, capsys):
    out = tmp_path / "run"
    module = example("own_generator")
    module.main(["--updates", "40", "--out", str(out)])
    said = capsys.readouterr().out
    digits, negatives = (
        float(v) for v in re.search(r"digits (-?[\d.]+), of their negatives (-?[\d.]+)", said).groups()
    )
    assert digits < negatives, said
    assert float(re.search(r"restored: ([\d.]+)%", said).group(1)) > 60, said
    assert width(out / "samples.png") > 64
    with pytest.raises(CheckpointError, match="generator="):
        lebm.load(out)


def test_own_generator_has_nothing_but_the_two_methods():
    own = set(vars(example("own_generator").Bernoulli)) - set(vars(torch.nn.Module))
    assert {n for n in own if not n.startswith("_")} == {"log_prob", "decode"}


# --- anomaly.py -----------------------------------------------------------------------------------------------------


def test_anomaly_compares_detectors_on_images_and_a_table(tmp_path, capsys):
    example("anomaly").main(["--updates", "60", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    found = {
        name: [float(v) for v in re.findall(rf"{name} +AUPRC ([\d.]+)", said)]
        for name in ("lebm", "nearest neighbour", "IsolationForest")
    }
    assert all(len(v) == 2 for v in found.values()), said
    assert found["lebm"][0] > 0.35 and found["lebm"][1] > 0.8, "chance is 0.25 and 0.66"
    assert all(width(tmp_path / f"anomaly-{name}.png") > 1000 for name in ("digits", "table"))

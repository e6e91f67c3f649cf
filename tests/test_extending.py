"""A data set, a generator, a method, a metric and a preset: each is one new file and its entry in one registry.

The test writes all five into a copy of the package, as a person would, and learns, samples and measures with them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

DATA_SET = '''
"""Grey images of 8x8 pixels, each with one bright row or column."""

from pathlib import Path

import torch

from lebm.data.splits import Dataset, Splits


def load(config, root, progress=None):
    index = torch.arange(200)
    images = torch.zeros(200, 1, 8, 8, dtype=torch.uint8)
    images[index[::2], 0, index[::2] // 2 % 8] = 255
    images[index[1::2], 0, :, index[1::2] // 2 % 8] = 255
    return Splits(images[:160], images[160:], source="stripes")


DATASETS = (
    Dataset(
        "stripes", load, lambda root: Path(__file__).parent, how="Nothing to fetch.", licence="none needed", description="200 stripes"
    ),
)
'''

GENERATOR = '''
"""Pixels that are black or white: a product of Bernoulli distributions whose probabilities an MLP computes from z."""

from typing import Annotated, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import nn

from lebm.core.section import WHOLE, GeneratorConfig
from lebm.generators.base import Generator


class BernoulliConfig(GeneratorConfig):
    kind: Literal["bernoulli"] = "bernoulli"
    pixels: Annotated[int, Field(ge=1, le=10**4), WHOLE] = 64
    width: Annotated[int, Field(ge=1, le=10**4), WHOLE] = 32

    def build(self, nz):
        return BernoulliGenerator(nz, self.pixels, self.width)


class BernoulliGenerator(Generator):
    modality = "table"

    def __init__(self, nz, pixels, width):
        super().__init__()
        self.shape = (pixels,)
        self.logits = nn.Sequential(nn.Linear(nz, width), nn.ReLU(), nn.Linear(width, pixels))

    def log_prob(self, x, z, masks=None):
        return -F.binary_cross_entropy_with_logits(self.logits(z), x, reduction="none").sum(1)

    def decode(self, z):
        return self.logits(z).sigmoid()
'''

METHOD = '''
"""A VAE whose posterior is held to N(0, I) by the maximum mean discrepancy instead of the Kullback-Leibler divergence."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from lebm.core.section import NUMBER, MethodConfig
from lebm.extensions.encoder_start import GaussianEncoder
from lebm.method import Method
from lebm.sampler import SamplerSpec


class MMDVAEConfig(MethodConfig):
    DEFAULT_RATES: ClassVar = {"generator": 1e-3, "encoder": 1e-3}

    kind: Literal["mmd-vae"] = "mmd-vae"
    weight: Annotated[float, Field(ge=0, le=1e6, description="Of the divergence."), NUMBER] = 100.0

    def networks(self):
        return ("generator", "encoder")

    def build(self, nz, make_generator):
        return MMDVAE(nz, make_generator(), self.weight)


class MMDVAE(Method):
    def __init__(self, nz, generator, weight):
        super().__init__()
        self.nz, self.generator = nz, generator
        self.encoder = GaussianEncoder(generator.make_encoder(nz, 16, 1), nz)
        self.register_buffer("weight", torch.tensor(weight), persistent=False)

    def networks(self):
        return {"generator": self.generator, "encoder": self.encoder}

    def coefficients(self):
        return {"weight": self.weight}

    def losses(self, batch, rng):
        z, _ = self.encoder.draw(self._noise(len(batch.x), rng), batch.x)
        self.log_px = self.generator.log_prob(batch.x, z).mean()
        self.divergence = discrepancy(z, self._noise(len(batch.x), rng))
        yield ("generator", "encoder"), self.weight * self.divergence - self.log_px

    def scalars(self):
        return {"log_px": self.log_px.detach(), "divergence": self.divergence.detach()}

    def samplers(self):
        return {"prior": SamplerSpec("prior"), "posterior": SamplerSpec("posterior", "encoder")}

    def draw(self, n, rng, spec=None, first=0):
        return self._noise(n, rng)

    def infer(self, x, rng, spec=None, shared_noise=True):
        return self.encoder(x)[0]

    def log_prior(self, z):
        return -0.5 * z.square().sum(1)

    def _noise(self, n, rng):
        return torch.randn(n, self.nz, generator=rng, device=self.device)


def discrepancy(a, b):
    kernel = lambda u, v: (-torch.cdist(u, v).square() / (2 * u.shape[1])).exp().mean()
    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)
'''

METRIC = '''
"""How much brighter samples are than the training images."""

from lebm.measure.metric import Evaluation, Metric


def measure(ev: Evaluation):
    n, spec = ev.samples or 100, ev.spec("prior")
    ev.protocol.update(samples=n, sampler=spec.to_dict())
    mean = sum(float(x.sum()) for x in ev.sample(n, spec)) / n
    real = ev.method.generator.from_storage(ev.train).flatten(1).sum(1).mean()
    return {"brightness": mean - float(real)}


BRIGHTNESS = Metric("brightness", "Brightness", None, "Brightness of samples less that of training images.", "prior", measure=measure)
'''

PRESET = """
name: stripes/mmd-vae
nz: 4
data: {name: stripes}
generator: {kind: image, size: 8, channels: 1, ngf: 4, widths: [2]}
method: {kind: mmd-vae}
training: {updates: 6, batch: 20, log_every: 3, checkpoint_every: 6, stages: [{until: 3, coefficients: {weight: 10}}]}
"""

# Each new file, its text, the registry, and what is replaced there: the text before and after. A preset needs no entry.
ADDED = {
    "data set": ("data/stripes.py", DATA_SET, "data/__init__.py", {"MODULES = (": 'MODULES = ("stripes", '}),
    "generator": (
        "generators/bernoulli.py",
        GENERATOR,
        "config/generators.py",
        {
            "AnyGenerator = Annotated[": "from lebm.generators.bernoulli import BernoulliConfig\nAnyGenerator = Annotated[BernoulliConfig | ",
        },
    ),
    "method": (
        "extensions/mmd_vae.py",
        METHOD,
        "config/methods.py",
        {
            "= (LatentEBMConfig,": "= (LatentEBMConfig, MMDVAEConfig,",
            "METHODS: tuple": "from lebm.extensions.mmd_vae import MMDVAEConfig\nMETHODS: tuple",
        },
    ),
    "metric": (
        "measure/brightness.py",
        METRIC,
        "measure/__init__.py",
        {
            "for metric in (": "for metric in (BRIGHTNESS, ",
            "from lebm.measure.fid": "from lebm.measure.brightness import BRIGHTNESS\nfrom lebm.measure.fid",
        },
    ),
    "preset": ("config/presets/stripes/mmd-vae.yaml", PRESET, None, {}),
}

USE = """
import json, sys, torch, lebm
from lebm.config import json_schema, preset_names, resolve
from lebm.measure.evaluate import evaluate

torch.set_num_threads(1)
assert "stripes/mmd-vae" in preset_names() and "MMDVAEConfig" in json_schema()["$defs"]
method = lebm.train("stripes/mmd-vae", run="run", device="cpu")
assert method.config.method.kind == "mmd-vae" and float(method.weight) == 100.0
x = method.sample(5, seed=1)
assert x.shape == (5, 1, 8, 8) and torch.equal(lebm.load("run").sample(5, seed=1), x)
assert method.reconstruct(x).shape == x.shape and method.anomaly_score(x).shape == (5,)
r = evaluate("run", ["brightness", "mse"], samples=20, device="cpu")
assert set(r["metrics"]) == {"brightness", "mse"} or r["metrics"]["mse"] is not None, r["metrics"]
assert r["protocol"]["brightness"]["sampler"]["start"] == "noise", r["protocol"]
assert r["protocol"]["mse"]["sampler"]["start"] == "encoder"

rows = (torch.rand(50, 64) > 0.5).float()
config = {"name": "b", "generator": {"kind": "bernoulli", "width": 8}, "nz": 3, "training": {"updates": 2, "batch": 10}}
other = lebm.train(config, data=rows, device="cpu")
assert other.generator.__class__.__name__ == "BernoulliGenerator" and other.sample(3).shape == (3, 64)
print(json.dumps(r["metrics"]))
"""


def replaced(text: str, changes: dict[str, str]) -> str:
    for before, after in changes.items():
        assert text.count(before) == 1, f"the registry has {before!r} {text.count(before)} times"
        text = text.replace(before, after)
    return text


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package with the five additions; of each, how many lines of the registry are new or changed."""
    folder = tmp_path_factory.mktemp("copy")
    lebm = shutil.copytree(ROOT / "src" / "lebm", folder / "lebm", ignore=shutil.ignore_patterns("__pycache__"))
    lines = {}
    for what, (file, text, registry, changes) in ADDED.items():
        path = lebm / file
        assert not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip())
        lines[what] = 0
        if registry:
            before = (lebm / registry).read_text()
            after = replaced(before, changes)
            lines[what] = len(set(after.splitlines()) - set(before.splitlines()))
            (lebm / registry).write_text(after)
    return folder, lines


def test_each_is_one_file_and_its_entry(package):
    _, lines = package
    assert lines["data set"] == 1 and lines["preset"] == 0
    assert all(lines[what] <= 2 for what in ("generator", "method", "metric")), (
        "an import, and the name in the registry"
    )


def test_what_was_added_learns_samples_and_is_measured(package, tmp_path):
    folder, _ = package
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", USE],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "brightness" in done.stdout
    command = [sys.executable, "-c", "import lebm; print(lebm.__file__)"]
    where = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60).stdout
    assert where.startswith(str(folder)), "the copy was used, not the installed package"

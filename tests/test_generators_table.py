"""The table generator against the densities it stands for."""

import math

import numpy as np
import pytest
import torch

import lebm
from lebm.config import TableGenerator as Section
from lebm.config import resolve
from lebm.errors import ConfigError, DataError
from lebm.generators import TableGenerator
from lebm.model import LatentEBM

TINY = {"generator.kind": "table", "generator.columns": 3, "nz": 2, "generator.width": 8, "prior.width": 8, "training.batch": 20}


@pytest.mark.parametrize("sigma", [0.3, None])
def test_log_prob_is_the_gaussian(sigma):
    g = TableGenerator(2, Section(columns=3, width=5, sigma=sigma)).double()
    z, x = torch.randn(6, 2).double(), torch.randn(6, 3).double()
    want = torch.distributions.Normal(g.decode(z), g.sigma).log_prob(x).sum(1)
    torch.testing.assert_close(g.log_prob(x, z), want)
    assert g.sigma[0].item() == pytest.approx(sigma or 0.5)


def test_sigma_is_learned_where_none_is_given():
    """Columns that are noise of known size around a constant: the best sigma is that size, up to what z explains by chance."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, [0.1, 0.5, 2.0], (400, 3))
    config = resolve({**TINY, "training.steps": 400, "learning.generator_rate": 0.02, "draw.posterior": "amortised", "chains.prior.steps": 2})
    model = lebm.train(config, data=x, device="cpu")
    sigma = model.generator.sigma.detach()
    assert bool((sigma.diff() > 0).all()) and float(sigma[0]) < 0.2 < 0.3 < float(sigma[1]) < 0.7 and float(sigma[2]) > 0.7


def test_it_is_an_ordinary_model(tmp_path):
    config = resolve({**TINY, "training.steps": 2})
    model = lebm.train(config, data=torch.randn(50, 3), run=tmp_path / "run", device="cpu")
    again = lebm.load(tmp_path / "run")
    assert torch.equal(again.sample(4), model.sample(4)) and again.sample(4).shape == (4, 3)
    assert again.infer(np.zeros((5, 3))).shape == (5, 2)


def test_rows_of_another_width_are_refused():
    model = LatentEBM(resolve(TINY))
    with pytest.raises(DataError, match=r"\(4, 2\); this model takes \(n, 3\)"):
        model.infer(np.zeros((4, 2)))


@pytest.mark.parametrize(("key", "value"), [("columns", 0), ("width", 0), ("depth", -1), ("sigma", -0.1), ("width", 60_000)])
def test_impossible_sections(key, value):
    with pytest.raises(ConfigError, match=rf"generator\.{key}"):
        resolve({**TINY, "generator.depth": 2, f"generator.{key}": value})
    assert math.isfinite(resolve(TINY).generator.weights(2)[0])

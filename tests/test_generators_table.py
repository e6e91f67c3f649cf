"""The table generator against the densities it stands for."""

import math

import numpy as np
import pytest
import torch

import lebm
from lebm.config import resolve
from lebm.config.build import build
from lebm.core.errors import ConfigError, DataError
from lebm.generators import TableGenerator

TINY = {
    "generator": {"kind": "table", "columns": 3, "width": 8},
    "nz": 2,
    "method.energy.width": 8,
    "training.batch": 20,
}


@pytest.mark.parametrize("sigma", [0.3, None])
def test_log_prob_is_the_gaussian(sigma):
    g = TableGenerator(2, columns=3, width=5, sigma=sigma).double()
    z, x = torch.randn(6, 2).double(), torch.randn(6, 3).double()
    want = torch.distributions.Normal(g.decode(z), g.sigma).log_prob(x).sum(1)
    torch.testing.assert_close(g.log_prob(x, z), want)
    z.requires_grad_()
    torch.testing.assert_close(g.score(x, z), torch.autograd.grad(g.log_prob(x, z).sum(), z)[0])
    assert g.error(x, z).item() == pytest.approx((x - g.decode(z)).square().mean().item())
    assert g.sigma[0].item() == pytest.approx(sigma or 0.5)


def test_sigma_is_learned_where_none_is_given():
    """Columns that are noise of known size around a constant: the best sigma is that size, up to what z explains by
    chance."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, [0.1, 0.5, 2.0], (400, 3))
    alone = {"method.posterior_start.kind": "encoder", "method.posterior_chain.steps": 0}
    rates = {"optimizers.generator.rate": 0.02}
    config = resolve({**TINY, **alone, **rates, "training.updates": 400, "method.prior_chain.steps": 2})
    model = lebm.train(config, data=x, device="cpu")
    sigma = model.generator.sigma.detach()
    first, second, third = sigma.tolist()
    assert first < second < third and first < 0.2 < 0.3 < second < 0.7 and third > 0.7


def test_it_is_an_ordinary_model(tmp_path):
    config = resolve({**TINY, "training.updates": 2})
    model = lebm.train(config, data=torch.randn(50, 3), run=tmp_path / "run", device="cpu")
    again = lebm.load(tmp_path / "run")
    assert torch.equal(again.sample(4), model.sample(4)) and again.sample(4).shape == (4, 3)
    assert again.encode(np.zeros((5, 3))).shape == (5, 2)


def test_rows_of_another_width_are_refused():
    method = build(resolve(TINY))
    with pytest.raises(DataError, match=r"\(4, 2\); this model takes \(n, 3\)"):
        method.encode(np.zeros((4, 2)))


@pytest.mark.parametrize(
    ("key", "value"), [("columns", 0), ("width", 0), ("depth", -1), ("sigma", -0.1), ("width", 60_000)]
)
def test_impossible_sections(key, value):
    with pytest.raises(ConfigError, match=rf"generator\.{key}"):
        build(resolve({**TINY, "generator.depth": 2, f"generator.{key}": value}))
    assert math.isfinite(build(resolve(TINY)).generator.flops(2))

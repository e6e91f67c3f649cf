"""Checks of healthy learning: each fires on a row that should trigger it, and on no healthy one."""

import math

import pytest
import torch

from lebm.config import resolve
from lebm.config.build import build, make_optimizers
from lebm.core.rng import stream
from lebm.health import shared_variance
from lebm.method import Batch, update
from lebm.sampler import Chain

pytest.importorskip("zuko")
TINY = ["nz=4", "method.energy.width=8", "generator.ngf=3", "training.batch=10"]
CHAINS = ["method.prior_chain.steps=20", "method.posterior_chain.steps=15"]
ALONE = ["method.prior_chain.steps=0", "method.posterior_chain.steps=0"]
NETWORKS = [
    "method.posterior_start={kind: encoder, width: 2}",
    "method.prior_start={kind: flow, width: 8, layers: 2, objective: forward_kl}",
]


def tiny(*settings):
    return build(resolve("digits/paper", [*TINY, *CHAINS, *settings]))


def row_of(method, **values):
    """A log row as training writes one, after one update."""
    x = torch.rand(10, 1, 8, 8, generator=stream(1, "x")) * 2 - 1
    update(method, Batch(x, torch.arange(10)), make_optimizers(method, method.config), stream(1, "chain"))
    norms = {f"grad_{name}": 1.0 for name in method.networks()}
    return {"step": 1000, "batch": 10, **{k: float(v) for k, v in method.scalars().items()}, **norms, **values}


def warnings(method, row):
    return {check.name: words for check in method.checks() if not check.fatal and (words := check.test(row))}


def fatal(method, row):
    return {check.name: words for check in method.checks() if check.fatal and (words := check.test(row))}


NAN = math.nan
TRIGGERS = {  # the check -> settings, and numbers of a row that trigger it and no other
    "diverged_z_sq_neg": (["method.posterior_chain.noise=0.5"], {"z_sq_neg": 2e4}),
    "diverged_z_sq_pos": ([], {"z_sq_pos": 2e4}),
    "diverged_f_pos": ([], {"f_pos": -2e6}),
    "diverged_f_neg": ([], {"f_neg": math.inf}),
    "diverged_log_px": ([], {"log_px": NAN}),
    "diverged_grad_prior": ([], {"grad_prior": NAN}),
    "diverged_grad_generator": ([], {"grad_generator": math.inf}),
    "diverged_log_q_pos": (NETWORKS, {"log_q_pos": NAN}),
    "diverged_grad_encoder": (NETWORKS, {"grad_encoder": NAN}),
    "diverged_log_q_neg": (NETWORKS, {"log_q_neg": -1e9}),
    "diverged_grad_flow": (NETWORKS, {"grad_flow": math.inf}),
    "prior_chain_frozen": ([], {"disp_neg": 0.01}),
    "posterior_chain_frozen": ([], {"disp_pos": 0.01}),
    "prior_collapsed": ([], {"z_spread_neg": 0.001}),
    "posterior_collapsed": ([], {"z_spread_pos": 0.001}),
    "energy_apart": ([], {"gap": -40.0}),
    "prior_far_out": ([], {"z_sq_neg": 61.0, "z_sq_pos": 30.0}),
    "encoder_left": (NETWORKS, {"disp_pos": 0.24, "q_std_pos": 0.06}),
    "encoder_collapsed": (NETWORKS, {"q_spread_pos": 0.07, "q_std_pos": 1.0}),
    "flow_collapsed": (NETWORKS, {"q_spread_neg": 0.05, "z_spread_pos": 1.0}),
    "z_unused": ([], {"z_share": 0.001, "z_gain": 0.03}),
    "base_lost": (["method.base.kind=whitened"], {}),
    "short_reach": (["method.base.kind=whitened", "method.posterior_start={kind: encoder, width: 2}",
                     "method.posterior_chain.steps=0", "method.prior_chain.steps=2"], {}),
}  # fmt: skip
HEALTHY = {"q_spread_pos": 0.5, "q_std_pos": 1.0}


def healthy(method):
    values = HEALTHY if "encoder" in method.networks() else {}
    return row_of(method, **values)


def test_every_check_has_a_row_that_triggers_it():
    """Starts bring their own checks, so the paper's method has three less."""
    assert sorted(check.name for check in tiny(*NETWORKS).checks()) == sorted(TRIGGERS)
    of_starts = {"encoder_left", "encoder_collapsed", "flow_collapsed"}
    assert {check.name for check in tiny().checks()} == set(TRIGGERS) - of_starts


@pytest.mark.parametrize("name", TRIGGERS)
def test_a_check_fires_where_it_should_and_nowhere_else(name):
    settings, values = TRIGGERS[name]
    method = tiny(*settings)
    row = healthy(method)
    if name != "short_reach":
        assert warnings(method, row) == {} == fatal(method, row)
    if name == "base_lost":
        method.prior.base.second.fill_(NAN)
        method.prior.base.refit()
    fired = {**fatal(method, row | values), **warnings(method, row | values)}
    assert set(fired) == {name} and isinstance(fired[name], str)
    assert {check.name: check.fatal for check in method.checks()}[name] == name.startswith("diverged")


def test_the_log_shows_the_networks():
    method = tiny(*NETWORKS)
    row = healthy(method)
    assert {"log_q_pos", "q_spread_pos", "q_std_pos", "log_q_neg", "q_spread_neg"} <= set(row)
    assert all(math.isfinite(value) for value in row.values())


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"q_spread_pos": 0.001}, "encoder_collapsed"),
        ({"q_spread_pos": 0.07, "q_std_pos": 1.0}, "encoder_collapsed"),
        ({"q_spread_pos": 0.5, "q_spread_neg": 0.05}, "flow_collapsed"),
    ],
)
def test_a_collapsed_network_is_named_once_it_has_learned_for_a_while(values, name):
    method = tiny(*NETWORKS, *ALONE, "method.prior_start.objective=reverse_kl")
    row = healthy(method) | values
    assert list(warnings(method, row)) == [name]
    assert warnings(method, row | {"step": 10}) == {}  # networks start near N(0, I)


def test_of_a_text_the_likelihood_says_whether_z_is_used():
    """Its encoder may spread its means little at first, and still tell a good part of every sentence."""
    method = tiny(*NETWORKS, *ALONE, "method.prior_start.objective=reverse_kl")
    assert warnings(method, healthy(method) | {"q_spread_pos": 0.06, "q_std_pos": 0.65, "z_share": 0.4}) == {}


def test_a_chain_that_leaves_its_encoder_is_named_with_its_step_size():
    method = tiny(*NETWORKS)
    away = healthy(method) | {"q_std_pos": 0.06, "disp_pos": 0.24}
    assert "method.posterior_chain.step_size" in warnings(method, away)["encoder_left"]
    assert warnings(method, away | {"disp_pos": 0.12}) == warnings(method, away | {"step": 10}) == {}


@pytest.mark.parametrize(
    ("values", "network"),
    [({"log_q_neg": -1e9}, "flow"), ({"grad_flow": math.inf}, "flow"), ({"log_q_pos": math.nan}, "encoder")],
)
def test_a_runaway_network_stops_learning_with_advice(values, network):
    method = tiny(*NETWORKS)
    (words,) = fatal(method, healthy(method) | values).values()
    assert f"optimizers.{network}.rate" in words


def test_a_text_that_does_without_z_is_named():
    method = tiny()
    row = healthy(method) | {"z_share": 0.001, "z_gain": 0.03, "active_units": 3.0}
    assert "likelihood" in warnings(method, row)["z_unused"]
    assert "unit of z" in warnings(method, row | {"z_share": 0.2, "active_units": 0.0})["z_unused"]
    assert warnings(method, row | {"z_share": 0.2}) == warnings(method, row | {"step": 10}) == {}
    for chain, advice in ((Chain(20, 0.1), "method.posterior_chain.steps"), (Chain(0, 0.1), "optimizers.encoder.rate")):
        method.posterior_chain = chain
        assert f"generator.word_dropout or {advice}" in warnings(method, row)["z_unused"]


def test_active_units_and_information_of_a_known_posterior():
    g, n = torch.Generator().manual_seed(4), 4000
    mean = torch.randn(n, 3, generator=g, dtype=torch.float64) * torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    a, b = (mean + torch.randn(n, 3, generator=g, dtype=torch.float64) * 0.5 for _ in range(2))
    values = shared_variance(a, b)
    assert values["active_units"] == 2
    rho = torch.tensor([0.25 / 0.5, 1 / 1.25])
    assert values["z_information"] == pytest.approx(float(-0.5 * torch.log(1 - rho).sum()), abs=0.1)
    assert shared_variance(a[:1], b[:1]) == {}

"""From a configuration to a method: initial weights, sizes, optimisers, stages, and what a user's generator must be."""

import copy
import resource

import numpy as np
import pytest
import torch
from torch import nn

from lebm.config import preset_names, resolve
from lebm.config.build import MAX_NUMBERS, build, make_optimizers
from lebm.core.errors import ConfigError
from lebm.core.rng import stream
from lebm.extensions.tempered_chain import TemperedChain
from lebm.generators import ImageGenerator, TableGenerator, TextGenerator, WrappedGenerator
from lebm.latent_ebm import LatentEBM
from lebm.method import Batch, update
from lebm.prior import StandardNormal
from lebm.sampler import Chain

TINY = ["nz=4", "method.energy.width=8", "generator.ngf=3"]
ENCODER = "method.posterior_start={kind: encoder, width: 2}"
FLOW = "method.prior_start={kind: flow, width: 8, layers: 2}"


def config_of(*settings):
    other_kind = any(s.startswith("generator={kind") for s in settings)
    return resolve("digits/paper", [*(s for s in TINY if not (other_kind and "ngf" in s)), *settings])


# --- initial weights --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [[], [ENCODER], [FLOW], ["method.base={kind: flow, width: 8, layers: 2}"]])
def test_weights_depend_on_the_seed_alone_and_leave_the_global_stream(settings):
    if "flow" in str(settings):
        pytest.importorskip("zuko")
    state = torch.random.get_rng_state()
    one, other = build(config_of(*settings)), build(config_of(*settings, "seed=2"))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(99)
    again = build(config_of(*settings))
    pairs = zip(one.named_parameters(), again.parameters(), other.parameters(), strict=True)
    for (name, a), b, c in pairs:
        assert torch.equal(a, b), name
        constant = bool((a == a.flatten()[0]).all())  # biases, shifts and scales that begin at 0
        assert constant or not torch.equal(a, c), name


def test_weights_of_the_paper_do_not_change_when_an_extension_is_added():
    pytest.importorskip("zuko")
    plain, extended = build(config_of()), build(config_of(ENCODER, FLOW))
    for name in plain.networks():
        weights = zip(plain.networks()[name].parameters(), extended.networks()[name].parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in weights), name


def test_a_users_generator_keeps_its_weights_and_the_prior_its_own():
    generator = ImageGenerator(4, size=8, channels=1, ngf=3)
    before = copy.deepcopy(generator.state_dict())
    method = build(config_of(), generator)
    assert method.generator is generator and method.user_generator and not build(config_of()).user_generator
    assert all(torch.equal(before[k], v) for k, v in generator.state_dict().items())
    pairs = zip(method.prior.parameters(), build(config_of()).prior.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


# --- what is built ----------------------------------------------------------------------------------------------------


def test_the_parts_are_those_of_the_sections():
    config = config_of("method.energy={activation: tanh, depth: 3, l2: 0.5}", "method.prior_chain.noise=0.5")
    method = build(config)
    assert isinstance(method, LatentEBM) and method.config is config and isinstance(method.generator, ImageGenerator)
    energy = method.prior.energy
    assert (energy.nz, energy.width, energy.depth, energy.activation) == (4, 8, 3, "tanh")
    assert type(method.prior.base) is StandardNormal and float(method.energy_l2) == 0.5
    assert method.prior_chain == TemperedChain(60, 0.4, noise=0.5) and type(method.posterior_chain) is Chain
    assert isinstance(build(config_of("generator={kind: table, columns: 3}")).generator, TableGenerator)
    assert isinstance(build(resolve("text-demo/paper")).generator, TextGenerator)
    assert build(config_of("method.energy=null", "method.prior_chain.steps=0")).prior.energy is None


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_is_built(preset):
    config = resolve(preset)
    if "flow" in config.optimizers:
        pytest.importorskip("zuko")
    with torch.device("meta"):  # shapes only: no memory for the large ones
        method = config.method.build(config.nz, lambda: config.generator.build(config.nz))
    assert tuple(method.networks()) == config.method.networks()
    assert set(method.networks()) <= set(config.optimizers)
    assert set(method.samplers()) == {"prior", "posterior"}


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["method.energy={width: 65536, depth: 64}"], "method.energy.width"),
        (["generator={kind: table, columns: 3, width: 60000}"], "generator.width"),
        (["generator={kind: text, hidden: 60000}", "data.name=text-demo"], "generator.hidden"),
        (["generator.ngf=4096", "generator.widths=[4096]"], "generator.ngf"),
        (
            ["method.posterior_start={kind: encoder, width: 4096}", "generator.size=128", "generator.widths=null"],
            "method.posterior_start.width",
        ),
        (["method.prior_start={kind: flow, layers: 64, width: 4096, bins: 64}"], "method.prior_start.width"),
        (["method.base={kind: flow, layers: 64, width: 4096, bins: 64}"], "method.base.width"),
        (["nz=4000", "method.base={kind: mixture, components: 1000}"], "method.base.components"),
        (["nz=4000", "method.prior_start={kind: replay, chains: 1000000}"], "method.prior_start.chains"),
    ],
)
def test_networks_too_large_are_refused_with_their_key_and_without_memory(settings, key):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigError, match=key) as e:
        build(config_of(*settings))
    assert "1e+09" in str(e.value) and MAX_NUMBERS == 10**9
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # in kilobytes
    assert grown < 200_000


def test_networks_beside_a_users_generator_are_checked_too():
    with pytest.raises(ConfigError, match=r"method\.energy\.width"):
        build(config_of("method.energy={width: 65536, depth: 64}"), Line())


# --- optimisers -------------------------------------------------------------------------------------------------------


def test_every_network_has_an_optimiser_with_its_kind_rate_and_betas():
    pytest.importorskip("zuko")
    rates = ["optimizers.prior={rate: 3e-3, betas: [0.5, 0.9]}", "optimizers.encoder={kind: adamw, weight_decay: 0.1}"]
    config = config_of(ENCODER, FLOW, *rates, "optimizers.generator={kind: sgd, rate: 7e-4}")
    method = build(config)
    optimizers = make_optimizers(method, config)
    assert list(optimizers) == list(method.networks()) == ["prior", "generator", "encoder", "flow"]
    kinds = {name: type(optimizer) for name, optimizer in optimizers.items()}
    sgd, adam, adamw = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
    assert kinds == {"prior": adam, "generator": sgd, "encoder": adamw, "flow": adam}
    (group,) = optimizers["prior"].param_groups
    assert (group["lr"], group["betas"]) == (3e-3, (0.5, 0.9))
    assert optimizers["generator"].param_groups[0]["lr"] == 7e-4
    assert optimizers["encoder"].param_groups[0]["weight_decay"] == 0.1
    assert [optimizers[name].param_groups[0]["lr"] for name in ("encoder", "flow")] == [1e-4, 1e-3]  # the defaults
    for name, net in method.networks().items():
        mine = [id(p) for group in optimizers[name].param_groups for p in group["params"]]
        assert mine == [id(p) for p in net.parameters()]


def test_adam_has_a_rate_for_each_network():
    """Adam's first step is rate * g / (|g| + 1e-8): every parameter shows its network's rate."""
    rates = ["optimizers.prior={rate: 3e-3, betas: [0.5, 0.9]}", "optimizers.generator={rate: 7e-4, betas: [0.5, 0.9]}"]
    config = config_of(*rates, "method.prior_chain.steps=5", "method.posterior_chain.steps=4")
    method = build(config).double()
    optimizers, before = make_optimizers(method, config), [p.detach().clone() for p in method.parameters()]
    x = (torch.rand(10, 1, 8, 8, generator=stream(1, "x")) * 2 - 1).double()
    update(method, Batch(x, torch.arange(10)), optimizers, stream(1, "chain"))
    rate_of = [3e-3] * len(list(method.prior.parameters())) + [7e-4] * len(list(method.generator.parameters()))
    for p, old, rate in zip(method.parameters(), before, rate_of, strict=True):
        torch.testing.assert_close(p.detach() - old, -rate * p.grad / (p.grad.abs() + 1e-8), rtol=1e-9, atol=1e-12)


def test_a_network_without_an_optimiser_is_named():
    """As where the method has more networks than the configuration says."""
    method = build(config_of(ENCODER))
    with pytest.raises(ConfigError, match=r"optimizers\.encoder\.rate"):
        make_optimizers(method, config_of())


def test_rates_for_captured_updates_live_in_tensors():
    method = build(config_of())
    rate = make_optimizers(method, method.config, capturable=True)["prior"].param_groups[0]["lr"]
    assert isinstance(rate, torch.Tensor) and float(rate) == pytest.approx(method.config.optimizers["prior"].rate)


# --- stages -----------------------------------------------------------------------------------------------------------


def test_a_stage_sets_the_chains():
    change = "{method.posterior_chain.steps: 0, method.prior_chain.step_size: 0.2, method.prior_chain.noise: 0.5}"
    config = config_of(ENCODER, f"training.stages=[{{until: 5, set: {change}}}]")
    method = build(config)
    assert (method.prior_chain, method.posterior_chain) == (Chain(60, 0.4), Chain(20, 0.1))
    config.at(4).method.apply(method)
    assert method.posterior_chain == Chain(0, 0.1) and method.prior_chain == TemperedChain(60, 0.2, noise=0.5)
    assert method.choose("posterior").steps == 0 and method.choose("prior").step_size == 0.2
    config.at(5).method.apply(method)
    assert (method.prior_chain, method.posterior_chain) == (Chain(60, 0.4), Chain(20, 0.1))


# --- a user's generator -----------------------------------------------------------------------------------------------


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def decode(self, z):
        return self.layer(z)

    def log_prob(self, x, z):
        return -(x - self.decode(z)).square().sum(1)


def test_a_plain_module_is_wrapped_once():
    module = Line()
    method = build(config_of(), module)
    assert isinstance(method.generator, WrappedGenerator) and method.generator.module is module
    assert "generator.module.layer.weight" in method.state_dict()
    assert method.sample(5).shape == (5, 3) and method.encode(np.zeros((2, 3), np.float32)).shape == (2, 4)


@pytest.mark.parametrize("missing", ["log_prob", "decode"])
def test_a_module_without_a_method_is_refused(missing):
    module = Line()
    setattr(module, missing, None)
    with pytest.raises(ConfigError, match=missing):
        build(config_of(), module)


def test_a_decoder_with_a_wrong_shape_is_refused_at_once():
    module = Line()
    module.decode = lambda z: z.sum(0)
    with pytest.raises(ConfigError, match=r"decode of Line .*\(4,\)"):
        build(config_of(), module)


def test_a_decoder_for_another_nz_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"the generator Line fails for z of shape \(2, 5\): mat1 and mat2"):
        build(config_of("nz=5"), Line())


def test_a_log_prob_with_a_wrong_shape_is_refused_when_it_is_first_used():
    module = Line()
    module.log_prob = lambda x, z: -(x - module.decode(z)).square()
    method = build(config_of(), module)
    with pytest.raises(ConfigError, match=r"log_prob of Line .*\(10, 3\).*\(10,\)"):
        update(method, Batch(torch.zeros(10, 3), torch.arange(10)), {}, stream(1, "chain"))

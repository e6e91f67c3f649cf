"""What every method must hold, in all its variants. A new method is added to VARIANTS and checked by the same tests."""

import copy
import json

import pytest
import torch

from lebm.config import resolve
from lebm.config.build import build, make_optimizers
from lebm.core.errors import NotDefined
from lebm.core.rng import stream
from lebm.method import Batch, Method, update

IMAGES = {
    "preset": "digits/paper",
    "nz": 6,
    "generator.ngf": 4,
    "method.energy.width": 16,
    "method.prior_chain.steps": 6,
    "method.posterior_chain.steps": 4,
}
ENCODER = {"method.posterior_start.kind": "encoder", "method.posterior_start.width": 4}
FLOW = {"layers": 2, "width": 8, "bins": 4}
TEXT = {
    "preset": "text-demo/paper",
    "nz": 6,
    "generator.vocabulary": 30,
    "generator.embedding": 8,
    "generator.hidden": 12,
    "method.energy.width": 16,
}
VARIANTS = {
    "paper": IMAGES,
    "l2": {**IMAGES, "method.energy.l2": 0.1},
    "no energy": {**IMAGES, "method.energy": None, "method.prior_chain.steps": 0},
    "encoder alone": {**IMAGES, **ENCODER, "method.posterior_chain.steps": 0},
    "encoder, forward": {**IMAGES, **ENCODER, "method.posterior_start.objective": "forward_kl"},
    "encoder, reverse": {**IMAGES, **ENCODER, "method.base.kind": "mixture", "method.base.components": 3},
    "flow alone": {**IMAGES, "method.prior_start": {"kind": "flow", **FLOW}, "method.prior_chain.steps": 0},
    "flow": {**IMAGES, "method.prior_start": {"kind": "flow", "objective": "forward_kl", **FLOW}},
    "replay": {**IMAGES, "training.batch": 10, "method.prior_start": {"kind": "replay", "chains": 40, "refresh": 0.25}},
    "whitened": {**IMAGES, "method.base.kind": "whitened"},
    "flow base": {**IMAGES, "method.base": {"kind": "flow", **FLOW}},
    "tempered": {
        **IMAGES,
        "method.posterior_chain": {
            "steps": 4,
            "step_size": 0.1,
            "first_steps": [0.3],
            "noise": 0.5,
            "drift_limit": 0.3,
        },
    },
    "text": TEXT,
    "text, dropout": {**TEXT, "generator.dropout": 0.2, "generator.word_dropout": 0.2, **ENCODER},
    "table": {"preset": "digits/paper", "nz": 2, "generator": {"kind": "table", "columns": 5}, **ENCODER},
}
ROWS = 12


def method_of(name: str) -> Method:
    method = build(resolve(VARIANTS[name]))
    if method.generator.modality == "text":
        method.generator.set_facts({"vocabulary": ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(20))]})
    return method


def rows_of(method: Method, n: int = ROWS, seed: int = 5) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    if method.generator.modality == "text":
        rows = torch.randint(3, 24, (n, 7), generator=rng)
        rows[:, -1] = 2  # </s>
        return rows
    return torch.rand(n, *method.generator.shape, generator=rng) * 2 - 1


def batch_of(method: Method, seed: int = 5) -> Batch:
    return Batch(rows_of(method, seed=seed), torch.arange(ROWS))


def flat(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in net.parameters()])


@pytest.fixture(params=list(VARIANTS))
def method(request):
    return method_of(request.param)


def test_networks_cover_every_parameter_that_requires_grad(method):
    named = [p for net in method.networks().values() for p in net.parameters()]
    assert len(named) == len({id(p) for p in named}), "two networks share a parameter"
    assert {id(p) for p in named} == {id(p) for p in method.parameters() if p.requires_grad}


def test_a_phase_moves_exactly_the_networks_it_names(method):
    """Each phase's loss has a gradient in every network it names; an update moves those that have an optimiser and no other."""
    networks = method.networks()
    named = set()
    for names, loss in method.losses(batch_of(method), stream(1, "chain")):
        assert set(names) <= set(networks)
        named |= set(names)
        for name in names:
            grads = torch.autograd.grad(
                loss, list(networks[name].parameters()), retain_graph=True, materialize_grads=True
            )
            assert any(bool((g != 0).any()) for g in grads), name
    assert named == set(networks)
    for alone in networks:
        method_again = copy.deepcopy(method)
        optimizers = {
            name: torch.optim.SGD(net.parameters(), 1e-2)
            for name, net in method_again.networks().items()
            if name == alone
        }
        before = {name: flat(net) for name, net in method_again.networks().items()}
        update(method_again, batch_of(method), optimizers, stream(1, "chain"))
        moved = {name for name, net in method_again.networks().items() if not torch.equal(before[name], flat(net))}
        assert moved == {alone}


def test_two_and_two_updates_are_four(method):
    """Stopping in the middle and going on from state_dicts changes no bit."""

    def learn(m, optimizers, rng, which):
        for i in which:
            update(m, batch_of(m, seed=i), optimizers, rng, clip=1.0)

    other, config = copy.deepcopy(method), method.config
    optimizers, rng = make_optimizers(method, config), stream(1, "chain")
    learn(method, optimizers, rng, range(4))
    first, first_rng = make_optimizers(other, config), stream(1, "chain")
    learn(other, first, first_rng, range(2))
    resumed = build(config)
    resumed.generator.set_facts(other.generator.facts()) if other.generator.facts() else None
    resumed.load_state_dict(other.state_dict())
    second = make_optimizers(resumed, config)
    for name, optimizer in second.items():
        optimizer.load_state_dict(first[name].state_dict())
    second_rng = torch.Generator()
    second_rng.set_state(first_rng.get_state())
    learn(resumed, second, second_rng, range(2, 4))
    for (key, a), b in zip(method.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), key


def test_saved_and_loaded_methods_give_the_same_samples(method, tmp_path):
    from lebm.run import load, save

    update(method, batch_of(method), make_optimizers(method, method.config), stream(1, "chain"))
    save(method, tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors")
    assert torch.equal(method.sample(9, seed=3), loaded.sample(9, seed=3))
    assert torch.equal(method.encode(rows_of(method)), loaded.encode(rows_of(method)))


def test_a_row_does_not_depend_on_the_rows_beside_it(method):
    x = rows_of(method)
    together, alone = method.encode(x), torch.cat([method.encode(row[None]) for row in x])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    scores = method.anomaly_score(x)
    torch.testing.assert_close(scores, torch.cat([method.anomaly_score(row[None]) for row in x]), rtol=1e-4, atol=1e-3)
    assert scores.shape == (ROWS,)


def test_the_first_samples_of_a_seed_are_always_the_same(method):
    assert torch.equal(method.sample(9, seed=3)[:4], method.sample(4, seed=3))
    assert not torch.equal(method.sample(9, seed=3), method.sample(9, seed=4))


def test_a_changed_coefficient_changes_the_update(method):
    """A coefficient is a tensor that the update reads, never a number frozen into it."""
    for name, value in method.coefficients().items():
        assert value.shape == () and isinstance(value, torch.Tensor)
        results = []
        for size in (0.0, 5.0):
            m = copy.deepcopy(method)
            m.coefficients()[name].fill_(size)
            update(m, batch_of(m), make_optimizers(m, m.config), stream(1, "chain"))
            results.append(torch.cat([flat(net) for net in m.networks().values()]))
        if "prior" in method.networks():
            assert not torch.equal(*results), name


def test_samplers_are_json_and_can_be_put_into_words(method):
    from lebm.sampler import SamplerSpec

    for target, spec in method.samplers().items():
        assert spec.target == target
        again = SamplerSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
        assert again.to_dict() == spec.to_dict()
        assert again.in_words() == spec.in_words() and spec.in_words()


def test_scalars_are_single_numbers_and_checks_can_read_them(method):
    update(method, batch_of(method), make_optimizers(method, method.config), stream(1, "chain"))
    row = {name: float(value) for name, value in method.scalars().items()}
    row |= {"step": 1000, "batch": ROWS}
    for check in method.checks():
        result = check.test(row)
        assert result is None or isinstance(result, str)
        assert not (check.fatal and result), f"{check.name}: {result}"


def test_what_a_method_does_not_define_is_a_sentence():
    class Empty(Method):
        pass

    for verb, call in {
        "infer": lambda m: m.infer(torch.zeros(1), stream(0, "x")),
        "draw": lambda m: m.draw(1, stream(0, "x")),
        "log_prior": lambda m: m.log_prior(torch.zeros(1, 1)),
    }.items():
        with pytest.raises(NotDefined) as error:
            call(Empty())
        assert "Empty" in str(error.value) and verb in str(error.value)

"""Algorithm 1 of the paper on one screen: sample from the prior, infer from the posterior, move both networks once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from lebm.config import Chains, Learning
from lebm.generators.image import as_floats
from lebm.model import LatentEBM
from lebm.sampler import langevin, tamed


@dataclass
class Step:
    """What one learning step saw, still on the device: chain starts and ends, and the terms of the likelihood."""

    z0_neg: Tensor
    z_neg: Tensor
    z0_pos: Tensor
    z_pos: Tensor
    f_pos: Tensor
    f_neg: Tensor
    log_px: Tensor


def learn_step(model: LatentEBM, x: Tensor, optimizer: torch.optim.Optimizer, chains: Chains, learning: Learning, rng: torch.Generator) -> Step:
    """Algorithm 1: move alpha and beta once on a batch x (equations 10 and 11: short-run chains stand for the expectations)."""
    with held(model.generator, x, rng):  # a generator's dropout, drawn once for the chain and the update; in the paper's images: none
        return _learn_step(model, x, optimizer, chains, learning, rng)


def held(generator: nn.Module, x: Tensor, rng: torch.Generator) -> AbstractContextManager[None]:
    """Inside, log p(x|z) is one function of z."""
    hold = getattr(generator, "held", None)
    return nullcontext() if hold is None else hold(x, rng)


def _learn_step(model: LatentEBM, x: Tensor, optimizer: torch.optim.Optimizer, chains: Chains, learning: Learning, rng: torch.Generator) -> Step:
    with torch.no_grad():
        e_neg, e_pos = model.prior.draw_base(len(x), rng), model.prior.draw_base(len(x), rng)
        z0_neg, z0_pos = model.start_prior(e_neg), model.inference.start(e_pos, x)  # in the paper: the noise itself
        z_neg = model.prior.walk(z0_neg, chains.prior, rng)
        z_pos = langevin(partial(model.posterior_score, x), z0_pos, chains.posterior, rng)
    f_pos, f_neg = model.prior.f(z_pos), model.prior.f(z_neg)
    log_px = model.generator.log_prob(x, z_pos).mean()  # type: ignore[operator]
    loss = f_neg.mean() - f_pos.mean() - log_px  # alpha and beta share no term: one pass serves both
    if learning.l2:
        loss = loss + learning.l2 * (f_pos.square().mean() + f_neg.square().mean())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    model.learn_synthesis(e_neg, z_neg)  # in the paper: nothing
    model.inference.learn(e_pos, z_pos, tamed(partial(model.posterior_score, x), chains.posterior), x)
    if learning.clip:
        for net in model.networks().values():
            nn.utils.clip_grad_norm_(list(net.parameters()), learning.clip)
    optimizer.step()
    model.prior.see(z_pos)  # in the paper: nothing
    return Step(z0_neg, z_neg, z0_pos, z_pos, f_pos.detach().mean(), f_neg.detach().mean(), log_px.detach())


def reference_step(model: LatentEBM, optimizer: torch.optim.Optimizer, chains: Chains, rng: torch.Generator) -> Callable[[Tensor], Step]:
    """rows, as they are stored -> Step: learn_step as the model's config asks for it, with these chains."""
    config = model.config

    def step(rows: Tensor) -> Step:
        with float32_convolutions(config.precision):
            return learn_step(model, as_floats(rows), optimizer, chains, config.learning, rng)

    return step


def float32_convolutions(precision: str) -> AbstractContextManager[None]:
    """cuDNN rounds float32 inputs to TF32 by default; under `precision: float32` it must not."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=precision != "float32")


def make_optimizer(model: LatentEBM, learning: Learning, capturable: bool = False) -> torch.optim.Adam:
    """Adam with a rate for each network. Group 0 is alpha (the prior), group 1 beta (the generator), then those of the ways to draw z.

    `capturable` is for CUDA graphs: rates and step counts live on the device and the update is one fused kernel a group.
    """
    groups = []
    for name, net in model.networks().items():
        rate = getattr(learning, f"{name}_rate")
        groups.append({"params": list(net.parameters()), "lr": torch.tensor(rate, device=model.device) if capturable else rate, "name": name})
    return torch.optim.Adam(groups, betas=learning.betas, capturable=capturable, fused=True if capturable else None)


@torch.no_grad()
def describe(step: Step, model: LatentEBM, x: Tensor) -> dict[str, float]:
    """The numbers a log line shows, fetched from the device at once."""
    values = {"f_pos": step.f_pos, "f_neg": step.f_neg, "gap": step.f_pos - step.f_neg, "log_px": step.log_px}
    error = getattr(model.generator, "error", None)
    if error is not None:
        values["mse"] = error(x, step.z_pos)
    for name, net in model.networks().items():
        values[f"grad_{name}"] = _grad_norm(net, x.device)
    values |= {f"{k}_pos": v for k, v in model.inference.describe(step.z0_pos, step.z_pos, x).items()}
    values |= {f"{k}_neg": v for k, v in model.synthesis.describe(step.z0_neg, model.prior.white(step.z_neg)).items()}
    for name, z0, z in (("neg", step.z0_neg, step.z_neg), ("pos", step.z0_pos, step.z_pos)):
        values[f"disp_{name}"] = (z - z0).square().mean().sqrt()  # root mean square a coordinate
        values[f"z_mean_{name}"] = z.mean()
        values[f"z_sq_{name}"] = z.square().mean()
        values[f"z_spread_{name}"] = z.std(0, correction=0).mean()
    return dict(zip(values, torch.stack([v.double() for v in values.values()]).tolist(), strict=True))


def _grad_norm(net: nn.Module, device: torch.device) -> Tensor:
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    return torch.stack(torch._foreach_norm(grads)).norm() if grads else torch.zeros((), device=device)

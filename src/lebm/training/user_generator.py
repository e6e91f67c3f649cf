"""Questions to a generator of the user's before a run begins, so that a mistake costs neither time nor a run folder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lebm.core.errors import ConfigError
from lebm.generators.base import Generator, class_name, in_a_sentence, what
from lebm.method import Method


def check_generator(method: Method, nz: int, rows: Tensor) -> None:
    """Ask a user's generator for what learning needs of it, on two training rows: g(z), log p(x|z) and its gradients.

    It is asked in evaluation mode, which leaves running statistics as they are, and where cuDNN has no gradients of
    recurrent networks."""
    if not method.user_generator or not len(rows):
        return
    generator, training = method.generator, method.training
    x = generator.trim(generator.from_storage(rows[:2])).to(method.device)
    dtype = next((p.dtype for p in generator.parameters()), torch.float32)
    rng = torch.Generator(method.device).manual_seed(0)
    z, other = torch.randn(2, len(x), nz, generator=rng, device=method.device, dtype=dtype)
    devices = [method.device] if method.device.type == "cuda" else []
    generator.eval()
    try:
        with (
            torch.random.fork_rng(devices),
            torch.backends.cudnn.flags(enabled=False),
            in_a_sentence(generator, x=x, z=z),
        ):
            _check_decode(generator, x, z)
            _check_log_prob(generator, x, z)
            _check_weights(generator, x, z)
            if type(generator).score is Generator.score:
                _check_gradient_in_z(generator, x, z, other)
            _check_score(method, x, z)
    finally:
        generator.train(training)


@torch.no_grad()
def _check_decode(generator: Generator, x: Tensor, z: Tensor) -> None:
    """g(z) has the shape of the data. Words have none to compare with: sentences end where they end."""
    if generator.modality == "text":
        return
    x_hat: Any = generator.decode(z)
    name = class_name(generator)
    if not isinstance(x_hat, Tensor) or x_hat.ndim == 0 or len(x_hat) != len(z):
        raise ConfigError(f"decode of {name} gave {what(x_hat)} for {len(z)} rows of z; it must give a row for each")
    if x_hat.shape != x.shape:
        gave, has = tuple(x_hat.shape[1:]), tuple(x.shape[1:])
        raise ConfigError(
            f"the generator {name} gave rows of shape {gave} from decode, but the data has rows of shape {has}"
        )


@torch.no_grad()
def _check_log_prob(generator: Generator, x: Tensor, z: Tensor) -> None:
    value: Any = generator.log_prob(x, z)
    if not isinstance(value, Tensor) or value.shape != (len(x),):
        raise ConfigError(
            f"log_prob of {class_name(generator)} gave {what(value)} for {len(x)} rows; it must give one number a row"
        )


@torch.enable_grad()
def _check_weights(generator: Generator, x: Tensor, z: Tensor) -> None:
    """Some weight that could learn has a gradient."""
    weights = [p for p in generator.parameters() if p.requires_grad]
    if weights and not _gradients(generator.log_prob(x, z), weights):
        raise ConfigError(
            f"log_prob of {class_name(generator)} has no gradient in any of the generator's weights, which therefore "
            "cannot learn; compute it with torch from the weights themselves, without detach(), no_grad() or numpy"
        )


@torch.enable_grad()
def _check_gradient_in_z(generator: Generator, x: Tensor, z: Tensor, other: Tensor) -> None:
    """Where log p(x|z) changes with z, autograd knows how."""
    z = z.clone().requires_grad_()
    value = generator.log_prob(x, z)
    if _gradients(value, [z]) or torch.equal(value, generator.log_prob(x, other)):
        return
    raise ConfigError(
        f"log_prob of {class_name(generator)} changes with z and has no gradient in z; compute it with torch from z "
        "itself, without detach(), no_grad() or numpy"
    )


def _gradients(value: Tensor, of: list[Any]) -> list[Tensor]:
    """The gradients that exist."""
    if not value.requires_grad:
        return []
    return [g for g in torch.autograd.grad(value.sum(), of, allow_unused=True) if g is not None]


@torch.no_grad()
def _check_score(method: Method, x: Tensor, z: Tensor) -> None:
    """Chains of the posterior, where the method has some, need the gradient in z."""
    spec = method.samplers().get("posterior")
    if spec is None or not spec.step_size:
        return
    score: Any = method.generator.score(x, z)
    if not isinstance(score, Tensor) or score.shape != z.shape:
        raise ConfigError(
            f"score of {class_name(method.generator)} gave {what(score)} for z of shape {tuple(z.shape)}; "
            "it must have the shape of z"
        )

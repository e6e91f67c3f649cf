"""From a configuration to a method with its networks and optimisers. Nothing below this room knows a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lebm.core.errors import ConfigError
from lebm.core.rng import stream
from lebm.generators.base import as_generator
from lebm.method import Method

if TYPE_CHECKING:
    from lebm.config import Config, OptimizerConfig

MAX_NUMBERS = 10**9  # weights of one network; the paper's largest has 5e7


def build(config: Config, generator: nn.Module | None = None) -> Method:
    """The method that a configuration describes, with initial weights that depend on its seed alone. `generator` stands
    in for the configured one: a Generator, or any module with `log_prob(x, z)` and `decode(z)`."""
    with torch.random.fork_rng(devices=[]):
        given = None if generator is None else as_generator(generator, config.nz)

        def assemble() -> Method:
            return config.method.build(config.nz, lambda: config.generator.build(config.nz) if given is None else given)

        with torch.device("meta"):  # without memory
            _check_size(config, assemble(), given)
        torch.random.set_rng_state(stream(config.seed, "init").get_state())
        method = assemble()
    method.config, method.user_generator = config, given is not None
    return method


def _check_size(config: Config, method: Method, given: nn.Module | None) -> None:
    """Whether every network but a given one stays below MAX_NUMBERS weights: a small file must not be able to ask for
    all memory."""
    keys = {"generator": f"generator.{config.generator.SIZE_KEY}", **config.method.SIZE_KEYS}
    for name, net in method.networks().items():
        count = sum(p.numel() for p in net.parameters())
        if count > MAX_NUMBERS and net is not given:
            raise ConfigError(
                f"{keys.get(name, name)} makes a {name} network of {count:.1e} weights; {MAX_NUMBERS:.0e} is the most"
            )


def make_optimizers(method: Method, config: Config, capturable: bool = False) -> dict[str, torch.optim.Optimizer]:
    """One optimiser for every network. `capturable` is for CUDA graphs: rates and step counts then live on the device
    and the update is one fused kernel a network."""
    optimizers = {}
    for name, net in method.networks().items():
        section = config.optimizers.get(name)
        if section is None:
            raise ConfigError(f"the network {name} has no optimiser; give optimizers.{name}.rate")
        optimizers[name] = _optimizer(section, list(net.parameters()), capturable, method.device)
    return optimizers


def _optimizer(
    section: OptimizerConfig, params: list[nn.Parameter], capturable: bool, device: torch.device
) -> torch.optim.Optimizer:
    rate: Tensor | float = torch.tensor(section.rate, device=device) if capturable else section.rate
    options: dict[str, Any] = {"lr": rate, "weight_decay": section.weight_decay, "fused": True if capturable else None}
    if section.kind == "sgd":
        return torch.optim.SGD(params, **options)
    kind = torch.optim.AdamW if section.kind == "adamw" else torch.optim.Adam
    return kind(params, betas=section.betas, capturable=capturable, **options)

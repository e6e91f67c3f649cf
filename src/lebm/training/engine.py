"""The code that makes one learning update from stored rows: the reference, or a faster engine on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from lebm.config import Config
from lebm.method import Batch, Method, update

Update = Callable[[Tensor, Tensor], None]  # stored rows and their numbers -> one update of the weights
Optimizers = Mapping[str, torch.optim.Optimizer]


def wanted(config: Config, device: torch.device) -> bool:
    """Whether a faster engine should be tried."""
    return config.engine == "auto" and device.type == "cuda"


def choose(
    config: Config,
    method: Method,
    optimizers: Optimizers,
    rng: torch.Generator,
    rows: Tensor,
    index: Tensor,
    warn: Callable[[str], None],
) -> Update:
    """The engine for the configuration in force, made for batches like `rows`; `warn` is called where it is not the
    one that was asked for."""
    clip, precision = config.training.clip, config.precision
    if wanted(config, method.device):
        from lebm import fast

        try:
            return fast.make_update(method, optimizers, rng, rows, index, clip=clip, precision=precision, warn=warn)
        except fast.Unavailable as e:
            warn(f"the fast engine is not available, so learning goes on with the reference ({e})")
    if precision == "bfloat16":
        warn("precision bfloat16 needs the fast engine, which needs CUDA; this run computes in float32")
    return reference(method, optimizers, rng, clip, precision)


def reference(
    method: Method, optimizers: Optimizers, rng: torch.Generator, clip: float = 0.0, precision: str = "auto"
) -> Update:
    """`update` itself, on rows as they are stored."""

    def one(rows: Tensor, index: Tensor) -> None:
        with float32_convolutions(precision):
            update(method, Batch(method.generator.from_storage(rows), index), optimizers, rng, clip)

    return one


def float32_convolutions(precision: str) -> AbstractContextManager[None]:
    """cuDNN rounds float32 inputs to TF32 by default; under `precision: float32` it must not."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=precision != "float32")

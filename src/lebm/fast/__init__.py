"""The same numbers, sooner: fused kernels and a learning iteration captured as one CUDA graph.

Nothing of the reference code imports this package; the training loop asks it for an engine and is handed one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lebm.config import Chains, Config
from lebm.errors import UserError
from lebm.generators import ImageGenerator, TextGenerator
from lebm.learn import Step, reference_step
from lebm.model import LatentEBM


class Unavailable(Exception):
    """The fast engine cannot run here; the reference can. The text says why."""


def wanted(config: Config, device: torch.device) -> bool:
    """Whether a run should use an engine of this package at all."""
    return config.engine == "auto" and device.type == "cuda"


def plain_prior_chain(config: Config) -> bool:
    """Whether every step of the prior chain is like the others: its kernel, which makes them all, knows no schedule."""
    c = config.chains.prior
    return not c.first_steps and c.noise == 1 and not c.bound


def plain_images(model: LatentEBM) -> bool:
    """Whether the generator is the one that the kernels compute; a class of your own that stands on it may have another likelihood."""
    return type(model.generator) is ImageGenerator


def make_engine(
    model: LatentEBM,
    optimizer: torch.optim.Optimizer,
    rng: torch.Generator,
    example: Tensor,
    warn: Callable[[str], None] | None = None,
    chains: Chains | None = None,
) -> Callable[[Tensor], Step]:
    """rows -> Step on CUDA: fused bf16 kernels for the image generators, otherwise learn_step itself, captured in float32; with the config's chains, or those given.

    Text is captured for every width of a batch, with the table of words x vocabulary in bf16 unless the config says float32.
    Where the kernels do not run, on a GPU that they were not made for, `warn` hears of it and learn_step is captured; without it that is an error.
    """
    try:
        from lebm.fast.engine import Captured, FusedStep
        from lebm.fast.text import Buckets, working
    except ImportError as e:
        raise Unavailable(f"Triton is not there ({e})") from None
    config = model.config
    chains = chains or config.chains
    reference = reference_step(model, optimizer, chains, rng)

    def text(rows: Tensor) -> Step:
        with working(model):
            return reference(rows)

    fused = config.precision != "float32" and plain_images(model) and plain_prior_chain(config)
    try:
        if isinstance(model.generator, TextGenerator):
            return Buckets(text, model, optimizer, rng, example)
        if fused:
            try:
                return Captured(FusedStep(model, optimizer, rng, len(example), chains=chains), model, optimizer, rng, example)
            except Exception as e:
                if warn is None:
                    raise
                warn(f"the fused kernels do not run here ({_brief(e)}); the step is captured without them, in float32")
        return Captured(reference, model, optimizer, rng, example)
    except UserError:  # a warning that its hearer takes for an error, or data that do not fit
        raise
    except Exception as e:  # a compiler, a driver or a user's generator: whatever it is, the reference still works
        raise Unavailable(_brief(e)) from e


def _brief(e: Exception) -> str:
    return f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else 'no message'}"

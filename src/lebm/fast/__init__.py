"""The same numbers, sooner: fused kernels, updates captured as CUDA graphs, and an engine behind `Method.sample`.

Nothing of the reference imports this package; the training loop and the commands ask it for an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from lebm.core.errors import UserError
from lebm.generators.text import TextGenerator
from lebm.method import Method
from lebm.training.engine import Optimizers, Update, reference

if TYPE_CHECKING:
    from lebm.latent_ebm import LatentEBM


class Unavailable(Exception):
    """No engine of this package can run here, while the reference can. The text says why."""


def make_update(
    method: Method,
    optimizers: Optimizers,
    rng: torch.Generator,
    rows: Tensor,
    index: Tensor,
    *,
    clip: float = 0.0,
    precision: str = "auto",
    warn: Callable[[str], None] | None = None,
) -> Update:
    """A function of (rows, index) that makes one update on CUDA, for batches like the example.

    For a LatentEBM of images it consists of fused kernels in bfloat16, unless the precision is float32; otherwise it
    is `lebm.method.update` itself, captured as a CUDA graph for every shape of a batch. Of text, the table of words x
    vocabulary is then in bfloat16 unless the precision is float32. After each call the method holds the tensors of
    that update. Where the kernels do not run, on a GPU that they were not made for, `warn` is called and the reference
    is captured; without `warn` that is an error.
    """
    try:
        import lebm.fast.fused as fused
        import lebm.fast.graphs as graphs
    except ImportError as e:
        raise Unavailable(f"Triton is not installed ({e})") from None
    state = graphs.State(method, optimizers, rng)
    try:
        if precision != "float32" and fused.applies(method, len(rows)):
            try:
                fast = fused.FusedStep(cast("LatentEBM", method), optimizers, rng, len(rows), clip)
                return graphs.Captured(fast, state, rows, index)
            except Exception as e:
                if warn is None:
                    raise
                warn(f"the update is captured in float32, for the fused kernels do not run here ({_brief(e)})")
        step = with_words(method, reference(method, optimizers, rng, clip, precision), precision)
        return graphs.Captured(step, state, rows, index)
    except UserError:  # a warning that is treated as an error, or data that do not fit
        raise
    except Exception as e:  # a compiler, a driver or a user's generator: whatever it is, the reference still works
        raise Unavailable(_brief(e)) from e


def with_words(method: Method, step: Callable[..., None], precision: str) -> Callable[..., None]:
    """The step with the word kernel of this package inside a text generator, unless the precision is float32."""
    generator = method.generator
    if not isinstance(generator, TextGenerator) or precision == "float32":
        return step
    from lebm.fast.words import log_words

    def installed(*args: Tensor) -> None:
        generator.log_words = log_words
        try:
            step(*args)
        finally:
            generator.log_words = None

    return installed


def accelerate(method: Method, precision: str = "auto", warn: Callable[[str], None] | None = None) -> bool:
    """Install an engine behind `method.sample`, for images on CUDA in bfloat16, and say whether there is one.

    `method.engine.precision` is then what a result says of its samples.
    """
    method.engine = None
    if method.device.type != "cuda" or precision == "float32":
        return False
    try:
        from lebm.fast import sampler

        if not sampler.applies(method):
            return False
        engine = sampler.Sampler(method)
        engine.sample(1)  # compiles the kernels, or shows that they do not run here
    except UserError:
        raise
    except Exception as e:
        if warn is not None:
            warn(f"samples are drawn without the fast kernels ({_brief(e)})")
        return False
    method.engine = engine
    return True


def _brief(e: Exception) -> str:
    return f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else 'no message'}"

"""p_beta(x|z): the base class of all generators, and the wrapper around a plain module of the user's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lebm.core.errors import ConfigError, DataError, one_line
from lebm.core.pixels import as_floats, as_tensor


class Generator(nn.Module):
    """p(x|z). A generator needs `log_prob` and `decode`; everything else has a default that works for any data.

    Attributes a subclass may set: `shape`, that of one row of x; `modality`, one of "image", "text", "table", "other",
    which decides how rows are read, shown and measured."""

    modality: str = "other"
    shape: tuple[int, ...] | None = None
    autoregressive = False  # whether it also reads x itself, and so could do without z

    def log_prob(self, x: Tensor, z: Tensor, *masks: Any) -> Tensor:
        """log p(x|z), constants included, one number a row. x: (batch, ...), z: (batch, nz)."""
        raise NotImplementedError(f"{type(self).__name__} does not define log_prob(x, z)")

    def decode(self, z: Tensor) -> Tensor:
        """g(z): the most likely or the mean x, (batch, ...)."""
        raise NotImplementedError(f"{type(self).__name__} does not define decode(z)")

    def score(self, x: Tensor, z: Tensor, *masks: Any) -> Tensor:
        """The gradient of log p(x|z) with respect to z; a subclass may write it out."""
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            return torch.autograd.grad(self.log_prob(x, z, *masks).sum(), z)[0]

    def draw_masks(self, x: Tensor, rng: torch.Generator) -> tuple[Any, ...]:
        """Further arguments of `log_prob` and `score` in one learning iteration, such as what dropout leaves out. They
        are drawn once, so that the chain and the update share one density."""
        return ()

    def sample(self, z: Tensor, rng: torch.Generator, rows: int = 0) -> Tensor:
        """What `Method.sample` shows for z: the mean g(z) by default, a draw of p(x|z) where the field shows draws.
        Noise is drawn for `rows` rows and cut, so that a row does not depend on how many there are."""
        return self.decode(z)

    # --- rows of data ---------------------------------------------------------------------------------------------

    def as_input(self, x: Any) -> Tensor:
        """A user's rows, checked, as `log_prob` takes them."""
        check_rows(x)
        t = self.from_storage(as_tensor(x))
        if t.is_floating_point() and not bool(torch.isfinite(t).all()):
            raise DataError("the input contains NaN or infinity; remove or mend such rows")
        dtype = next((p.dtype for p in self.parameters()), t.dtype)
        return t.to(dtype) if t.is_floating_point() else t

    def from_storage(self, rows: Tensor) -> Tensor:
        """Rows as a data set stores them -> x as `log_prob` takes it."""
        return rows

    def to_storage(self, x: Tensor) -> Tensor:
        """The reverse, for rows that a user handed in; as they are where nothing is gained."""
        return x

    def trim(self, x: Tensor) -> Tensor:
        """Rows without what they share and no computation needs, such as the padding of sentences."""
        return x

    def facts(self) -> dict[str, Any]:
        """What the generator must know of the data to read and show rows (a vocabulary, ...), as plain JSON; files
        carry it."""
        return {}

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Take what a data set or a file says of the data."""

    # --- numbers for the log and the engines ----------------------------------------------------------------------

    def error(self, x: Tensor, z: Tensor) -> Tensor | None:
        """The mean squared error of g(z) per number of x; None where that means nothing."""
        return None

    def scalars(self, x: Tensor, z: Tensor) -> dict[str, Tensor]:
        """What the log shows of this generator besides log p(x|z)."""
        error = self.error(x, z)
        return {} if error is None else {"mse": error}

    def flops(self, rows: int) -> float | None:
        """Multiply-adds, times two, of one forward pass; None where it is not known."""
        return None

    # --- an encoder for it ----------------------------------------------------------------------------------------

    def make_encoder(self, nz: int, width: int, depth: int) -> nn.Module:
        """A network from x to 2 nz numbers a row, mean and log standard deviation: an MLP on the flattened row by
        default."""
        from lebm.generators.encoders import FlatNet

        if not isinstance(self.shape, list | tuple) or not all(isinstance(n, int) and n > 0 for n in self.shape):
            raise ConfigError(
                f"an encoder is asked for, and the shape of the generator {class_name(self)} is {self.shape!r}; "
                "give it a `shape`, that of a row of x such as (64,), or a method `make_encoder(nz, width, depth)`"
            )
        return FlatNet(math.prod(self.shape), nz, width, depth)


class WrappedGenerator(Generator):
    """A plain module with `log_prob(x, z)` and `decode(z)`, given the rest of the Generator's abilities and checked."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module: Any = module
        shape = getattr(module, "shape", None)
        self.shape = tuple(shape) if isinstance(shape, list | tuple) else None

    def log_prob(self, x: Tensor, z: Tensor, *masks: Any) -> Tensor:
        value = self.module.log_prob(x, z)
        if not isinstance(value, Tensor) or value.shape != (len(z),):
            raise ConfigError(
                f"log_prob of {type(self.module).__name__} gave {what(value)} for {len(z)} rows; "
                f"it must give one number a row, of shape ({len(z)},)"
            )
        return value

    def decode(self, z: Tensor) -> Tensor:
        x = self.module.decode(z)
        if not isinstance(x, Tensor) or x.ndim == 0 or len(x) != len(z):
            raise ConfigError(
                f"decode of {type(self.module).__name__} gave {what(x)} for {len(z)} rows of z; "
                "it must give a row for each"
            )
        return x

    def from_storage(self, rows: Tensor) -> Tensor:
        return as_floats(rows)

    def make_encoder(self, nz: int, width: int, depth: int) -> nn.Module:
        make = getattr(self.module, "make_encoder", super().make_encoder)
        encoder: nn.Module = make(nz, width, depth)
        return encoder


def as_generator(module: nn.Module, nz: int) -> Generator:
    """A Generator: the module itself, or wrapped once. What it decodes is checked at once, on two rows of zeros."""
    if isinstance(module, Generator):
        return module
    for name in ("log_prob", "decode"):
        if not callable(getattr(module, name, None)):
            raise ConfigError(
                f"the generator {type(module).__name__} has no method {name}; it needs log_prob(x, z) and decode(z)"
            )
    generator = WrappedGenerator(module)
    p = next(module.parameters(), torch.zeros(()))
    z = torch.zeros(2, nz, device=p.device, dtype=p.dtype if p.is_floating_point() else None)
    with torch.no_grad(), in_a_sentence(generator, z=z):
        generator.decode(z)
    return generator


def class_name(generator: nn.Module) -> str:
    """The class of a generator as its user knows it."""
    return type(generator.module if isinstance(generator, WrappedGenerator) else generator).__name__


@contextmanager
def in_a_sentence(generator: nn.Module, **inputs: Tensor) -> Iterator[None]:
    """Inside, an error of a user's generator is told as one sentence, with the shapes of what it was given."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError) as e:
        shapes = " and ".join(f"{name} of shape {tuple(t.shape)}" for name, t in inputs.items())
        first = one_line((str(e).splitlines() or [""])[0] or type(e).__name__)
        raise ConfigError(f"the generator {class_name(generator)} fails for {shapes}: {first}") from e


def check_rows(x: Any, kinds: Any = np.ndarray | Tensor, give: str = "a numpy array or a tensor") -> None:
    """Refuse what is not of these kinds, or has no rows."""
    if not isinstance(x, kinds):
        raise DataError(f"the input is a {type(x).__name__}; give {give}")
    if getattr(x, "ndim", 1) == 0 or len(x) == 0:
        raise DataError("the input has no rows; give at least one")


def what(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"

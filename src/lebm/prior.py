"""p_alpha(z): a small energy network tilts N(0, I) (equation 2 of the paper).

f is the NEGATIVE energy: log p_alpha(z) = f(z) + log N(z; 0, I) - log Z, with Z = E over N(0, I) of exp f.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lebm.config import Prior


def log_normal(z: Tensor) -> Tensor:
    """log N(z; 0, I), constants included, a number a row."""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))


class GaussianPrior(nn.Module):
    """f = 0: the fixed prior of the ablation. Nothing is learned and draws are exact."""

    def __init__(self, nz: int, config: Prior | None = None) -> None:
        super().__init__()
        self.nz = nz
        self.register_buffer("_where", torch.zeros(()), persistent=False)  # follows .to(device, dtype)

    def f(self, z: Tensor) -> Tensor:
        return z.new_zeros(len(z))

    def score(self, z: Tensor) -> Tensor:
        return -z

    def log_prob(self, z: Tensor) -> Tensor:
        """log p_alpha(z) + log Z: normalised up to log Z, which no chain and no gradient needs."""
        return self.f(z) + log_normal(z)

    def draw_base(self, n: int, rng: torch.Generator) -> Tensor:
        """n rows of the reference distribution p_0 = N(0, I), where every chain starts."""
        where: Tensor = self._where  # type: ignore[assignment]
        return torch.randn(n, self.nz, generator=rng, device=where.device, dtype=where.dtype)


class EnergyPrior(GaussianPrior):
    """f is an MLP with a scalar output; its score is written out, so chains need no autograd."""

    def __init__(self, nz: int, config: Prior | None = None) -> None:
        super().__init__(nz)
        config = config or Prior()
        self.config = config
        sizes = [nz] + [config.width] * config.depth + [1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        for layer in self.linear():
            nn.init.xavier_normal_(layer.weight)
        self._act, self._back = activation(config.activation, config.leak)

    def linear(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def f(self, z: Tensor) -> Tensor:
        *hidden, last = self.linear()
        h = z
        for layer in hidden:
            h = self._act(layer(h))
        return last(h).squeeze(-1)

    def score(self, z: Tensor) -> Tensor:
        """grad_z [f(z) + log N(z; 0, I)] in closed form: back through the layers by hand."""
        *hidden, last = self.linear()
        h, us = z, []
        for layer in hidden:
            us.append(layer(h))
            h = self._act(us[-1])
        g = last.weight.expand(len(z), -1)
        for layer, u in zip(reversed(hidden), reversed(us), strict=True):
            g = self._back(g, u) @ layer.weight
        return g - z


PRIORS: dict[str, type[GaussianPrior]] = {"energy": EnergyPrior, "gaussian": GaussianPrior}


def activation(name: str, leak: float) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]:
    """An activation, and how a gradient g passes back through it at the pre-activation u (PyTorch's own fused kernels)."""
    if name == "leaky_relu":
        return partial(F.leaky_relu, negative_slope=leak), partial(_leaky_back, leak=leak)
    if name == "tanh":
        return torch.tanh, _tanh_back
    return (F.silu, _silu_back) if name == "silu" else (F.gelu, _gelu_back)


# Plain functions, for a model that holds lambdas cannot be copied to another process.
def _leaky_back(g: Tensor, u: Tensor, leak: float) -> Tensor:
    return torch.ops.aten.leaky_relu_backward(g, u, leak, False)


def _tanh_back(g: Tensor, u: Tensor) -> Tensor:
    return torch.ops.aten.tanh_backward(g, torch.tanh(u))


def _silu_back(g: Tensor, u: Tensor) -> Tensor:
    return torch.ops.aten.silu_backward(g, u)


def _gelu_back(g: Tensor, u: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward(g, u)

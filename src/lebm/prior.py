"""p_alpha(z): a small energy network tilts a base density, N(0, I) in the paper (equation 2).

f is the NEGATIVE energy: log p_alpha(z) = f(z) + log p_0(z) - log Z, with Z the mean of exp f(z) over the base p_0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lebm.start import Phase


def log_normal(z: Tensor) -> Tensor:
    """log N(z; 0, I), constants included, one number a row."""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))


class StandardNormal(nn.Module):
    """The base p_0 = N(0, I) of the paper. Other bases derive from this class and override what they need.

    A base may whiten: u = whiten(z), in which all directions have one scale. The energy network reads u and the prior
    chain is preconditioned by `root`, so that one step size suits all directions. Here u = z."""

    name = "N(0, I)"
    root: Tensor | None  # L with z = L u + constant, which preconditions the prior chain; None is the identity
    refit_every = 0  # updates between two calls of `refit`; 0 is never
    trained = False  # whether gradients move it

    def __init__(self, nz: int) -> None:
        super().__init__()
        self.nz = nz
        self.register_buffer("_where", torch.zeros(()), persistent=False)  # it follows .to(device, dtype)
        self.register_buffer("root", None)

    def noise(self, n: int, rng: torch.Generator) -> Tensor:
        """n rows of N(0, I): the noise behind every start."""
        where: Tensor = self._where  # type: ignore[assignment]
        return torch.randn(n, self.nz, generator=rng, device=where.device, dtype=where.dtype)

    def transform(self, e: Tensor) -> Tensor:
        """N(0, I) noise -> draws of p_0, as u."""
        return e

    def whiten(self, z: Tensor) -> Tensor:
        """z -> u."""
        return z

    def unwhiten(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        """u -> z, written to `out` where that is given."""
        return u if out is None else out.copy_(u)

    def log_prob_white(self, u: Tensor) -> Tensor:
        """log p_0 as a density of u, one number a row."""
        return log_normal(u)

    def score_white(self, u: Tensor) -> Tensor:
        """The gradient of log p_0 with respect to u."""
        return -u

    def draw(self, n: int, rng: torch.Generator) -> Tensor:
        """n draws of p_0."""
        return self.unwhiten(self.transform(self.noise(n, rng)))

    def log_det(self) -> Tensor | float:
        """log |det du/dz|."""
        return 0.0

    def pull_back(self, score_u: Tensor) -> Tensor:
        """A gradient with respect to u -> the same with respect to z."""
        return score_u

    def phases(self, z_pos: Tensor, z_neg: Tensor) -> Iterator[Phase]:
        """For a base that gradients move: its loss after the main phase."""
        yield from ()

    def observe(self, z_pos: Tensor) -> None:
        """For a base that follows posterior draws: running sums, with nothing read back to the host."""

    def refit(self) -> None:
        """For such a base: move to what was observed. It is called between updates, never inside a captured one."""

    def follows(self) -> bool:
        """Whether the last refit could be made. It waits for the device."""
        return True

    def restore_derived(self) -> None:
        """After weights were rounded for a small file: recompute what is derived from them."""


class EnergyNetwork(nn.Module):
    """f: an MLP from u, (batch, nz), to one number a row. Its score is written out, so that chains need no autograd."""

    def __init__(
        self, nz: int, width: int = 200, depth: int = 2, activation: str = "leaky_relu", leak: float = 0.2
    ) -> None:
        super().__init__()
        self.nz, self.width, self.depth, self.activation, self.leak = nz, width, depth, activation, leak
        sizes = [nz] + [width] * depth + [1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        for layer in self.linear():
            nn.init.xavier_normal_(layer.weight)
        self._act, self._back = _activation(activation, leak)

    def linear(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def forward(self, u: Tensor) -> Tensor:
        *hidden, last = self.linear()
        h = u
        for layer in hidden:
            h = self._act(layer(h))
        return last(h).squeeze(-1)

    def score(self, u: Tensor) -> Tensor:
        """The gradient of f with respect to u, in closed form: back through the layers by hand."""
        *hidden, last = self.linear()
        h, pre = u, []
        for layer in hidden:
            pre.append(layer(h))
            h = self._act(pre[-1])
        g = last.weight.expand(len(u), -1)
        for layer, v in zip(reversed(hidden), reversed(pre), strict=True):
            g = self._back(g, v) @ layer.weight
        return g


class EnergyPrior(nn.Module):
    """p_alpha(z) proportional to exp(f(z)) p_0(z), from a base p_0 and an energy network f; without f it is p_0
    itself."""

    def __init__(self, base: StandardNormal, f: EnergyNetwork | None = None) -> None:
        super().__init__()
        self.base, self.energy = base, f

    @property
    def nz(self) -> int:
        return self.base.nz

    def networks(self) -> dict[str, nn.Module]:
        """What gradients move: the energy network, and a base that learns by gradient."""
        networks: dict[str, nn.Module] = {} if self.energy is None else {"prior": self.energy}
        return {**networks, "base": self.base} if self.base.trained else networks

    def f(self, z: Tensor) -> Tensor:
        """The negative energy, one number a row."""
        return self.f_white(self.base.whiten(z))

    def f_white(self, u: Tensor) -> Tensor:
        """f of the whitened u."""
        return u.new_zeros(len(u)) if self.energy is None else self.energy(u)

    def log_prob(self, z: Tensor) -> Tensor:
        """log p_alpha(z) + log Z: normalised up to log Z, which no chain and no gradient needs."""
        u = self.base.whiten(z)
        return self.f_white(u) + self.base.log_prob_white(u) + self.base.log_det()

    def score(self, z: Tensor) -> Tensor:
        """The gradient of f(z) + log p_0(z)."""
        return self.base.pull_back(self.score_white(self.base.whiten(z)))

    def score_white(self, u: Tensor) -> Tensor:
        """The gradient of f + log p_0 with respect to u."""
        if self.energy is None:
            return self.base.score_white(u)
        return self.energy.score(u) + self.base.score_white(u)


def _activation(name: str, leak: float) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]:
    """An activation, and how a gradient g passes back through it at the pre-activation v (PyTorch's fused kernels)."""
    if name == "leaky_relu":
        return partial(F.leaky_relu, negative_slope=leak), partial(_leaky_back, leak=leak)
    if name == "tanh":
        return torch.tanh, _tanh_back
    return (F.silu, _silu_back) if name == "silu" else (F.gelu, _gelu_back)


# Plain functions, because a model that holds lambdas cannot be copied to another process.
def _leaky_back(g: Tensor, v: Tensor, leak: float) -> Tensor:
    return torch.ops.aten.leaky_relu_backward(g, v, leak, False)


def _tanh_back(g: Tensor, v: Tensor) -> Tensor:
    return torch.ops.aten.tanh_backward(g, torch.tanh(v))


def _silu_back(g: Tensor, v: Tensor) -> Tensor:
    return torch.ops.aten.silu_backward(g, v)


def _gelu_back(g: Tensor, v: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward(g, v)

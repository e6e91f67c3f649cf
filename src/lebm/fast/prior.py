"""The energy prior on Triton kernels: its score for posterior chains, and the whole prior chain in one launch."""

from __future__ import annotations

import torch
from torch import Tensor
from triton import cdiv

from lebm.config import Chain
from lebm.fast import chain_kernels as kernels
from lebm.fast import tiles
from lebm.prior import EnergyPrior, GaussianPrior


def fits(prior: GaussianPrior) -> bool:
    """Two hidden layers of LeakyReLU, width up to 256 and nz up to 128: the weights then stay in the multiprocessor's memory."""
    if not isinstance(prior, EnergyPrior):
        return False
    c = prior.config
    return c.depth == 2 and c.activation == "leaky_relu" and c.width <= 256 and prior.nz <= 128


class FastPrior:
    """Working copies of an EnergyPrior's weights and the launches that use them."""

    def __init__(self, prior: EnergyPrior, dtype: torch.dtype = torch.bfloat16) -> None:
        self.prior, self.nz, self.width, self.leak = prior, prior.nz, prior.config.width, prior.config.leak
        one, two, three = prior.linear()
        self._masters = [one.weight, two.weight]
        self._work = [torch.empty_like(w, dtype=dtype) for w in self._masters]
        self._args = (self._work[0], one.bias, self._work[1], two.bias, three.weight)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        torch._foreach_copy_(self._work, self._masters)

    def chain(self, out: Tensor, start: Tensor, seed: Tensor, chain: Chain, fresh: bool = True) -> None:
        """Fill start with N(0, I), where it is `fresh`, and out with the chain's end, on every row."""
        rows, s, r = len(out), chain.step_size, tiles.PRIOR_ROWS
        kernels.prior_chain[(cdiv(rows, r),)](
            out, start, seed, *self._args, rows, 0.5 * s * s, s, 0, chain.steps, self.nz, self.width, self.leak, r, fresh,
            num_warps=tiles.PRIOR_WARPS, num_stages=1,
        )  # fmt: skip

    def grad_f(self, z: Tensor, out: Tensor) -> None:
        r = tiles.PRIOR_ROWS
        kernels.energy_score[(cdiv(len(z), r),)](
            z, out, *self._args, len(z), self.nz, self.width, self.leak, r, num_warps=tiles.PRIOR_WARPS, num_stages=1
        )  # fmt: skip


class PlainPrior:
    """The same two calls for every other prior, by its closed form in PyTorch: captured, but a launch an operation."""

    def __init__(self, prior: GaussianPrior, rng: torch.Generator) -> None:
        self.prior, self.rng = prior, rng

    def refresh(self) -> None:
        pass

    def chain(self, out: Tensor, start: Tensor, seed: Tensor, chain: Chain, fresh: bool = True) -> None:
        from lebm.sampler import langevin

        if fresh:
            start.copy_(self.prior.draw_base(len(out), self.rng))
        out.copy_(langevin(self.prior.score, start, chain, self.rng))

    def grad_f(self, z: Tensor, out: Tensor) -> None:
        torch.add(self.prior.score(z), z, out=out)

"""The energy prior on Triton kernels: its score for posterior chains, and the whole prior chain in one launch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

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
    """Working copies of an EnergyPrior's weights and the launches that use them.

    Over a fitted p_0 the prior chain runs on u with the weights as they are; the score for posterior chains is one of z, so its first layer
    whitens too, and so do the Gaussians of a mixture. Their matrices are kept in float16 beside weights in bfloat16: in tensor-core products it
    is as exact as TF32, and half as much to read.
    """

    def __init__(self, prior: EnergyPrior, dtype: torch.dtype = torch.bfloat16) -> None:
        self.prior, self.nz, self.width, self.leak = prior, prior.nz, prior.config.width, prior.config.leak
        self.lean = tiles.room() < tiles.PRIOR_ROOM
        one, two, three = prior.linear()
        self._masters = [one.weight, two.weight]
        self._work = [torch.empty_like(w, dtype=dtype) for w in self._masters]
        self._args = (self._work[0], one.bias, self._work[1], two.bias, three.weight)
        self._of_z: tuple[Tensor, ...] = self._args
        if prior.fitted:
            self._one, self._shift = torch.empty_like(self._work[0]), torch.empty_like(one.bias)
            self._of_z = (self._one, self._shift, *self._args[2:])
            self._rest, self._pull = torch.empty_like(prior.root), torch.empty_like(prior.mean)  # I - S^-1 and S^-1 m
        m = prior.mixture
        self._parts = 0 if m is None else m.parts
        self._of_u: tuple[Tensor, ...] = (one.bias,) * 3  # without a mixture: never read
        self._whitened: tuple[Tensor, ...] = self._of_u
        if m is not None:
            device, dtype = one.weight.device, torch.float16 if dtype == torch.bfloat16 else dtype
            self._parts = cdiv(m.parts, self._groups[0]) * self._groups[0]  # those beyond m.parts weigh nothing
            blocks = torch.zeros(2, self._parts, 128, 128, dtype=dtype, device=device)
            shifts, constant = torch.zeros(2, self._parts, 128, device=device), torch.full((self._parts,), -1e30, device=device)
            self._of_u, self._whitened = (blocks[0], shifts[0], constant), (blocks[1], shifts[1], constant)
        self.refresh()

    @property
    def _groups(self) -> tuple[int, int]:
        return tiles.MIXTURE_LEAN if self.lean else tiles.MIXTURE

    @torch.no_grad()
    def refresh(self, beside: AbstractContextManager[Any] | None = None) -> None:
        """Working copies of the weights. Those that only the score for posterior chains reads are made `beside`, on another stream."""
        torch._foreach_copy_(self._work, self._masters)
        p, m = self.prior, self.prior.mixture
        if m is not None:
            self._keep(self._of_u, m.inverses, m.shift)
            self._of_u[2][: m.parts].copy_(m.constant)
        if p.fitted:
            with beside or nullcontext():
                one = p.linear()[0]
                first = one.weight @ p.inverse
                self._one.copy_(first)
                torch.addmv(one.bias, first, p.mean, alpha=-1, out=self._shift)
                if m is not None:
                    inverses = m.inverses @ p.inverse
                    self._keep(self._whitened, inverses, inverses @ p.mean + m.shift)
                else:
                    precision = p.inverse.T @ p.inverse
                    torch.mv(precision, p.mean, out=self._pull)
                    self._rest.copy_(precision.neg_()).diagonal().add_(1)

    def _keep(self, kept: tuple[Tensor, ...], inverses: Tensor, shift: Tensor) -> None:
        kept[0][: len(shift), : self.nz, : self.nz].copy_(inverses)
        kept[1][: len(shift), : self.nz].copy_(shift)

    def chain(self, out: Tensor, start: Tensor, seed: Tensor, chain: Chain, fresh: bool = True) -> None:
        """Fill start with draws of p_0, where it is `fresh`, and out with the chain's end, on every row."""
        rows, s, r, prior = len(out), chain.step_size, tiles.PRIOR_ROWS, self.prior
        if fresh and self._parts:  # a Gaussian of the mixture is chosen first
            kernels.draw_start[(cdiv(out.numel(), 128),)](out, start, seed, out.numel(), chain.steps, self.nz, 128)
            u = prior.place_white(start)
            prior.coloured(u, out=start)
            fresh = False
        else:
            u = start if fresh or not prior.fitted else prior.white(start)
        end = torch.empty_like(out) if prior.fitted else out  # in u
        kernels.prior_chain[(cdiv(rows, r),)](
            end, u, seed, *self._args, *self._of_u, rows, 0.5 * s * s, s, 0, chain.steps, self.nz, self.width, self.leak, r, fresh, self._parts,
            self.lean, *self._groups, num_warps=tiles.PRIOR_WARPS, num_stages=1,
        )  # fmt: skip
        if prior.fitted:
            prior.coloured(end, out=out)
            if fresh:
                start.copy_(prior.coloured(start))

    def grad_f(self, z: Tensor, out: Tensor) -> None:
        """The prior's score plus z: grad f where p_0 is N(0, I), whose -z the chain's update adds by itself."""
        r = tiles.PRIOR_ROWS
        kernels.energy_score[(cdiv(len(z), r),)](
            z, out, *self._of_z, *self._whitened, len(z), 0, self.nz, self.width, self.leak, r, self._parts, self.lean, *self._groups,
            num_warps=tiles.PRIOR_WARPS, num_stages=1,
        )  # fmt: skip
        if self.prior.fitted and not self._parts:
            out.add_(torch.addmm(self._pull, z, self._rest))


class PlainPrior:
    """The same two calls for every other prior, by its closed form in PyTorch: captured, but a launch an operation."""

    def __init__(self, prior: GaussianPrior, rng: torch.Generator) -> None:
        self.prior, self.rng = prior, rng

    def refresh(self, beside: AbstractContextManager[Any] | None = None) -> None:
        pass

    def chain(self, out: Tensor, start: Tensor, seed: Tensor, chain: Chain, fresh: bool = True) -> None:
        if fresh:
            start.copy_(self.prior.place(self.prior.draw_base(len(out), self.rng)))
        out.copy_(self.prior.walk(start, chain, self.rng))

    def grad_f(self, z: Tensor, out: Tensor) -> None:
        torch.add(self.prior.score(z), z, out=out)

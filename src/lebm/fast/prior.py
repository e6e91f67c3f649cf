"""The energy prior on Triton kernels: its score for posterior chains, and the whole prior chain in one launch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from triton import cdiv

from lebm.extensions.bases import MixtureBase, WhitenedGaussian
from lebm.extensions.tempered_chain import TemperedChain
from lebm.fast import chain_kernels as kernels
from lebm.fast import tiles
from lebm.latent_ebm import LatentEBM
from lebm.prior import EnergyNetwork, EnergyPrior, StandardNormal
from lebm.sampler import Chain

BASES = (StandardNormal, WhitenedGaussian, MixtureBase)  # exactly these: a subclass may have another density
COUNTERS = 2**31  # the kernels count their random numbers in 32 bits


def fits(prior: EnergyPrior) -> bool:
    """Two hidden layers of LeakyReLU, width up to 256, nz up to 128: the weights then stay in shared memory."""
    f = prior.energy
    if type(prior) is not EnergyPrior or type(f) is not EnergyNetwork or type(prior.base) not in BASES:
        return False
    return f.depth == 2 and f.activation == "leaky_relu" and f.width <= 256 and prior.nz <= 128


def fits_chain(chain: Chain, rows: int, nz: int) -> bool:
    """Whether the kernel can run this chain: all its steps are alike, and their random numbers can be counted."""
    tempered = isinstance(chain, TemperedChain) and (chain.first_steps or chain.noise != 1 or chain.drift_limit)
    return type(chain) in (Chain, TemperedChain) and not tempered and rows * (chain.steps + 1) * nz < COUNTERS


class FastPrior:
    """Working copies of the weights of an EnergyPrior, and the launches that use them.

    Over a whitening base the prior chain runs on u with the weights as they are. The score for posterior chains is
    that of z, so its first layer whitens too, and so do the Gaussians of a mixture. Their matrices are in float16
    beside weights in bfloat16: in products of tensor cores that is as exact as TF32, with half as much to read.
    """

    def __init__(self, prior: EnergyPrior, dtype: torch.dtype = torch.bfloat16) -> None:
        self.prior, self.base, self.energy = prior, prior.base, cast(EnergyNetwork, prior.energy)
        self.nz, self.width, self.leak = prior.nz, self.energy.width, self.energy.leak
        self.lean = tiles.room() < tiles.PRIOR_ROOM
        self.mixture = self.base.mixture if isinstance(self.base, MixtureBase) else None
        one, two, three = self.energy.linear()
        self._masters = [one.weight, two.weight]
        self._work = [torch.empty_like(w, dtype=dtype) for w in self._masters]
        self._args = (self._work[0], one.bias, self._work[1], two.bias, three.weight)
        self._of_z: tuple[Tensor, ...] = self._args
        if isinstance(self.base, WhitenedGaussian):
            self._of_z = (torch.empty_like(self._work[0]), torch.empty_like(one.bias), *self._args[2:])
            like = (self.base.root, self.base.mean)
            self._rest, self._pull = (torch.empty_like(t) for t in like)  # I - S^-1, S^-1 m
        self._components = 0
        self._of_u: tuple[Tensor, ...] = (one.bias,) * 3  # without a mixture they are never read
        self._whitened: tuple[Tensor, ...] = self._of_u
        if self.mixture is not None:  # room for whole groups of Gaussians: those beyond its components have no weight
            self._components = k = cdiv(self.mixture.components, self._groups[0]) * self._groups[0]
            half, device = torch.float16 if dtype == torch.bfloat16 else dtype, one.weight.device
            blocks = torch.zeros(2, k, 128, 128, dtype=half, device=device)
            shifts, constant = torch.zeros(2, k, 128, device=device), torch.full((k,), -1e30, device=device)
            self._of_u, self._whitened = (blocks[0], shifts[0], constant), (blocks[1], shifts[1], constant)
        self.refresh()

    @property
    def _groups(self) -> tuple[int, int]:
        return tiles.MIXTURE_LEAN if self.lean else tiles.MIXTURE

    @torch.no_grad()
    def refresh(self, stream: AbstractContextManager[Any] | None = None) -> None:
        """New working copies of the weights. Those that only posterior chains read are made on `stream`."""
        torch._foreach_copy_(self._work, self._masters)
        m, base = self.mixture, self.base
        if m is not None:
            self._copy(self._of_u, m.inverses, m.shift)
            self._of_u[2][: m.components].copy_(m.constant)
        if not isinstance(base, WhitenedGaussian):
            return
        with stream or nullcontext():
            one = self.energy.linear()[0]
            first = one.weight @ base.inverse
            self._of_z[0].copy_(first)
            torch.addmv(one.bias, first, base.mean, alpha=-1, out=self._of_z[1])
            if m is not None:
                inverses = m.inverses @ base.inverse
                self._copy(self._whitened, inverses, inverses @ base.mean + m.shift)
            else:
                precision = base.inverse.T @ base.inverse
                torch.mv(precision, base.mean, out=self._pull)
                self._rest.copy_(precision.neg_()).diagonal().add_(1)

    def _copy(self, target: tuple[Tensor, ...], inverses: Tensor, shift: Tensor) -> None:
        target[0][: len(shift), : self.nz, : self.nz].copy_(inverses)
        target[1][: len(shift), : self.nz].copy_(shift)

    def chain(self, out: Tensor, start: Tensor, seed: Tensor, chain: Chain, from_noise: bool = True) -> None:
        """Fill `out` with the ends of the chains, and `start` with draws of the base where they begin `from_noise`."""
        rows, s, base = len(out), chain.step_size, self.base
        whitens = base.root is not None
        if from_noise and self._components:  # a Gaussian of the mixture is chosen first
            total = out.numel()
            kernels.draw_start[(cdiv(total, 128),)](out, start, seed, total, chain.steps, self.nz, 128)
            u = base.transform(start)
            base.unwhiten(u, out=start)
            from_noise = False
        else:
            u = start if from_noise or not whitens else base.whiten(start)
        end = torch.empty_like(out) if whitens else out  # as u
        more = (rows, 0.5 * s * s, s, 0, chain.steps, self.nz, self.width, self.leak, tiles.PRIOR_ROWS)
        self._launch(kernels.prior_chain, rows, end, u, seed, *self._args, *self._of_u, *more, from_noise)
        if whitens:
            base.unwhiten(end, out=out)
            if from_noise:
                start.copy_(base.unwhiten(start))

    def grad_f(self, z: Tensor, out: Tensor) -> None:
        """The prior's score plus z: grad f where p_0 is N(0, I), whose -z the update of the chain adds by itself."""
        more = (len(z), 0, self.nz, self.width, self.leak, tiles.PRIOR_ROWS)
        self._launch(kernels.energy_score, len(z), z, out, *self._of_z, *self._whitened, *more)
        if self.base.root is not None and not self._components:
            out.add_(torch.addmm(self._pull, z, self._rest))

    def _launch(self, kernel: Any, rows: int, *arguments: Any) -> None:
        options = (self._components, self.lean, *self._groups)
        grid = (cdiv(rows, tiles.PRIOR_ROWS),)
        kernel[grid](*arguments, *options, num_warps=tiles.PRIOR_WARPS, num_stages=1)


class PlainPrior:
    """The same two calls for every other prior, by its closed form in PyTorch."""

    def __init__(self, method: LatentEBM, rng: torch.Generator) -> None:
        self.method, self.rng = method, rng

    def refresh(self, stream: AbstractContextManager[Any] | None = None) -> None:
        pass

    def chain(self, out: Tensor, start: Tensor, seed: Tensor, chain: Chain, from_noise: bool = True) -> None:
        if from_noise:
            start.copy_(self.method.prior.base.draw(len(out), self.rng))
        out.copy_(self.method.run_prior_chain(start, chain, self.rng))

    def grad_f(self, z: Tensor, out: Tensor) -> None:
        torch.add(self.method.prior.score(z), z, out=out)

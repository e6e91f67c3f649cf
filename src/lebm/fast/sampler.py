"""Many samples at once on CUDA: the prior chain in one launch, and the image generator in bfloat16."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lebm.core.errors import DataError
from lebm.core.progress import Progress
from lebm.core.rng import stream
from lebm.fast.prior import FastPrior, fits, fits_chain
from lebm.generators.images import ImageGenerator
from lebm.latent_ebm import LatentEBM
from lebm.method import Method
from lebm.sampler import SamplerSpec

ROWS = 10_000  # chains of one launch and one seed: fixed, so that the first samples of a seed are always the same
PIECE = 1000  # images decoded at once; always so many, because cuDNN's rounding depends on the shape


def applies(method: Method) -> bool:
    """Whether Sampler computes what the generator of this method decodes; a subclass may compute something else."""
    return type(method.generator) is ImageGenerator


class Sampler:
    """The engine behind `Method.sample` for images. It holds no copy of the weights, so it never lags behind them.

    Chains from noise that the kernel can run are run by it, with noise of its own. Otherwise the method draws z.
    """

    def __init__(self, method: Method, dtype: torch.dtype = torch.bfloat16) -> None:
        self.method, self.dtype = method, dtype

    @property
    def precision(self) -> str:
        """What a result says of its samples."""
        return str(self.dtype).removeprefix("torch.")

    @torch.no_grad()
    def sample(
        self, n: int, seed: int = 0, spec: SamplerSpec | None = None, progress: Progress | None = None
    ) -> Tensor:
        """n images on the method's device, floats in [-1, 1] of shape (n, channels, height, width)."""
        if n < 1:
            raise DataError(f"the number of samples is {n}; it must be at least 1")
        method, generator = self.method, self.method.generator
        assert isinstance(generator, ImageGenerator)
        spec = spec or method.choose("prior")
        z = self._chains(n, seed, spec) if self.runs(spec) else torch.cat(list(method.sample_z(n, seed, spec)))
        z = F.pad(z, (0, 0, 0, -n % PIECE))
        out = torch.empty(n, *generator.shape, device=z.device)
        layers = self._layers(generator)
        for i in range(0, n, PIECE):
            out[i : i + PIECE] = self._decode(z[i : i + PIECE], layers, generator.leak)[: n - i]
            if progress:
                progress(min(i + PIECE, n), n)
        return out

    def runs(self, spec: SamplerSpec) -> bool:
        """Whether the kernel draws z by this sampler."""
        method = self.method
        if type(method) is not LatentEBM or spec.start != "noise" or not fits(method.prior):
            return False
        return fits_chain(method.chain_of(spec), ROWS, method.prior.nz)

    def _chains(self, n: int, seed: int, spec: SamplerSpec) -> Tensor:
        """n draws of z by the kernel, whose noise depends on the seed and the number of the row alone."""
        method = self.method
        assert isinstance(method, LatentEBM)
        prior, chain = FastPrior(method.prior, self.dtype), method.chain_of(spec)
        z = torch.empty(n, method.prior.nz, device=method.device)
        start, number = torch.empty_like(z[:ROWS]), torch.zeros(1, dtype=torch.int64, device=z.device)
        for i in range(0, n, ROWS):
            part = z[i : i + ROWS]
            number.fill_(int(torch.randint(2**62, (), generator=stream(seed, f"fast-sample/{i // ROWS}"))))
            prior.chain(part, start[: len(part)], number, chain)
        return z

    def _layers(self, generator: ImageGenerator) -> list[Callable[[Tensor], Tensor]]:
        """The convolutions in working precision."""

        def layer(c: nn.ConvTranspose2d) -> Callable[[Tensor], Tensor]:
            weight = c.weight.detach().to(self.dtype).contiguous(memory_format=torch.channels_last)
            bias = None if c.bias is None else c.bias.detach().to(self.dtype)
            return lambda h: torch.conv_transpose2d(h, weight, bias, c.stride, c.padding)  # type: ignore[arg-type]

        return [layer(c) for c in generator.convolutions()]

    def _decode(self, z: Tensor, layers: list[Callable[[Tensor], Tensor]], leak: float) -> Tensor:
        """g(z) of one piece, as floats."""
        h = z.to(self.dtype)[:, :, None, None].contiguous(memory_format=torch.channels_last)
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            for layer in layers[:-1]:
                h = F.leaky_relu_(layer(h), leak)
            return layers[-1](h).float().tanh_()

"""Many samples at once on CUDA: the prior chain in one launch, the generator in bf16, the whole draw captured as one graph."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lebm.fast.prior import FastPrior, PlainPrior, fits
from lebm.generators import ImageGenerator
from lebm.model import LatentEBM
from lebm.rng import stream


class FastSampler:
    """sampler(seed) -> `rows` images as uint8 (n, h, w, c): K0-step chains from N(0, I), then g(z)."""

    def __init__(self, model: LatentEBM, rows: int, dtype: torch.dtype = torch.bfloat16) -> None:
        assert isinstance(model.generator, ImageGenerator)
        self.model, self.rows, self.dtype = model, rows, dtype
        device = model.device
        self.rng = stream(0, "fast-sample", device)
        self.prior = FastPrior(model.prior, dtype) if fits(model.prior) else PlainPrior(model.prior, self.rng)  # type: ignore[arg-type]
        self.z, self.start = torch.zeros(rows, model.config.nz, device=device), torch.zeros(rows, model.config.nz, device=device)
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)
        self.weights = [
            (
                c.weight.detach().to(dtype).contiguous(memory_format=torch.channels_last),
                None if c.bias is None else c.bias.detach().to(dtype),
                c.stride,
                c.padding,
            )
            for c in model.generator.convolutions()
        ]
        self._draw()  # compiles
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.rng)
        with torch.cuda.graph(self.graph):
            self.images = self._draw()

    def __call__(self, seed: int) -> Tensor:
        self.seed.fill_(seed)
        self.graph.replay()
        return self.images

    @torch.no_grad()
    def _draw(self) -> Tensor:
        assert isinstance(self.model.generator, ImageGenerator)
        self.prior.chain(self.z, self.start, self.seed, self.model.config.chains.prior)
        h = self.z.to(self.dtype)[:, :, None, None].contiguous(memory_format=torch.channels_last)
        for i, (w, b, stride, padding) in enumerate(self.weights):
            h = F.conv_transpose2d(h, w, b, stride=stride, padding=padding)  # type: ignore[arg-type]
            h = F.leaky_relu_(h, self.model.generator.leak) if i + 1 < len(self.weights) else h.float().tanh_()
        return h.add_(1).mul_(127.5).round_().to(torch.uint8).permute(0, 2, 3, 1)

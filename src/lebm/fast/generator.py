"""The image generator on Triton kernels: a forward pass to the residual, and back to z and to the weights."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton import cdiv

from lebm.fast import image_kernels as kernels
from lebm.fast import tiles
from lebm.generators.images import ImageGenerator


class FastGenerator:
    """Forward and backward of an ImageGenerator at a fixed number of rows; `refresh` casts its weights once an update.

    Parameters and gradients are in PyTorch's channels_last order, (ci, ky, kx, co), as are cuDNN's weight gradients.
    """

    def __init__(self, generator: ImageGenerator, rows: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.generator, self.rows, self.dtype = generator, rows, dtype
        self.leak, self.sigma, self.base, self.nz = generator.leak, generator.sigma, generator.base, generator.nz
        generator.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.first, *self.middle, self.last = generator.convolutions()
        self.c0, self.n = self.first.out_channels, self.base**2 * self.first.out_channels
        self.colours, self.kernel, stride = self.last.out_channels, self.last.kernel_size[0], self.last.stride[0]
        self.taps = self.kernel**2 * self.colours
        self.sides = [self.base * 2**i for i in range(len(self.middle) + 1)]  # of the maps h[0..]
        self.pixels = [rows * s**2 for s in self.sides]
        channels = [layer.out_channels for layer in (self.first, *self.middle)]
        self._ups = list(pairwise(channels))  # channels before and after each doubling
        self._last_shape = (rows, self.sides[-1], self.sides[-1], channels[-1], self.colours, stride, self.kernel)
        self.by_cudnn = [tiles.up_backward_by_cudnn(i, self.pixels[i], *pair) for i, pair in enumerate(self._ups)]
        empty = partial(torch.empty, device=self.first.weight.device, dtype=dtype)
        self._w_first, self._w_last = empty(self.nz, self.n), empty(channels[-1], self.taps)
        self._w_last_back = torch.zeros_like(empty(tiles.pad(self.taps), channels[-1]))
        self._w_up = [empty(4, 4, ci, co) for ci, co in self._ups]
        backs = zip(self._ups, self.by_cudnn, strict=True)
        self._w_back = [None if cudnn else empty(4, 4, co, ci) for (ci, co), cudnn in backs]
        self._w_cudnn = [torch.empty_like(c.weight, dtype=dtype) for c in self.middle]
        self.h, self.g = ([empty(rows, s, s, c) for s, c in zip(self.sides, channels, strict=True)] for _ in range(2))
        self.d = empty(rows, generator.size, generator.size, self.colours)
        self._columns = empty(self.pixels[-1], self.taps, dtype=torch.float32)
        self._first_back, self.split = tiles.first_backward(rows, self.nz, self.n)
        self.part = empty(self.split, rows, self.nz, dtype=torch.float32)
        self.error = empty(cdiv(self.d.numel(), tiles.FOLD_BLOCK), dtype=torch.float32)
        self.refresh()

    @torch.no_grad()
    def refresh(self, stream: AbstractContextManager[Any] | None = None) -> None:
        """New copies of the weights in the working precision and in the orders in which the kernels read them.

        Those that only the backward pass needs are made on `stream`.
        """
        last = self.last.weight.permute(0, 2, 3, 1).reshape(-1, self.taps)
        with stream or nullcontext():
            self._w_last_back[: self.taps].copy_(last.t())
            for layer, back, plain in zip(self.middle, self._w_back, self._w_cudnn, strict=True):
                if back is None:
                    plain.copy_(layer.weight)
                else:
                    back.copy_(layer.weight.permute(2, 3, 1, 0))
        self._w_first.copy_(self.first.weight.permute(0, 2, 3, 1).reshape(self.nz, -1))
        for target, layer in zip(self._w_up, self.middle, strict=True):
            target.copy_(layer.weight.permute(2, 3, 0, 1))
        self._w_last.copy_(last)

    def forward(self, z: Tensor, x: Tensor, scale: float) -> None:
        """Fill h, d = scale (x - x_hat)(1 - x_hat^2) and error, from z[rows, nz] and the stored images x (NCHW)."""
        t, rows, pixels = tiles.first_forward(self.rows, self.nz, self.n), self.rows, self.pixels
        first = (z, self._w_first, self.first.bias, self.h[0], rows, self.nz, self.n, self.c0, self.leak)
        _launch(kernels.first_forward, (cdiv(rows, t.m), cdiv(self.n, t.n)), t, *first, *t[:3])
        for i, layer in enumerate(self.middle):
            t = tiles.up_forward(pixels[i], *self._ups[i])
            maps, grid = (self.h[i], self._w_up[i], layer.bias), (cdiv(pixels[i], t.m), cdiv(self._ups[i][1], t.n), 4)
            _launch(kernels.up_forward, grid, t, *maps, self.h[i + 1], *self._up_shape(i), *t[:3])
        _, s, _, ci, *shape = self._last_shape
        t = tiles.last_columns(pixels[-1], ci, self.taps)
        last = (self.h[-1], self._w_last, self._columns, pixels[-1], ci, self.taps, tiles.pad(self.taps))
        _launch(kernels.last_columns, (cdiv(pixels[-1], t.m),), t, *last, t.m, t.k)
        fold = (self._columns, self.last.bias, x, self.d, self.error, rows, scale, s, s, *shape)
        kernels.last_fold[(len(self.error),)](*fold, x.dtype == torch.uint8, tiles.FOLD_BLOCK)

    def backward(self, to_z: bool = True) -> None:
        """From d back to `part` and to g[i], the gradients before each activation (g[0] after it, where cuDNN made it).

        The sum of `part` over dim 0 is the gradient at z.
        """
        t = tiles.last_backward(self.pixels[-1], self.last.in_channels)
        grid = (cdiv(self.pixels[-1], t.m), cdiv(self.last.in_channels, t.n))
        maps, more = (self.d, self._w_last_back, self.h[-1], self.g[-1]), (tiles.pad(self.taps), self.leak, t.m, t.n)
        _launch(kernels.last_backward, grid, t, *maps, *self._last_shape, *more)
        for i in reversed(range(len(self.middle))):
            self._up_backward(i)
        if not to_z:
            return
        t = self._first_back
        shape = (self.rows, self.nz, tiles.pad(self.nz), self.n, self.split, self.leak, self._unmasked, t.m, t.k)
        maps = (self.g[0], self.h[0], self._w_first, self.part)
        _launch(kernels.first_backward, (cdiv(self.rows, t.m), self.split), t, *maps, *shape)

    def _up_shape(self, i: int) -> tuple[float, ...]:
        return self.rows, self.sides[i], self.sides[i], *self._ups[i], self.leak

    @property
    def _unmasked(self) -> bool:
        """Whether g[0] still has to pass the first activation."""
        return bool(self.by_cudnn) and self.by_cudnn[0]

    def _up_backward(self, i: int) -> None:
        if self.by_cudnn[i]:
            with fastest():
                g = F.conv2d(self.g[i + 1].permute(0, 3, 1, 2), self._w_cudnn[i], stride=2, padding=1)
            g = g.permute(0, 2, 3, 1)
            self.g[i] = g.contiguous() if i == 0 else _masked(g, self.h[i], self.leak)
            return
        t = tiles.up_backward(self.pixels[i], *self._ups[i])
        grid = (cdiv(self.pixels[i], t.m), cdiv(self._ups[i][0], t.n))
        maps = (self.g[i + 1], self._w_back[i], self.h[i], self.g[i])
        _launch(kernels.up_backward, grid, t, *maps, *self._up_shape(i), *t[:3])

    def make_grads(self) -> None:
        """Gradient buffers in the layout of the parameters."""
        for p in self.generator.parameters():
            p.grad = torch.zeros_like(p)

    @torch.no_grad()
    def weight_gradients(self, z: Tensor, stream: AbstractContextManager[Any] | None = None) -> None:
        """Fill .grad of every parameter from h, g and d, after forward and backward at z; small ones on `stream`."""
        with stream or nullcontext():
            for layer, g in zip((*self.middle, self.last), (*self.g[1:], self.d), strict=True):
                self._bias_gradient(layer.bias, g)
            self._last_weight_gradient()
            g0 = _masked(self.g[0], self.h[0], self.leak) if self._unmasked else self.g[0]
            _grad(self.first.weight).permute(0, 2, 3, 1).copy_(
                (z.to(self.dtype).t() @ g0.view(self.rows, -1)).view(self.nz, self.base, self.base, -1)
            )
            self._bias_gradient(self.first.bias, g0)
        for i, layer in enumerate(self.middle):
            g, h = self.g[i + 1].permute(0, 3, 1, 2), self.h[i].permute(0, 3, 1, 2)
            like = self._w_cudnn[i]  # only its shape and memory order matter
            options = ([2, 2], [1, 1], [1, 1], True, [0, 0], 1, [False, True, False])
            with fastest():
                _grad(layer.weight).copy_(torch.ops.aten.convolution_backward(g, h, like, None, *options)[1])

    def _bias_gradient(self, bias: Tensor | None, g: Tensor) -> None:
        c, pixels = g.shape[-1], g.numel() // g.shape[-1]
        t, steps = tiles.column_sums(pixels, c)
        grid = (cdiv(pixels, t.m * steps), cdiv(c, t.n))
        _launch(kernels.column_sums, grid, t, g, _grad(bias).zero_(), pixels, c, steps, t.m, t.n)

    def _last_weight_gradient(self) -> None:
        ci, padded = self.last.in_channels, tiles.pad(self.taps)
        t, most = tiles.last_weights(self.pixels[-1], ci)
        blocks = cdiv(self.pixels[-1], t.k)
        programs = min(blocks, most)
        part = torch.empty(programs, ci, padded, device=self.d.device, dtype=torch.float32)
        grid, more = (programs, cdiv(ci, t.m)), (padded, cdiv(blocks, programs), t.m, t.k)
        _launch(kernels.last_weights, grid, t, self.h[-1], self.d, part, *self._last_shape, *more)
        total = part.sum(0)[:, : self.taps].view(ci, self.kernel, self.kernel, self.colours)
        _grad(self.last.weight).copy_(total.permute(0, 3, 1, 2))

    def log_px(self) -> Tensor:
        """mean log p(x|z) over the rows of the last forward."""
        d = math.prod(self.generator.shape)
        return -self.error.sum() / (2 * self.sigma**2 * self.rows) - 0.5 * d * math.log(2 * math.pi * self.sigma**2)


def _launch(kernel: Any, grid: tuple[int, ...], t: tiles.Tile, *arguments: Any) -> None:
    kernel[grid](*arguments, num_warps=t.warps, num_stages=tiles.stages(t))


def fastest() -> Any:
    """cuDNN tries its algorithms the first time that a shape comes, and goes on with the fastest."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False)


def _masked(g: Tensor, h: Tensor, leak: float) -> Tensor:
    """g back through the LeakyReLU whose output was h."""
    return torch.ops.aten.leaky_relu_backward(g, h, leak, True)


def _grad(p: Tensor | None) -> Tensor:
    assert p is not None and p.grad is not None
    return p.grad

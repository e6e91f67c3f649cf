"""The image generator on Triton kernels: a forward pass to the residual, and back to z and to the weights."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import partial
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
        self.leak, self.sigma = generator.leak, generator.sigma
        generator.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        first, *middle, last = generator.convolutions()
        self.first, self.middle, self.last = first, middle, last
        self.base, self.nz, self.c0 = generator.base, generator.nz, first.out_channels
        self.n = self.base**2 * self.c0
        self.colours, self.kernel, self.stride = last.out_channels, int(last.kernel_size[0]), int(last.stride[0])
        self.taps = self.kernel**2 * self.colours
        self.sides = [self.base * 2**i for i in range(len(middle) + 1)]  # of the maps h[0..]
        channels = [layer.out_channels for layer in (first, *middle)]
        self.by_cudnn = [
            tiles.up_backward_by_cudnn(i, self._pixels(i), c.in_channels, c.out_channels) for i, c in enumerate(middle)
        ]
        empty = partial(torch.empty, device=first.weight.device, dtype=dtype)
        self._w_first, self._w_last = empty(self.nz, self.n), empty(channels[-1], self.taps)
        self._w_last_back = torch.zeros_like(empty(tiles.pad(self.taps), channels[-1]))
        self._w_up = [empty(4, 4, c.in_channels, c.out_channels) for c in middle]
        self._w_back = [
            None if cudnn else empty(4, 4, c.out_channels, c.in_channels)
            for c, cudnn in zip(middle, self.by_cudnn, strict=True)
        ]
        self._w_cudnn = [torch.empty_like(c.weight, dtype=dtype) for c in middle]
        self.h = [empty(rows, s, s, c) for s, c in zip(self.sides, channels, strict=True)]
        self.g = [empty(rows, s, s, c) for s, c in zip(self.sides, channels, strict=True)]
        side = generator.size
        self.d = empty(rows, side, side, self.colours)
        self._columns = empty(self._pixels(-1), self.taps, dtype=torch.float32)
        self._first_back, self.split = tiles.first_backward(rows, self.nz, self.n)
        self.part = empty(self.split, rows, self.nz, dtype=torch.float32)
        self.error = empty(cdiv(self.d.numel(), tiles.FOLD_BLOCK), dtype=torch.float32)
        self.refresh()

    def _pixels(self, i: int) -> int:
        return self.rows * self.sides[i] ** 2

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
        t = tiles.first_forward(self.rows, self.nz, self.n)
        kernels.first_forward[(cdiv(self.rows, t.m), cdiv(self.n, t.n))](
            z, self._w_first, self.first.bias, self.h[0], self.rows, self.nz, self.n, self.c0, self.leak, t.m, t.n, t.k,
            **_options(t),
        )  # fmt: skip
        for i, layer in enumerate(self.middle):
            ci, co, s = layer.in_channels, layer.out_channels, self.sides[i]
            t = tiles.up_forward(self._pixels(i), ci, co)
            kernels.up_forward[(cdiv(self._pixels(i), t.m), cdiv(co, t.n), 4)](
                self.h[i], self._w_up[i], layer.bias, self.h[i + 1], self.rows, s, s, ci, co, self.leak, t.m, t.n, t.k,
                **_options(t),
            )  # fmt: skip
        s, ci = self.sides[-1], self.last.in_channels
        t = tiles.last_columns(self._pixels(-1), ci, self.taps)
        kernels.last_columns[(cdiv(self._pixels(-1), t.m),)](
            self.h[-1], self._w_last, self._columns, self._pixels(-1), ci, self.taps, tiles.pad(self.taps), t.m, t.k,
            **_options(t),
        )  # fmt: skip
        kernels.last_fold[(len(self.error),)](
            self._columns, self.last.bias, x, self.d, self.error, self.rows, scale, s, s, self.colours, self.stride,
            self.kernel, x.dtype == torch.uint8, tiles.FOLD_BLOCK,
        )  # fmt: skip

    def backward(self, to_z: bool = True) -> None:
        """From d back to `part` and to g[i], the gradients before each activation (g[0] after it, where cuDNN made it).

        The sum of `part` over dim 0 is the gradient at z.
        """
        s, ci = self.sides[-1], self.last.in_channels
        t = tiles.last_backward(self._pixels(-1), ci)
        kernels.last_backward[(cdiv(self._pixels(-1), t.m), cdiv(ci, t.n))](
            self.d, self._w_last_back, self.h[-1], self.g[-1], self.rows, s, s, ci, self.colours, self.stride,
            self.kernel, tiles.pad(self.taps), self.leak, t.m, t.n, **_options(t),
        )  # fmt: skip
        for i in reversed(range(len(self.middle))):
            self._up_backward(i)
        if not to_z:
            return
        t = self._first_back
        kernels.first_backward[(cdiv(self.rows, t.m), self.split)](
            self.g[0], self.h[0], self._w_first, self.part, self.rows, self.nz, tiles.pad(self.nz), self.n, self.split,
            self.leak, self._unmasked, t.m, t.k, **_options(t),
        )  # fmt: skip

    @property
    def _unmasked(self) -> bool:
        """Whether g[0] still has to pass the first activation."""
        return bool(self.by_cudnn) and self.by_cudnn[0]

    def _up_backward(self, i: int) -> None:
        layer, s = self.middle[i], self.sides[i]
        ci, co = layer.in_channels, layer.out_channels
        if self.by_cudnn[i]:
            with fastest():
                g = F.conv2d(self.g[i + 1].permute(0, 3, 1, 2), self._w_cudnn[i], stride=2, padding=1)
            g = g.permute(0, 2, 3, 1)
            self.g[i] = g.contiguous() if i == 0 else _masked(g, self.h[i], self.leak)
            return
        t = tiles.up_backward(self._pixels(i), ci, co)
        kernels.up_backward[(cdiv(self._pixels(i), t.m), cdiv(ci, t.n))](
            self.g[i + 1], self._w_back[i], self.h[i], self.g[i], self.rows, s, s, ci, co, self.leak, t.m, t.n, t.k,
            **_options(t),
        )  # fmt: skip

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
        out, (t, steps) = _grad(bias), tiles.column_sums(g.numel() // g.shape[-1], g.shape[-1])
        out.zero_()
        c, pixels = g.shape[-1], g.numel() // g.shape[-1]
        grid = (cdiv(pixels, t.m * steps), cdiv(c, t.n))
        kernels.column_sums[grid](g, out, pixels, c, steps, t.m, t.n, **_options(t))

    def _last_weight_gradient(self) -> None:
        s, ci, padded = self.sides[-1], self.last.in_channels, tiles.pad(self.taps)
        t, most = tiles.last_weights(self._pixels(-1), ci)
        blocks = cdiv(self._pixels(-1), t.k)
        programs = min(blocks, most)
        part = torch.empty(programs, ci, padded, device=self.d.device, dtype=torch.float32)
        kernels.last_weights[(programs, cdiv(ci, t.m))](
            self.h[-1], self.d, part, self.rows, s, s, ci, self.colours, self.stride, self.kernel, padded,
            cdiv(blocks, programs), t.m, t.k, **_options(t),
        )  # fmt: skip
        total = part.sum(0)[:, : self.taps].view(ci, self.kernel, self.kernel, self.colours)
        _grad(self.last.weight).copy_(total.permute(0, 3, 1, 2))

    def log_px(self) -> Tensor:
        """mean log p(x|z) over the rows of the last forward."""
        d = math.prod(self.generator.shape)
        return -self.error.sum() / (2 * self.sigma**2 * self.rows) - 0.5 * d * math.log(2 * math.pi * self.sigma**2)


def _options(t: tiles.Tile) -> dict[str, int]:
    return {"num_warps": t.warps, "num_stages": tiles.stages(t)}


def fastest() -> Any:
    """cuDNN tries its algorithms the first time that a shape comes, and goes on with the fastest."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False)


def _masked(g: Tensor, h: Tensor, leak: float) -> Tensor:
    """g back through the LeakyReLU whose output was h."""
    return torch.ops.aten.leaky_relu_backward(g, h, leak, True)


def _grad(p: Tensor | None) -> Tensor:
    assert p is not None and p.grad is not None
    return p.grad

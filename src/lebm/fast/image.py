"""The image generator on Triton kernels: buffers for one batch size, a forward pass to the residual, and two ways back."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from triton import cdiv

from lebm.fast import image_kernels as kernels
from lebm.fast import tiles
from lebm.generators import ImageGenerator


def relay(p: Tensor, order: tuple[int, ...]) -> Tensor:
    """Store p's memory in `order` without changing its shape or values; returns the view in which it is contiguous.

    The kernels read (ky, kx, ci, co). With the parameter itself laid out so, gradients and Adam's moments follow (they are
    elementwise) and nothing is ever transposed.
    """
    with torch.no_grad():
        p.data = p.data.permute(order).contiguous().permute(_inverse(order))
    return p.data.permute(order)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


FIRST, CONV = (0, 2, 3, 1), (2, 3, 0, 1)


class FastGenerator:
    """Forward and backward of an ImageGenerator at a fixed number of rows; weights are cast once an iteration by refresh()."""

    def __init__(self, generator: ImageGenerator, rows: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.generator, self.rows, self.dtype = generator, rows, dtype
        self.leak, self.sigma = generator.leak, generator.sigma
        first, *middle, last = generator.convolutions()
        self.first, self.middle, self.last = first, middle, last
        self.base, self.nz, self.c0 = generator.config.base, generator.nz, first.out_channels
        self.colours, self.kernel, self.stride = last.out_channels, int(last.kernel_size[0]), int(last.stride[0])
        self.sides = [self.base * 2**i for i in range(len(middle) + 1)]  # of the maps h[0..]
        self._masters = [relay(first.weight, FIRST)] + [relay(layer.weight, CONV) for layer in (*middle, last)]
        empty = lambda *shape, dtype=dtype: torch.empty(*shape, device=first.weight.device, dtype=dtype)  # noqa: E731
        self._work = [empty(*w.shape) for w in self._masters]
        channels = [layer.out_channels for layer in (first, *middle)]
        self.h = [empty(rows, s, s, c) for s, c in zip(self.sides, channels, strict=True)]
        self.g = [empty(rows, s, s, c) for s, c in zip(self.sides, channels, strict=True)]
        side = generator.config.size
        self.d = empty(rows, side, side, self.colours)
        self._first_back, self.split = tiles.first_backward(rows, self.nz, self.base**2 * self.c0)
        self.part = empty(self.split, rows, self.nz, dtype=torch.float32)
        self._last_tile = tiles.last_forward(self._pixels(-1), channels[-1])
        self.error = empty(cdiv(self._pixels(-1), self._last_tile.m), dtype=torch.float32)
        self._index = pack_index(channels[-1], self.colours, self.stride).to(first.weight.device)
        self._flat = empty(self._work[-1].numel() + 1).zero_()  # the last weights and one zero, for the packing
        self.packed = empty(9, channels[-1], 16)
        self.refresh()

    def _pixels(self, i: int) -> int:
        return self.rows * self.sides[i] ** 2

    @torch.no_grad()
    def refresh(self) -> None:
        """Working copies of the weights in the working precision."""
        torch._foreach_copy_(self._work, self._masters)
        self._flat[:-1].copy_(self._work[-1].reshape(-1))
        torch.index_select(self._flat, 0, self._index, out=self.packed.view(-1))

    def forward(self, z: Tensor, x: Tensor, scale: float) -> None:
        """Fill h, d = scale (x - x_hat)(1 - x_hat^2) and error, from z[rows, nz] and the stored images x (NCHW)."""
        n = self.base**2 * self.c0
        t = tiles.first_forward(self.rows, self.nz, n)
        kernels.first_forward[(cdiv(self.rows, t.m), cdiv(n, t.n))](
            z,
            self._work[0],
            self.first.bias,
            self.h[0],
            self.rows,
            self.nz,
            n,
            self.c0,
            self.leak,
            t.m,
            t.n,
            t.k,
            num_warps=t.warps,
            num_stages=t.stages,
        )
        for i, layer in enumerate(self.middle):
            ci, co, s = layer.in_channels, layer.out_channels, self.sides[i]
            t = tiles.up_forward(self._pixels(i), ci, co)
            kernels.up_forward[(cdiv(self._pixels(i), t.m), cdiv(co, t.n), 4)](
                self.h[i], self._work[i + 1], layer.bias, self.h[i + 1], self.rows, s, s, ci, co, self.leak, t.m, t.n, t.k,
                num_warps=t.warps, num_stages=t.stages,
            )  # fmt: skip
        t, s = self._last_tile, self.sides[-1]
        kernels.last_forward[(cdiv(self._pixels(-1), t.m),)](
            self.h[-1], self.packed, self.last.bias, x, self.d, self.error, self.rows, scale, s, s, self.last.in_channels, self.colours, self.stride,
            x.dtype == torch.uint8, t.m, t.k, num_warps=t.warps, num_stages=t.stages,
        )  # fmt: skip

    def backward(self, to_z: bool = True) -> None:
        """From d back to g[i], the gradients before each activation, and to part, whose sum over dim 0 is the gradient at z."""
        s, ci = self.sides[-1], self.last.in_channels
        t = tiles.last_backward(self._pixels(-1), ci)
        kernels.last_backward[(cdiv(self._pixels(-1), t.m), cdiv(ci, t.n))](
            self.d, self._work[-1], self.h[-1], self.g[-1], self.rows, s, s, ci, self.colours, self.stride, self.kernel, self._padded_taps(), self.leak,
            t.m, t.n, num_warps=t.warps, num_stages=t.stages,
        )  # fmt: skip
        for i, layer in reversed(list(enumerate(self.middle))):
            ci, co, s = layer.in_channels, layer.out_channels, self.sides[i]
            t = tiles.up_backward(self._pixels(i), ci, co)
            kernels.up_backward[(cdiv(self._pixels(i), t.m), cdiv(ci, t.n))](
                self.g[i + 1], self._work[i + 1], self.h[i], self.g[i], self.rows, s, s, ci, co, self.leak, t.m, t.n, t.k,
                num_warps=t.warps, num_stages=t.stages,
            )  # fmt: skip
        if to_z:
            t = self._first_back
            kernels.first_backward[(cdiv(self.rows, t.m), self.split)](
                self.g[0], self._work[0], self.part, self.rows, self.nz, tiles.pad(self.nz), self.base**2 * self.c0, self.split, t.m, t.k,
                num_warps=t.warps, num_stages=t.stages,
            )  # fmt: skip

    def _padded_taps(self) -> int:
        return tiles.pad(self.kernel**2 * self.colours)

    def make_grads(self) -> None:
        """Gradient buffers in the parameters' own layout; the weight kernels fill them."""
        for p in self.generator.parameters():
            p.grad = torch.zeros_like(p)

    @torch.no_grad()
    def weight_gradients(self, z: Tensor) -> None:
        """Fill .grad of every parameter from h, g and d (after forward and backward at z)."""
        n, steps = self.base**2 * self.c0, lambda total, block: cdiv(total, block)
        t = tiles.first_weights(self.rows, self.nz, n)
        kernels.first_weights[(cdiv(n, t.n),)](
            self.g[0], z, _grad(self.first, FIRST), self.rows, self.nz, tiles.pad(self.nz), n, steps(self.rows, t.k), t.n, t.k,
            num_warps=t.warps, num_stages=t.stages,
        )  # fmt: skip
        _sum_into(self.first.bias, self.g[0])
        for i, layer in enumerate(self.middle):
            ci, co, s = layer.in_channels, layer.out_channels, self.sides[i]
            t = tiles.up_weights(self._pixels(i), ci, co)
            assert layer.bias is not None and layer.bias.grad is not None
            layer.bias.grad.zero_()
            kernels.up_weights[(cdiv(ci, t.m), cdiv(co, t.n), 16)](
                self.h[i], self.g[i + 1], _grad(layer, CONV), layer.bias.grad, self.rows, s, s, ci, co, steps(self._pixels(i), t.k), t.m, t.n, t.k,
                num_warps=t.warps, num_stages=t.stages,
            )  # fmt: skip
        self._last_weight_gradients()

    def _last_weight_gradients(self) -> None:
        s, ci, taps = self.sides[-1], self.last.in_channels, self.kernel**2 * self.colours
        t = tiles.last_weights(self._pixels(-1), ci)
        blocks = cdiv(self._pixels(-1), t.k)
        programs = min(blocks, 128)
        part = torch.empty(programs, ci, self._padded_taps(), device=self.d.device, dtype=torch.float32)
        kernels.last_weights[(programs, cdiv(ci, t.m))](
            self.h[-1], self.d, part, self.rows, s, s, ci, self.colours, self.stride, self.kernel, self._padded_taps(), cdiv(blocks, programs), t.m, t.k,
            num_warps=t.warps, num_stages=t.stages,
        )  # fmt: skip
        total = part.sum(0)[:, :taps].view(ci, self.kernel, self.kernel, self.colours)
        assert self.last.weight.grad is not None
        self.last.weight.grad.copy_(total.permute(0, 3, 1, 2))
        _sum_into(self.last.bias, self.d)

    def log_px(self) -> Tensor:
        """mean log p(x|z) over the rows of the last forward."""
        d = math.prod(self.generator.shape)
        return -self.error.sum() / (2 * self.sigma**2 * self.rows) - 0.5 * d * math.log(2 * math.pi * self.sigma**2)


def _grad(layer: nn.ConvTranspose2d, order: tuple[int, ...]) -> Tensor:
    assert layer.weight.grad is not None
    return layer.weight.grad.permute(order)


def _sum_into(bias: Tensor | None, g: Tensor) -> None:
    assert bias is not None and bias.grad is not None
    torch.sum(g, (0, 1, 2), dtype=torch.float32, out=bias.grad)


def pack_index(ci: int, colours: int, stride: int) -> Tensor:
    """Where each entry of packed[9, ci, 16] lies in the last layer's flat (ky, kx, ci, colour) weights; the end is a zero.

    Neighbour (dy, dx) of an input pixel reaches output phase (a, b) through tap (1 + a - stride dy, 1 + b - stride dx),
    if there is one: with stride 1 a single phase and 3x3 taps, with stride 2 four phases and 4x4 taps.
    """
    kernel = 4 if stride == 2 else 3
    index = torch.full((9, ci, 16), kernel * kernel * ci * colours, dtype=torch.long)
    rows = torch.arange(ci)
    for tap in range(9):
        dy, dx = tap // 3 - 1, tap % 3 - 1
        for phase in range(stride * stride):
            ky, kx = 1 + phase // stride - stride * dy, 1 + phase % stride - stride * dx
            if 0 <= ky < kernel and 0 <= kx < kernel:
                for c in range(colours):
                    index[tap, :, phase * colours + c] = ((ky * kernel + kx) * ci + rows) * colours + c
    return index.reshape(-1)

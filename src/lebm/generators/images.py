"""The paper's image generators: transposed convolutions from z to an image in [-1, 1], and a Gaussian around it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lebm.core.errors import DataError
from lebm.core.image_sizes import default_widths, hidden_layers
from lebm.core.pixels import as_floats, as_tensor, to_pixels, to_x
from lebm.generators.base import Generator, check_rows


class ImageGenerator(Generator):
    """x = g(z) + sigma e (equation 3): a base x base map, doubled by 4x4 stride-2 layers up to the image's side.

    `widths` are the channels of the hidden layers in units of `ngf`; None is the paper's pattern. `last` is "up" for a
    last layer that doubles the side (4x4, stride 2) and "same" for one that keeps it (3x3, CIFAR-10)."""

    modality = "image"
    shape: tuple[int, int, int]

    def __init__(
        self,
        nz: int,
        size: int = 32,
        channels: int = 3,
        ngf: int = 64,
        base: int = 4,
        widths: Sequence[int] | None = None,
        last: str = "up",
        leak: float = 0.2,
        sigma: float = 0.3,
    ) -> None:
        super().__init__()
        self.nz, self.size, self.base, self.last, self.leak, self.sigma = nz, size, base, last, leak, sigma
        self.shape = (channels, size, size)
        self.widths = tuple(widths or default_widths(hidden_layers(size, base, last)))
        maps = [w * ngf for w in self.widths]
        layers = [nn.ConvTranspose2d(nz, maps[0], base)]
        layers += [nn.ConvTranspose2d(a, b, 4, stride=2, padding=1) for a, b in itertools.pairwise(maps)]
        kernel, stride = (4, 2) if last == "up" else (3, 1)
        layers.append(nn.ConvTranspose2d(maps[-1], channels, kernel, stride=stride, padding=1))
        self.layers = nn.ModuleList(layers)
        for layer in layers:
            nn.init.xavier_normal_(layer.weight)

    def convolutions(self) -> list[nn.ConvTranspose2d]:
        return [layer for layer in self.layers if isinstance(layer, nn.ConvTranspose2d)]

    def decode(self, z: Tensor) -> Tensor:
        """g(z): the mean image."""
        return self._forward(z)[-1]

    def log_prob(self, x: Tensor, z: Tensor, *masks: Any) -> Tensor:
        """log N(x; g(z), sigma^2 I), constants included, one number a row."""
        constant = 0.5 * math.prod(self.shape) * math.log(2 * math.pi * self.sigma**2)
        return -(x - self.decode(z)).square().flatten(1).sum(1) / (2 * self.sigma**2) - constant

    def error(self, x: Tensor, z: Tensor) -> Tensor:
        """Mean squared error of the reconstruction g(z), per pixel and channel."""
        return (x - self.decode(z)).square().mean()

    def score(self, x: Tensor, z: Tensor, *masks: Any) -> Tensor:
        """The gradient of log p(x|z) in z, in closed form: the input gradient of a transposed convolution is a strided
        convolution."""
        *hidden, x_hat = self._forward(z)
        g = (x - x_hat).mul_(1 - x_hat.square()).div_(self.sigma**2)
        for layer, h in zip(reversed(self.convolutions()[1:]), reversed(hidden), strict=True):
            g = torch.ops.aten.leaky_relu_backward(_adjoint(layer, g), h, self.leak, True)
        return g.permute(0, 2, 3, 1).flatten(1) @ self._first_matrix().t()

    def _first_matrix(self) -> Tensor:
        """The first layer, on a 1x1 map, is a matrix (nz, base x base x channels): the maps then lie channels-last from
        the start."""
        return self.convolutions()[0].weight.permute(0, 2, 3, 1).flatten(1)

    def _forward(self, z: Tensor) -> list[Tensor]:
        """What every layer puts out."""
        first, *rest = self.convolutions()
        base = self.base
        assert first.bias is not None
        u = torch.addmm(first.bias.repeat(base**2), z, self._first_matrix())
        out = [F.leaky_relu(u, self.leak).view(len(z), base, base, -1).permute(0, 3, 1, 2)]
        for layer in rest[:-1]:
            out.append(F.leaky_relu(_transposed(layer, out[-1]), self.leak))
        out.append(torch.tanh(_transposed(rest[-1], out[-1])))
        return out

    def flops(self, rows: int) -> float:
        """Multiply-adds, times two, of one forward pass."""
        (first, *rest), side = self.convolutions(), self.base
        total = 2.0 * first.weight.numel()
        for c in rest:
            total += 2 * side**2 * c.weight.numel()
            side *= int(c.stride[0])
        return rows * total

    def make_encoder(self, nz: int, width: int, depth: int) -> nn.Module:
        """The generator in the mirror, `width` channels in its first map."""
        from lebm.generators.encoders import ImageNet

        return ImageNet(self, nz, width)

    def as_input(self, x: Any) -> Tensor:
        """A user's images -> floats (n, channels, size, size) in [-1, 1]; uint8 is rescaled, channels-last is
        turned."""
        check_rows(x)
        return _as_images(x, self.shape).to(self.layers[0].weight.dtype)  # type: ignore[arg-type]

    def from_storage(self, rows: Tensor) -> Tensor:
        """uint8 pixels -> floats in [-1, 1]."""
        return as_floats(rows)

    def to_storage(self, x: Tensor) -> Tensor:
        """Floats in [-1, 1] -> uint8 pixels."""
        return to_pixels(x)


def _transposed(layer: nn.ConvTranspose2d, h: Tensor) -> Tensor:
    """layer(h). With few output channels the CPU's transposed convolution is slow: a matrix product and sums by index
    are faster."""
    if h.device.type != "cpu" or layer.out_channels > 4:
        return layer(h)
    meets, _, side = _indices(layer, h.shape[2])
    columns = h.permute(0, 2, 3, 1).reshape(-1, h.shape[1]) @ layer.weight.flatten(1)  # of an input pixel, one a tap
    terms = F.pad(columns.view(len(h), -1), (0, 1)).index_select(1, meets)
    out = terms.view(len(h), -1, layer.out_channels * side**2).sum(1).view(len(h), layer.out_channels, side, side)
    return out if layer.bias is None else out + layer.bias[:, None, None]


def _adjoint(layer: nn.ConvTranspose2d, g: Tensor) -> Tensor:
    """The gradient at the layer's input: a strided convolution; on a CPU with few channels patches by index and one
    matrix product."""
    if g.device.type != "cpu" or layer.out_channels > 4:
        return F.conv2d(g, layer.weight, stride=layer.stride, padding=layer.padding)
    side = (g.shape[2] + 2 * int(layer.padding[0]) - int(layer.kernel_size[0])) // int(layer.stride[0]) + 1
    _, under, _ = _indices(layer, side)
    patches = F.pad(g.flatten(1), (0, 1)).index_select(1, under).view(len(g) * side**2, -1)
    return (patches @ layer.weight.flatten(1).t()).view(len(g), side, side, -1).permute(0, 3, 1, 2)


def _indices(layer: nn.ConvTranspose2d, side: int) -> tuple[Tensor, Tensor, int]:
    return _meeting(side, int(layer.kernel_size[0]), int(layer.stride[0]), int(layer.padding[0]), layer.out_channels)


@functools.lru_cache(maxsize=32)
def _meeting(side: int, kernel: int, stride: int, padding: int, colours: int) -> tuple[Tensor, Tensor, int]:
    """Which output value lies under which (input pixel, colour, tap), both ways round; the index past the end stands
    for zero.

    First: for every output value the terms that meet there, flat in (terms, colour, y, x). Second: for every
    (input pixel, colour, tap) the output value under it. Third: the side of the output.
    """
    big = (side - 1) * stride - 2 * padding + kernel
    at = (torch.arange(side) * stride - padding)[:, None] + torch.arange(kernel)
    y, x = at.view(side, 1, 1, kernel, 1), at.view(1, side, 1, 1, kernel)
    c = torch.arange(colours).view(1, 1, colours, 1, 1)
    inside = ((y >= 0) & (y < big) & (x >= 0) & (x < big)).expand(side, side, colours, kernel, kernel)
    under = torch.where(inside, (c * big + y) * big + x, colours * big * big).flatten()
    order = under.argsort(stable=True)[: int(inside.sum())]
    target = under[order]
    rank = torch.arange(len(order)) - torch.searchsorted(target, target)  # the how-manieth term of its output value
    meets = torch.full((int(rank.max()) + 1, colours * big * big), under.numel())
    meets[rank, target] = order
    return meets.flatten(), under, big


def _as_images(x: np.ndarray | Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Images as arrays or tensors, uint8 in 0..255 or floats in [-1, 1], checked and laid out as (n, c, h, w)."""
    t = as_tensor(x)
    c, h, w = shape
    if t.ndim == 3 and (c == 1 or tuple(t.shape) in ((c, h, w), (h, w, c))):
        t = t.unsqueeze(1) if c == 1 and tuple(t.shape[1:]) == (h, w) else t.unsqueeze(0)
    if t.ndim == 4 and tuple(t.shape[1:]) == (h, w, c):
        t = t.permute(0, 3, 1, 2)
    if t.ndim != 4 or tuple(t.shape[1:]) != (c, h, w):
        raise DataError(
            f"images have shape {tuple(x.shape)}; this model takes (n, {c}, {h}, {w}) or (n, {h}, {w}, {c})"
        )
    if t.dtype == torch.uint8:
        return to_x(t)
    if not t.is_floating_point():
        raise DataError(f"images have type {t.dtype}; give uint8 pixels 0..255 or floats in [-1, 1]")
    low, high = (float(v) for v in t.aminmax())  # one pass; either is NaN where any number is
    if not math.isfinite(low + high):
        row = int((~torch.isfinite(t)).flatten(1).any(1).nonzero()[0])
        raise DataError(f"image {row} contains NaN or infinity; remove or mend such rows")
    if max(-low, high) > 1.001:
        raise DataError(
            f"image values run from {low:.4g} to {high:.4g}; floats must lie in [-1, 1] "
            "(divide 0..255 by 127.5 and subtract 1, or give uint8)"
        )
    return t if t.dtype == torch.float64 else t.to(torch.float32)

"""Encoder networks, one for each kind of generator: from x to 2 nz numbers a row, the mean and the log standard
deviation of z."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lebm.core.errors import DataError
from lebm.core.words import lengths

if TYPE_CHECKING:
    from lebm.generators.images import ImageGenerator


class ImageNet(nn.Module):
    """The image generator in the mirror: strided convolutions down to its first map, or below 8x8, and one linear layer
    to 2 nz numbers.

    From a large map that layer would have so many inputs that one update of Adam moves z by more than its spread.
    """

    def __init__(self, g: ImageGenerator, nz: int, width: int) -> None:
        super().__init__()
        self.leak, self.side = g.leak, g.size
        widths = [w * width for w in reversed(g.widths)]
        first = nn.Conv2d(g.shape[0], widths[0], *((4, 2, 1) if g.last == "up" else (3, 1, 1)))
        side = g.base
        while side >= 8:
            widths.append(widths[-1])
            side //= 2
        rest = (nn.Conv2d(a, b, 4, stride=2, padding=1) for a, b in itertools.pairwise(widths))
        self.layers = nn.ModuleList([first, *rest])
        self.head = nn.Linear(widths[-1] * side**2, 2 * nz)
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight, self.leak)  # type: ignore[arg-type]
        _start_near_normal(self.head)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.leaky_relu(layer(x), self.leak)
        with torch.autocast(x.device.type, enabled=False):  # z is float32, whatever the maps are
            return self.head(x.flatten(1).to(self.head.weight.dtype))

    def flops(self, rows: int) -> float:
        """Multiply-adds, times two, of one forward pass."""
        total, side = 2.0 * self.head.weight.numel(), self.side
        for layer in self.layers:
            side //= int(layer.stride[0])  # type: ignore[index]
            total += 2.0 * side**2 * layer.weight.numel()  # type: ignore[operator]
        return rows * total


class TextNet(nn.Module):
    """Two GRUs over the words of a sentence, one from either end; their last states give the 2 nz numbers."""

    def __init__(self, vocabulary: int, embedding: int, nz: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding)
        self.forwards, self.backwards = (nn.GRU(embedding, width, batch_first=True) for _ in range(2))
        self.head = nn.Linear(2 * width, 2 * nz)
        _start_near_normal(self.head)

    def forward(self, x: Tensor) -> Tensor:
        x = x.long()
        last = lengths(x).clamp_min(1).sub(1).unsqueeze(1)
        at = (last - torch.arange(x.shape[1], device=x.device)).clamp_min(0)  # from the end; what follows is never read
        ends = [self._end(net, words, last) for net, words in ((self.forwards, x), (self.backwards, x.gather(1, at)))]
        return self.head(torch.cat(ends, -1))

    def _end(self, net: nn.GRU, words: Tensor, last: Tensor) -> Tensor:
        h = net(self.embed(words))[0]
        return h.gather(1, last.unsqueeze(2).expand(-1, 1, h.shape[2])).squeeze(1)


class FlatNet(nn.Module):
    """The same for x of any shape, by an MLP on its flattened values; depth 0 is linear."""

    def __init__(self, size: int, nz: int, width: int, depth: int) -> None:
        super().__init__()
        sizes = [size] + [width] * depth + [2 * nz]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        _start_near_normal(self.layers[-1])

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self.layers
        first = self.layers[0]
        x = x.flatten(1).to(first.weight.dtype)  # type: ignore[arg-type]
        if x.shape[1] != first.in_features:
            raise DataError(
                f"a row of the data has {x.shape[1]} values, and the generator says {first.in_features}; "
                "make its `shape` that of a row of x"
            )
        for layer in hidden:
            x = F.silu(layer(x))
        return last(x)


def _start_near_normal(head: Any) -> None:
    """The first proposals are near N(0, I), where the paper's chains start."""
    nn.init.xavier_normal_(head.weight, 0.1)
    nn.init.zeros_(head.bias)

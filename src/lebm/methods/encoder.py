"""q_phi(z|x): networks from x to the mean and spread of a diagonal Gaussian over z."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lebm.config import Config, TextGenerator, default_widths, hidden_layers
from lebm.errors import ConfigError, DataError
from lebm.prior import log_normal
from lebm.words import lengths

LOWEST, HIGHEST = -7.0, 3.0  # of log std: keeps the likelihood of a refined z finite


class GaussianEncoder(nn.Module):
    """q(z|x) = N(mean(x), diag std(x)^2). Below it stands a network with 2 nz outputs: mean, then log std."""

    def __init__(self, net: nn.Module, nz: int) -> None:
        super().__init__()
        self.net, self.nz = net, nz

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log std."""
        made = self.net(x)
        if not isinstance(made, Tensor) or made.shape != (len(x), 2 * self.nz):
            what = f"numbers of shape {tuple(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
            raise DataError(f"the encoder makes {what} of {len(x)} rows; it must make one tensor, 2 x nz = {2 * self.nz} of each: mean, then log std")
        mean, log_std = made.chunk(2, -1)
        return mean, _between(log_std)

    def draw(self, e: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        mean, log_std = self(x)
        e = e.to(mean.dtype)
        return mean + log_std.exp() * e, log_normal(e) - log_std.sum(-1)

    def log_prob(self, z: Tensor, x: Tensor | None) -> Tensor:
        mean, log_std = self(x)
        return log_normal((z - mean) * (-log_std).exp()) - log_std.sum(-1)

    def describe(self, z0: Tensor, x: Tensor | None) -> dict[str, Tensor]:
        """Of means, not of draws: an encoder that ignores x still spreads its draws. Root mean square over coordinates, so that a few that
        x moves are not lost among many that it leaves alone."""
        mean, log_std = self(x)
        return {"q_spread": mean.var(0, correction=0).mean().sqrt(), "q_std": log_std.exp().mean()}


def _between(log_std: Tensor) -> Tensor:
    """Softly inside (LOWEST, HIGHEST), with slope 1 at 0 on either side: no gradient ever dies."""
    return torch.where(log_std < 0, LOWEST * torch.tanh(log_std / LOWEST), HIGHEST * torch.tanh(log_std / HIGHEST))


class ImageNet(nn.Module):
    """The image generator in the mirror: strided convolutions down to its first map, or below 8x8, and one linear layer to 2 nz numbers.

    From a large map that layer would have so many inputs that one update of Adam moves z by more than its spread.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        g, width = config.image, config.encoder.width
        self.leak, self.side = g.leak, g.size
        widths = [w * width for w in reversed(g.widths or default_widths(hidden_layers(g)))]
        first = nn.Conv2d(g.channels, widths[0], *((4, 2, 1) if g.last == "up" else (3, 1, 1)))
        self.layers = nn.ModuleList([first, *(nn.Conv2d(a, b, 4, stride=2, padding=1) for a, b in itertools.pairwise(widths))])
        side = g.base
        while side >= 8:
            self.layers.append(nn.Conv2d(widths[-1], widths[-1], 4, stride=2, padding=1))
            side //= 2
        self.head = nn.Linear(widths[-1] * side**2, 2 * config.nz)
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight, self.leak)  # type: ignore[arg-type]
        _quiet(self.head)

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

    def __init__(self, config: Config) -> None:
        super().__init__()
        g, width = config.generator, config.encoder.width
        assert isinstance(g, TextGenerator)
        self.embed = nn.Embedding(g.vocabulary, g.embedding)
        self.there, self.back = (nn.GRU(g.embedding, width, batch_first=True) for _ in range(2))
        self.head = nn.Linear(2 * width, 2 * config.nz)
        _quiet(self.head)

    def forward(self, x: Tensor) -> Tensor:
        x = x.long()
        last = lengths(x).clamp_min(1).sub(1).unsqueeze(1)
        turned = x.gather(1, (last - torch.arange(x.shape[1], device=x.device)).clamp_min(0))  # what follows the turned words is never looked at
        ends = [self._end(net, words, last) for net, words in ((self.there, x), (self.back, turned))]
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
        _quiet(self.layers[-1])

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self.layers
        first = self.layers[0]
        x = x.flatten(1).to(first.weight.dtype)  # type: ignore[arg-type]
        if x.shape[1] != first.in_features:
            raise DataError(
                f"a row of the data has {x.shape[1]} values, and the generator says {first.in_features}; make its `shape` that of a row of x"
            )
        for layer in hidden:
            x = F.silu(layer(x))
        return last(x)


def _quiet(head: Any) -> None:
    """Starts near N(0, I), where the paper's chains start."""
    nn.init.xavier_normal_(head.weight, 0.1)
    nn.init.zeros_(head.bias)


# generator.kind -> network. A table's is the MLP that its shape asks for
ENCODERS: dict[str, Callable[[Config], nn.Module]] = {"image": ImageNet, "text": TextNet}


def make_encoder(config: Config, generator: nn.Module, own: bool) -> GaussianEncoder:
    """For the generators of the package a network of their kind. A generator of your own may bring its own, `make_encoder(nz)`
    (a module from x to 2 nz numbers a row), or say the `shape` of a row of x and get an MLP."""
    if not own and config.generator.kind in ENCODERS:
        return GaussianEncoder(ENCODERS[config.generator.kind](config), config.nz)
    make, shape = getattr(generator, "make_encoder", None), getattr(generator, "shape", None)
    name = type(generator).__name__
    if make is not None:
        net = make(config.nz)
        if not isinstance(net, nn.Module):
            raise ConfigError(f"make_encoder({config.nz}) of the generator {name} gave a {type(net).__name__}; it must give a torch.nn.Module")
        return GaussianEncoder(net, config.nz)
    if shape is None:
        raise ConfigError(
            f"draw.posterior is {config.draw.posterior}, which needs an encoder, and the generator {name} "
            "does not say for what; give it a `shape` (of a row of x) or a method `make_encoder(nz)`"
        )
    if not isinstance(shape, list | tuple) or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ConfigError(f"the generator {name} says that its shape is {shape!r}; it must be that of a row of x, such as (64,)")
    return GaussianEncoder(FlatNet(math.prod(shape), config.nz, config.encoder.width, config.encoder.depth), config.nz)

"""Sizes of the paper's image generators, shared by the configuration and the networks."""

from __future__ import annotations

LARGEST_SIDE = 256


def doublings(size: int, base: int) -> int | None:
    """How often the first map (base x base) doubles to reach the image's side; None where it does not."""
    n = size // base if base > 0 else 0
    fits = n >= 2 and base * n == size and n & (n - 1) == 0 and size <= LARGEST_SIDE
    return n.bit_length() - 1 if fits else None


def hidden_layers(size: int, base: int, last: str) -> int:
    """Layers before the last one: the first map and its doublings, less the last doubling if the output layer makes
    it."""
    n = doublings(size, base) or 1
    return n if last == "up" else n + 1


def default_widths(layers: int) -> tuple[int, ...]:
    """Channels of the hidden layers in units of ngf, as in the paper: 8-4-2 at 32 pixels, 8-4-2-1 at 64, 16-8-4-2-1 at
    128."""
    lowest = 2 if layers <= 3 else 1
    return tuple(lowest * 2**i for i in reversed(range(layers)))

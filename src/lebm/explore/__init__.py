"""A local page to play with a model: chains, directions in z, one's own images."""

from lebm.explore.lab import Lab
from lebm.explore.server import Server

__all__ = ["Lab", "Server"]

"""A local page to play with a model: chains, directions in z, a user's own images."""

from lebm.show.explorer.lab import Lab
from lebm.show.explorer.server import Server

__all__ = ["Lab", "Server"]

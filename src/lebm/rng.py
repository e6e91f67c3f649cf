"""Named random streams from one seed. The library never touches a global seed."""

from __future__ import annotations

import hashlib

import torch


def stream(seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own for every (seed, name): the streams `data/epoch-3` and `chain` of one run are independent."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest, "big") >> 1)

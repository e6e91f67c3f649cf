"""Named random streams from one seed. The library never touches a global seed."""

from __future__ import annotations

import hashlib

import torch


def stream(seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A separate generator for every (seed, name): `data/epoch-3` and `chain` of one run are independent."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest, "big") >> 1)

"""A small text that a small grammar writes: who does what, where, when and in which mood in a village by the sea.

Its sentences have a hidden cause for latent variables to find: a scene decides which people, deeds and places
go together. The words are in text_demo.yaml.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
import yaml

from lebm.core import rng

COUNT = 3000


def sentences() -> list[str]:
    """Always the same ones, in the same order."""
    grammar = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    g = rng.stream(0, "demo")

    def one(options: Iterable[str]) -> str:
        options = list(options)
        return options[int(torch.randint(len(options), (1,), generator=g))]

    out = []
    for _ in range(COUNT):
        scene = grammar["scenes"][one(grammar["scenes"])]
        words = [one(scene["who"]), one(scene["does"]), one(scene["what"])]
        shape = int(torch.randint(4, (1,), generator=g))
        if shape in (1, 3):
            words.append(one(scene["where"]))
        if shape == 2:
            words.insert(1, "who is " + one(grammar["person"]))
        if shape >= 2:
            words.append(one(grammar["how"]))
        if shape == 3:
            words = [one(grammar["when"]), *words]
        out.append(" ".join([*words, "."]))
    return out

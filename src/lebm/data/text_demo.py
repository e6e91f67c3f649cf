"""A small text that a small grammar writes: who does what, where, when and in which mood in a village by the sea.

Its sentences have a hidden cause for latent variables to find: a scene decides which people, deeds and places
go together.
"""

from __future__ import annotations

import torch

from lebm.core import rng

COUNT = 3000
SCENES: dict[str, dict[str, list[str]]] = {
    "harbour": {
        "who": ["the fisherman", "an old sailor", "the captain", "a boy with a lantern"],
        "does": ["mends", "carries", "counts", "hides"],
        "what": ["the nets", "a rusty anchor", "the morning catch", "two wet ropes"],
        "where": ["on the pier", "beside the boats", "under the crane", "at the lighthouse"],
    },
    "kitchen": {
        "who": ["the baker", "my grandmother", "a hungry guest", "the young cook"],
        "does": ["stirs", "tastes", "cuts", "warms"],
        "what": ["the bread", "a pot of soup", "the apple cake", "some fresh herbs"],
        "where": ["in the kitchen", "by the oven", "at the long table", "near the window"],
    },
    "field": {
        "who": ["the farmer", "a tired horse", "the shepherd", "my neighbour"],
        "does": ["crosses", "watches", "guards", "leaves"],
        "what": ["the wheat", "a flock of sheep", "the stone wall", "the muddy road"],
        "where": ["behind the hill", "along the river", "below the mill", "in the valley"],
    },
    "school": {
        "who": ["the teacher", "a quiet girl", "the new pupil", "our librarian"],
        "does": ["reads", "writes", "opens", "forgets"],
        "what": ["a letter", "the blue book", "the answer", "an old map"],
        "where": ["in the classroom", "on the stairs", "at the blackboard", "in the library"],
    },
}
WHEN = ["in the morning", "after the rain", "before winter", "every sunday", "at night"]
MOOD = ["slowly", "with a smile", "without a word", "in a hurry"]


def sentences() -> list[str]:
    """Always the same ones, in the same order."""
    g = rng.stream(0, "demo")

    def one(options: list[str]) -> str:
        return options[int(torch.randint(len(options), (1,), generator=g))]

    out = []
    for _ in range(COUNT):
        scene = SCENES[one(list(SCENES))]
        words = [one(scene["who"]), one(scene["does"]), one(scene["what"])]
        shape = int(torch.randint(4, (1,), generator=g))
        if shape in (1, 3):
            words.append(one(scene["where"]))
        if shape == 2:
            words.insert(1, "who is " + one(["late", "alone", "ill"]))
        if shape >= 2:
            words.append(one(MOOD))
        if shape == 3:
            words = [one(WHEN), *words]
        out.append(" ".join([*words, "."]))
    return out

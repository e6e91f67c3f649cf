"""Modalities by name: how a kind of rows is read, batched, shown and written.

`of(generator.modality)` gives the one object that knows; nothing else branches on the modality.
"""

from __future__ import annotations

from lebm.modalities.base import Inputs, Modality
from lebm.modalities.images import Images
from lebm.modalities.table import Tables
from lebm.modalities.text import Text

MODALITIES: dict[str, Modality] = {m.name: m for m in (Images(), Text(), Tables(), Modality())}

__all__ = ["MODALITIES", "Images", "Inputs", "Modality", "Tables", "Text", "of"]


def of(name: str) -> Modality:
    """The modality that a generator names in its attribute `modality`."""
    return MODALITIES[name]

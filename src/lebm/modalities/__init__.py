"""Modalities by name: how a kind of rows is read, batched, shown and written.

`of(generator.modality)` gives the one object that knows; nothing else branches on the modality.
"""

from __future__ import annotations

from lebm.modalities.base import Inputs, Modality
from lebm.modalities.images import Images
from lebm.modalities.table import Table
from lebm.modalities.text import Text

_all = (Images("image"), Text("text"), Table("table"), Modality("other"))
MODALITIES: dict[str, Modality] = {m.name: m for m in _all}

__all__ = ["MODALITIES", "Images", "Inputs", "Modality", "Table", "Text", "of"]


def of(name: str) -> Modality:
    """The modality that a generator names in its attribute `modality`."""
    return MODALITIES[name]

"""Tables: rows of numbers in columns, shown as a scatter of their first two."""

from __future__ import annotations

from torch import Tensor

from lebm.modalities.base import Modality


class Table(Modality):
    unit = "column"

    def plane(self, x: Tensor) -> Tensor | None:
        return x[:, :2] if x.ndim == 2 and x.shape[1] >= 2 else None

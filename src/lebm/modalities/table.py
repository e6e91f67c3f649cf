"""Tables: rows of a fixed number of columns."""

from __future__ import annotations

from lebm.modalities.base import Modality


class Tables(Modality):
    name = "table"

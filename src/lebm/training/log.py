"""What a run records while it learns: log.jsonl, and TensorBoard files beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lebm.run import Run


class Log:
    """Appends rows to log.jsonl and the same numbers to TensorBoard. Rows after `resumed_at` are cut off."""

    def __init__(self, folder: Path, resumed_at: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter  # importing it takes a second

        path = folder / "log.jsonl"
        rows = [row for row in Run(folder).rows() if isinstance(row.get("step"), int) and row["step"] <= resumed_at]
        temporary = path.with_name(".tmp-log.jsonl")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
        temporary.replace(path)
        self._file = open(path, "a", encoding="utf-8")
        self._board = SummaryWriter(str(folder), purge_step=resumed_at + 1 if resumed_at else None)

    def row(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float):
                self._board.add_scalar(key, value, row["step"])

    def close(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:  # on a full disk each of these may fail; the other is closed nevertheless
            try:
                self._file.close()
            finally:
                self._board.close()

"""Checkpoints of a run: checkpoints/00001000/{tensors.safetensors, state.json}.

They survive a kill, and reading them cannot run code.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from lebm.core.errors import CheckpointError
from lebm.core.files import sha256, sync, write_synced
from lebm.core.tensors import load_tensors, pack, refuse_pickle

MAX_JSON = 64 << 20
KEEP = 3
TENSORS, STATE = "tensors.safetensors", "state.json"


def save(folder: Path, updates: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write the checkpoint after so many updates as one folder that appears by a single rename; keep the last three."""
    target = folder / f"{updates:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    if not target.exists():  # a folder under its final name is complete
        temporary = Path(tempfile.mkdtemp(dir=folder, prefix=".tmp-"))
        try:
            content = pack(tensors, {"updates": updates})
            file = {"name": TENSORS, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            write_synced(temporary / TENSORS, content)
            write_synced(temporary / STATE, json.dumps({"updates": updates, **state, "file": file}, indent=1).encode())
            sync(temporary)
            temporary.chmod(0o755)
            temporary.replace(target)
            sync(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    for old in saved_updates(folder)[:-KEEP]:  # renamed before it is removed: a kill in between leaves no half of one
        doomed = folder / f".tmp-old-{old:08d}"
        with suppress(OSError):
            (folder / f"{old:08d}").replace(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
    return target


def saved_updates(folder: Path) -> list[int]:
    """After how many updates the checkpoints in the folder were made, in order."""
    if not folder.is_dir():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdecimal() and p.is_dir())


def sweep(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for p in folder.glob(".tmp-*") if folder.is_dir() else ():
        shutil.rmtree(p) if p.is_dir() else p.unlink()


def load_latest(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint, checked against its own sha256; None where there is none yet."""
    present = saved_updates(folder)
    if not present:
        return None
    newest = folder / f"{present[-1]:08d}"
    advice = f"delete {newest} to go on from update {present[-2]}" if present[1:] else "train again in another folder"
    try:
        if (newest / STATE).stat().st_size > MAX_JSON:
            raise ValueError("too large")
        state: dict[str, Any] = json.loads((newest / STATE).read_text(encoding="utf-8"))
        expected = state["file"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"checkpoint {newest} is damaged: {STATE} is not readable; {advice}") from None
    path = newest / TENSORS
    if path.is_file():
        refuse_pickle(path)
    if not path.is_file() or sha256(path) != expected:
        raise CheckpointError(f"checkpoint {newest} is damaged: {TENSORS} does not match its checksum; {advice}")
    return load_tensors(path)[0], state

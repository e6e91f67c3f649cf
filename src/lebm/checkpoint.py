"""Files that survive a kill and cannot run code: safetensors for tensors, JSON for the rest, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from lebm.errors import CheckpointError

MAX_HEADER = 100 << 20
MAX_JSON = 64 << 20
KEEP = 3
TENSORS, STATE = "tensors.safetensors", "state.json"
PICKLE_ENDINGS = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin")


def write_atomic(path: Path, content: bytes | str) -> None:
    """Temporary file beside it, fsync, rename: a reader sees the old file or the new one, never a part."""
    write_with(path, lambda temporary: _write_synced(temporary, content.encode() if isinstance(content, str) else content))


def write_with(path: Path, write: Callable[[Path], None]) -> None:
    """The same for any writer that fills a path. The file's mode follows the umask, as for a plain open()."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-", suffix=path.suffix)
    os.close(fd)
    temporary = Path(name)
    try:
        write(temporary)
        _sync(temporary)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _write_synced(path: Path, content: bytes) -> None:
    with open(path, "wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# --- one file of tensors ------------------------------------------------------------------------------------------


def save_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    write_atomic(path, _pack(tensors, meta))


def _pack(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> bytes:
    ready = {k: t.detach().cpu().contiguous().clone() for k, t in tensors.items()}
    return safetensors.torch.save(ready, metadata={"lebm": json.dumps(meta)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file that save_tensors wrote and what was noted beside them."""
    meta = read_meta(path)
    try:
        return {k: t.clone() for k, t in safetensors.torch.load_file(path).items()}, meta  # load_file maps the file
    except (safetensors.SafetensorError, RuntimeError, ValueError) as e:
        raise CheckpointError(f"{path} is damaged ({e}); use another checkpoint or train again") from None


def refuse_pickle(path: Path) -> None:
    """A pickle can run code when it is read; nothing here ever reads one."""
    if not path.is_file():
        what = "is a folder; give a .safetensors file" if path.is_dir() else "does not exist; give a run folder or a .safetensors file"
        raise CheckpointError(f"{path} {what}")
    with open(path, "rb") as f:
        head = f.read(9)
    # A safetensors file begins with the length of its header, which may look like a pickle's first bytes, and then the header's brace.
    if (head[8:] != b"{" and (head[:2] == b"PK" or head[:1] == b"\x80")) or path.suffix in PICKLE_ENDINGS:
        raise CheckpointError(f"{path} is a pickle file (PyTorch's older format), which can run code when opened; lebm reads .safetensors only")


def read_meta(path: Path) -> dict[str, Any]:
    """What save_tensors noted, from the header of the file, length-checked before it is read."""
    refuse_pickle(path)
    size = path.stat().st_size
    with open(path, "rb") as f:
        head = f.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if length > min(MAX_HEADER, size - 8):
            raise CheckpointError(f"{path} is not a whole safetensors file (it has {size} bytes); use another checkpoint or train again")
        raw = f.read(length)
    try:
        meta = json.loads(json.loads(raw).get("__metadata__", {})["lebm"])
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise CheckpointError(f"{path} is damaged: its header is not readable; use another checkpoint or train again") from None
    except KeyError:
        raise CheckpointError(f"{path} was not written by lebm: it has tensors but no lebm header") from None
    if not isinstance(meta, dict):
        raise CheckpointError(f"{path} has a foreign lebm header; it must be a mapping")
    return meta


# --- checkpoints of a run: checkpoints/00001000/{tensors.safetensors, state.json} -----------------------------------


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write checkpoint `step` as one folder that appears by a single rename; keep the last three."""
    target = folder / f"{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    if not target.exists():  # a folder under its final name is complete
        temporary = Path(tempfile.mkdtemp(dir=folder, prefix=".tmp-"))
        try:
            content = _pack(tensors, {"step": step})
            _write_synced(temporary / TENSORS, content)
            note = {"step": step, **state, "file": {"name": TENSORS, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
            _write_synced(temporary / STATE, json.dumps(note, indent=1).encode())
            _sync(temporary)
            temporary.chmod(0o755)
            temporary.replace(target)
            _sync(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    for old in steps(folder)[:-KEEP]:
        gone = folder / f".tmp-old-{old:08d}"  # renamed first: a kill in the middle leaves no half of a checkpoint
        try:
            (folder / f"{old:08d}").replace(gone)
        except OSError:
            continue
        shutil.rmtree(gone, ignore_errors=True)
    return target


def steps(folder: Path) -> list[int]:
    """The steps of the checkpoints present, in order."""
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdecimal() and p.is_dir()) if folder.is_dir() else []


def sweep(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for p in folder.glob(".tmp-*") if folder.is_dir() else ():
        shutil.rmtree(p) if p.is_dir() else p.unlink()


def load_latest(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint, checked against its own sha256; None where there is none yet."""
    found = steps(folder)
    if not found:
        return None
    newest = folder / f"{found[-1]:08d}"
    advice = f"delete {newest} to go on from step {found[-2]}" if len(found) > 1 else "train again in another folder"
    try:
        if (newest / STATE).stat().st_size > MAX_JSON:
            raise ValueError("too large")
        state = json.loads((newest / STATE).read_text(encoding="utf-8"))
        expected = state["file"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"checkpoint {newest} is damaged: {STATE} is not readable; {advice}") from None
    path = newest / TENSORS
    if path.is_file():
        refuse_pickle(path)
        with open(path, "rb") as f:
            actual = hashlib.file_digest(f, "sha256").hexdigest()
    if not path.is_file() or actual != expected:
        raise CheckpointError(f"checkpoint {newest} is damaged: {TENSORS} does not match its checksum; {advice}")
    return load_tensors(path)[0], state

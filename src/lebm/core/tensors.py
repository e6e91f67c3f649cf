"""One file of tensors: safetensors, with JSON facts in its header. Reading such a file cannot run code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lebm.core.errors import CheckpointError, one_line
from lebm.core.files import write_atomic

PICKLE_ENDINGS = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin")
ADVICE = "use another checkpoint or train again"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write the tensors and the facts `meta` (plain JSON) as one safetensors file."""
    write_atomic(path, pack(tensors, meta))


def pack(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> bytes:
    """The content of such a file."""
    import safetensors.torch

    ready = {k: t.detach().cpu().contiguous().clone() for k, t in tensors.items()}
    return safetensors.torch.save(ready, metadata={"lebm": json.dumps(meta)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the facts of a file that save_tensors wrote."""
    import safetensors.torch

    meta = read_meta(path)
    # The file is memory-mapped when it is read, so the tensors are copied out of it.
    return {k: t.clone() for k, t in safetensors.torch.load_file(path).items()}, meta


def refuse_pickle(path: Path) -> None:
    """Raise for a pickle file, which can run code when it is read, and for a path that is no file."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder; give a .safetensors file")
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist; give a run folder or a .safetensors file")
    with open(path, "rb") as f:
        head = f.read(9)
    # A safetensors file begins with the length of its header, which may look like the first bytes of a pickle,
    # and then with the header's brace.
    if (head[8:] != b"{" and (head[:2] == b"PK" or head[:1] == b"\x80")) or path.suffix in PICKLE_ENDINGS:
        raise CheckpointError(
            f"{path} is a pickle file (PyTorch's older format), which can run code when opened; "
            "lebm reads .safetensors only"
        )


def read_meta(path: Path) -> dict[str, Any]:
    """The facts that save_tensors wrote. The whole header is checked: it may not be long, and the file must be."""
    from safetensors import SafetensorError, safe_open

    refuse_pickle(path)
    try:
        with safe_open(path, "numpy") as f:
            facts = (f.metadata() or {}).get("lebm")
        meta = None if facts is None else json.loads(facts)
    except (SafetensorError, ValueError, RecursionError) as e:
        raise CheckpointError(
            f"{path} is damaged or not a whole safetensors file: its header cannot be read ({one_line(e)}); {ADVICE}"
        ) from None
    if facts is None:
        raise CheckpointError(f"{path} was not written by lebm: it has tensors but no lebm header")
    if not isinstance(meta, dict):
        raise CheckpointError(f"{path} has a foreign lebm header; it must be a mapping")
    return meta

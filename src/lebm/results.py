"""The form of every published number: who measured what, on which data, with which code and command."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from lebm import checkpoint

KEYS = ("experiment", "metrics", "per_seed", "protocol", "data", "config", "seed", "steps", "device", "seconds", "code", "command")


def result(**values: Any) -> dict[str, Any]:
    """A result with every key of the schema; what was not given is null, what is not in the schema an error."""
    unknown = set(values) - set(KEYS)
    if unknown:
        raise KeyError(f"not in the schema of a result: {sorted(unknown)}")
    values.setdefault("code", code_version())
    values.setdefault("command", command())
    return {k: values.get(k) for k in KEYS}


def write(path: Path, values: dict[str, Any]) -> None:
    checkpoint.write_atomic(path, json.dumps(_finite(values), indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """NaN and infinity are not JSON; they become null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def code_version() -> str:
    """The commit, marked where the tree differs from it; the sha256 of the source where there is no git."""
    src = Path(__file__).resolve().parent
    try:
        git = lambda *a: subprocess.run(["git", "-C", str(src), *a], capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: E731
        if git("ls-files", "--error-unmatch", str(Path(__file__).resolve())):
            return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", str(src)) else "")
    except (OSError, subprocess.SubprocessError):
        pass
    digest = hashlib.sha256()
    for p in sorted(src.rglob("*")):
        if p.suffix in (".py", ".yaml", ".html", ".css"):
            digest.update(p.relative_to(src).as_posix().encode() + b"\0" + p.read_bytes())
    return f"sha256:{digest.hexdigest()}"


def command() -> str:
    """How the program was called."""
    name = Path(sys.argv[0]).name
    return shlex.join(["lebm" if name in ("lebm", "__main__.py") else name, *sys.argv[1:]])


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"

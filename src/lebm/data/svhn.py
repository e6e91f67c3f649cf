"""SVHN, cropped digits, from the official .mat files."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from lebm.core.errors import DataError, one_line
from lebm.core.files import GIB, check_regular_size, sha256
from lebm.core.progress import Progress
from lebm.data.cache import Decoded, cached, read_parts
from lebm.data.splits import FACTS, Config, Splits, described, in_folder

FILES: dict[str, str] = FACTS["svhn"]["download"]["files"]  # name -> sha256
MAX_IMAGES = 1_000_000
SECONDS = 600  # at most for the conversion of a file that is not the official one
# SciPy can crash the whole process on a damaged file, or allocate what the file declares. So a file whose checksum is
# not the official one is read in another process, after its declared sizes were checked there.
CONVERT = """
import math, sys, numpy, scipy.io
source, target, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
except (ImportError, OSError, ValueError):
    pass
shapes = {name: shape for name, shape, kind in scipy.io.whosmat(source) if name in ("X", "y")}
for name, shape in shapes.items():
    if min(shape) < 0 or math.prod(shape) > limit:
        sys.exit(f"{name} declares the shape {shape}")
arrays = scipy.io.loadmat(source, variable_names=list(shapes))
numpy.savez(target, **{name: arrays[name] for name in shapes})
"""


def read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) and labels 0..9: the file stores the digit 0 as class 10."""
    from scipy.io import loadmat

    check_regular_size(path, 4 * GIB)
    try:
        official = sha256(path) == FILES.get(path.name)
        parts = loadmat(path, variable_names=["X", "y"]) if official else _read_foreign(path)
    except (OSError, ValueError, TypeError, MemoryError) as e:
        raise DataError(f"{path} is no readable MATLAB 5 file ({one_line(e)}); fetch it again") from None
    x, y = (parts.get(name, np.empty(0)) for name in ("X", "y"))
    images = x.ndim == 4 and x.shape[:3] == (32, 32, 3) and x.dtype == np.uint8
    if not images or not 0 < y.size == x.shape[3] or not np.isin(y, np.arange(1, 11)).all():
        held = {name: parts[name] for name in ("X", "y") if name in parts}
        names = ", ".join(f"{name} {part.shape} of {part.dtype}" for name, part in held.items()) or "neither"
        raise DataError(
            f"{path} should hold X (32, 32, 3, n) of uint8 and y (n, 1) with labels 1..10, and holds {names}; "
            "fetch it again"
        )
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y.reshape(-1).astype(np.int64) % 10


def _read_foreign(path: Path) -> dict[str, np.ndarray]:
    """The arrays X and y, as numbers, by way of a .npz file that another process writes."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "arrays.npz"
        call = [sys.executable, "-P", "-c", CONVERT, str(path.absolute()), str(target), str(MAX_IMAGES * 32 * 32 * 3)]
        try:
            done = subprocess.run(call, capture_output=True, text=True, errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise ValueError("reading it takes too long") from None
        if done.returncode:
            raise ValueError((done.stderr.strip() or "it is damaged").splitlines()[-1])
        with np.load(target, allow_pickle=False) as parts:
            return dict(parts)


def load_svhn(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """73,257 training and 26,032 test images with their labels, decoded once and then read from the cache."""
    folder = SVHN.place(root)
    paths = [folder / name for name in FILES]
    rows = cached(folder, "svhn-32x3", paths, lambda: Decoded.of(read_parts(paths, read_mat, progress)))
    return rows.splits(str(folder))


SVHN = described("svhn", load_svhn, in_folder("svhn", "SVHN", ".", files=FILES))
DATASETS = (SVHN,)

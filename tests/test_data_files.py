"""A user's own pictures and arrays: what is read, and what is refused in one sentence."""

import os
import struct
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from lebm.config import resolve
from lebm.core import rng
from lebm.core.errors import DataError
from lebm.data import load, user_images
from lebm.data.arrays import read_images
from lebm.data.pictures import decode, decode_all
from lebm.modalities.images import read_images as read_inputs

COLOUR, GREY = (3, 8, 8), (1, 8, 8)
RANDOM = np.random.default_rng(5)
PIXELS = RANDOM.integers(0, 256, (8, 8, 3), dtype=np.uint8)


def refused(what, *parts):
    """The call fails with a DataError in one line that contains all the parts."""
    with pytest.raises(DataError) as e:
        what()
    message = str(e.value)
    assert "\n" not in message and all(str(p) in message for p in parts), message


# --- pictures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.png", "b.webp"])
def test_a_fitting_picture_is_taken_as_it_is(tmp_path, name):
    Image.fromarray(PIXELS).save(tmp_path / name, lossless=True)
    assert np.array_equal(decode(tmp_path / name, COLOUR), PIXELS.transpose(2, 0, 1))
    grey = decode(tmp_path / name, GREY)
    assert grey.shape == GREY and np.abs(grey[0] - PIXELS @ [0.299, 0.587, 0.114]).max() <= 1


def test_jpeg(tmp_path):
    Image.new("RGB", (8, 8), (200, 40, 90)).save(tmp_path / "a.JPG", quality=95)
    assert np.abs(decode(tmp_path / "a.JPG", COLOUR).reshape(3, -1).astype(int) - [[200], [40], [90]]).max() <= 3


def test_centre_crop_and_resize(tmp_path):
    wide = np.zeros((8, 12, 3), np.uint8)
    wide[:, 2:10] = PIXELS
    wide[:, :2] = wide[:, 10:] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert np.array_equal(decode(tmp_path / "wide.png", COLOUR), PIXELS.transpose(2, 0, 1))
    Image.fromarray(np.repeat(np.repeat(wide, 2, 0), 2, 1)).save(tmp_path / "double.png")
    want = np.asarray(
        Image.fromarray(np.repeat(np.repeat(PIXELS, 2, 0), 2, 1)).resize((8, 8), Image.Resampling.BILINEAR)
    )
    edge = np.s_[:, 1:-1, 1:-1]  # resampling a crop may look past its rim
    assert (
        np.abs(
            decode(tmp_path / "double.png", COLOUR)[edge].astype(int) - want.transpose(2, 0, 1)[edge].astype(int)
        ).max()
        <= 1
    )


def test_kinds_of_pictures(tmp_path):
    path = tmp_path / "a.png"
    grey = PIXELS[:, :, 0]

    Image.fromarray(grey).save(path)
    assert np.array_equal(decode(path, GREY)[0], grey) and np.array_equal(decode(path, COLOUR), np.stack([grey] * 3))

    Image.fromarray(grey.astype(np.uint16) * 257).save(path)  # 16-bit grey: 255 * 257 = 65535
    assert np.array_equal(decode(path, GREY)[0], grey) and np.array_equal(decode(path, COLOUR), np.stack([grey] * 3))

    Image.fromarray(grey > 127).save(path)  # one bit
    assert np.array_equal(decode(path, GREY)[0], np.where(grey > 127, 255, 0))

    palette = Image.fromarray(grey % 4).convert("P")
    palette.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90, 200, 210, 220])
    palette.save(path)
    table = np.array([[10, 20, 30], [40, 50, 60], [70, 80, 90], [200, 210, 220]])
    assert np.array_equal(decode(path, COLOUR), np.asarray(palette.convert("RGB")).transpose(2, 0, 1))
    assert {tuple(p) for p in decode(path, COLOUR).reshape(3, -1).T.tolist()} <= {tuple(t) for t in table.tolist()}

    palette.save(path, transparency=bytes([0, 255, 255, 255]))
    seen = np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    hidden = (seen == np.array([10, 20, 30])[:, None, None]).all(0)
    assert np.array_equal(decode(path, COLOUR), np.where(hidden, 0, seen))


def test_transparency_lies_over_black(tmp_path):
    alpha = np.zeros((8, 8), np.uint8)
    alpha[:4], alpha[0] = 255, 128
    Image.fromarray(np.dstack([PIXELS, alpha])).save(tmp_path / "a.png")
    got = decode(tmp_path / "a.png", COLOUR).transpose(1, 2, 0)
    assert np.array_equal(got[1:4], PIXELS[1:4]) and not got[4:].any()
    assert np.abs(got[0] - PIXELS[0] * (128 / 255)).max() <= 1
    Image.fromarray(np.dstack([PIXELS[:, :, 0], alpha])).save(tmp_path / "la.png")
    got = decode(tmp_path / "la.png", GREY)[0]
    assert np.array_equal(got[1:4], PIXELS[1:4, :, 0]) and not got[4:].any()


def test_exif_orientation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    Image.fromarray(PIXELS).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(decode(tmp_path / "a.png", COLOUR), np.rot90(PIXELS, -1).transpose(2, 0, 1))


def png(width, height):
    """A picture file that only claims to be so large."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0" * 100)
    parts = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (chunk, data, b"IEND")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(("side", "message"), [(8200, "64 million"), (11_000, "64 million"), (60_000, "64 million")])
def test_bombs_are_refused_unopened(tmp_path, side, message):
    (tmp_path / "bomb.png").write_bytes(png(side, side))
    refused(lambda: decode(tmp_path / "bomb.png", COLOUR), tmp_path / "bomb.png", message)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_truncated_pictures_are_named(tmp_path, kind):
    big = Image.fromarray(RANDOM.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    path = tmp_path / "a.png"
    big.save(path, format=kind)
    whole = path.read_bytes()
    for keep in (0, 3, 20, 100, len(whole) // 2):
        path.write_bytes(whole[:keep])
        refused(lambda: decode(path, COLOUR), path, "cannot be decoded")


def test_other_formats_are_not_tried(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "a.png", format="BMP")
    refused(lambda: decode(tmp_path / "a.png", COLOUR), "no PNG, JPEG or WebP")
    (tmp_path / "b.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n")
    refused(lambda: decode(tmp_path / "b.png", COLOUR), "no PNG, JPEG or WebP")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    refused(lambda: decode_all([tmp_path / "a.png"], COLOUR), "not a regular file")


# --- arrays -------------------------------------------------------------------------------------------------------


def test_layouts_and_types(tmp_path):
    path, x = tmp_path / "a.npy", RANDOM.integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)
    for stored in (x, x.transpose(0, 2, 3, 1), np.asfortranarray(x), x.astype(np.int64), x.astype(">u2")):
        np.save(path, stored)
        got = read_images(path, COLOUR)
        assert got.dtype == np.uint8 and got.flags.writeable and np.array_equal(got, x)
    for stored in (x[0], x[0].transpose(1, 2, 0)):
        np.save(path, stored)
        assert np.array_equal(read_images(path, COLOUR), x[:1])
    grey = x[:, :1]
    for stored in (grey, grey[:, 0], grey.transpose(0, 2, 3, 1)):
        np.save(path, stored)
        assert np.array_equal(read_images(path, GREY), grey) and np.array_equal(
            read_images(path, COLOUR), grey.repeat(3, 1)
        )
    np.save(path, grey[0, 0])
    assert np.array_equal(read_images(path, GREY), grey[:1])
    np.save(path, x)
    assert np.abs(read_images(path, GREY)[:, 0] - np.tensordot(x, [0.299, 0.587, 0.114], (1, 0))).max() <= 0.51


def test_floats(tmp_path):
    x = RANDOM.uniform(-1, 1, (4, 3, 8, 8))
    for dtype in (np.float16, np.float32, np.float64):
        np.save(tmp_path / "a.npy", x.astype(dtype))
        got = read_images(tmp_path / "a.npy", COLOUR)
        assert got.dtype == np.float32 and np.array_equal(got, x.astype(dtype).astype(np.float32))


def test_npz_names(tmp_path):
    path, x, other = tmp_path / "a.npz", RANDOM.integers(0, 256, (2, 3, 8, 8), dtype=np.uint8), np.zeros(3)
    for parts in ({"whatever": x}, {"x": x, "y": other}, {"images": x, "labels": other}, {"arr_0": x, "arr_1": other}):
        for save in (np.savez, np.savez_compressed):
            save(path, **parts)
            assert np.array_equal(read_images(path, COLOUR), x)
    np.savez(path, faces=x, cats=x)
    refused(lambda: read_images(path, COLOUR), path, "cats, faces", "x, images, arr_0")
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("readme.txt", "hello")
    refused(lambda: read_images(path, COLOUR), "holds no arrays")


def test_bad_arrays(tmp_path):
    good = np.zeros((3, 3, 8, 8), np.float32)
    nan, big, ragged = good.copy(), good * 0 + 255, np.empty(2, dtype=object)
    nan[1, 0, 2, 2] = np.nan
    ragged[:] = [np.zeros(2), np.zeros(3)]
    cases = [
        (nan, "image 1 of", "NaN"),
        (big, "floats from 255 to 255", "[-1, 1]"),
        (good.astype(int) - 1, "from -1 to -1", "0..255"),
        (good.astype(int) + 256, "from 256 to 256"),
        (ragged, "Python objects"),
        (good.astype(complex), "complex128"),
        (good > 0, "bool"),
        (good[:0], "no images"),
        (np.zeros((2, 2, 3, 8, 8)), "(2, 2, 3, 8, 8)"),
        (np.zeros(192), "(192,)"),
        (np.zeros((2, 192), np.uint8), "(2, 192)", "(n, 3, 8, 8)"),
        (np.zeros((4, 3, 16, 16), np.uint8), "(4, 3, 16, 16)", "--set generator.size=16 --set generator.base=4"),
        (np.zeros((4, 28, 28), np.uint8), "--set generator.size=28 --set generator.base=7"),
        (np.zeros((4, 8, 8, 4), np.uint8), "1 or 3 channels"),
        (np.zeros((4, 3, 8, 9), np.uint8), "8x8"),
        (np.array(["a"]), "<U1"),
        (np.zeros(2, dtype=[("r", "u1")]), "type"),
    ]
    for array, *parts in cases:
        np.save(tmp_path / "a.npy", array, allow_pickle=True)
        refused(lambda: read_images(tmp_path / "a.npy", COLOUR), tmp_path / "a.npy", *parts)
        np.savez(tmp_path / "a.npz", array)
        refused(lambda: read_images(tmp_path / "a.npz", COLOUR), tmp_path / "a.npz", *parts)


def header(shape, dtype="|u1"):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (118 - len(text) - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def test_damaged_array_files(tmp_path):
    lie = header((10**12, 3, 8, 8)) + b"\0" * 1000
    for raw, part in [
        (b"", "readable"),
        (b"not numpy at all", "readable"),
        (lie, "truncated"),
        (header((2, 3, 8, 8)), "truncated"),
        (lie[:40], "readable"),
    ]:
        (tmp_path / "a.npy").write_bytes(raw)
        refused(lambda: read_images(tmp_path / "a.npy", COLOUR), tmp_path / "a.npy", part)
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as z:
            z.writestr("x.npy", raw)
        refused(lambda: read_images(tmp_path / "a.npz", COLOUR), tmp_path / "a.npz", part)
        (tmp_path / "b.npz").write_bytes(raw)
        refused(lambda: read_images(tmp_path / "b.npz", COLOUR), "b.npz is not a readable .npz")
    np.savez_compressed(tmp_path / "c.npz", x=RANDOM.integers(0, 256, (9, 3, 8, 8), dtype=np.uint8))
    raw = bytearray((tmp_path / "c.npz").read_bytes())
    raw[400:420] = bytes(20)
    (tmp_path / "c.npz").write_bytes(raw)
    refused(lambda: read_images(tmp_path / "c.npz", COLOUR), "c.npz is not a readable .npz")


def test_a_zip_bomb_is_refused_by_its_declared_size(tmp_path, monkeypatch):
    from lebm.data import arrays

    monkeypatch.setattr(arrays, "MAX_BYTES", 100_000)
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 3, 8, 8), np.uint8))
    assert (tmp_path / "a.npz").stat().st_size < 10_000
    refused(lambda: read_images(tmp_path / "a.npz", COLOUR), "unpacks to 192128 bytes")
    np.save(tmp_path / "a.npy", np.zeros((1000, 3, 8, 8), np.uint8))
    refused(lambda: read_images(tmp_path / "a.npy", COLOUR), "has 192128 bytes")


# --- read_inputs --------------------------------------------------------------------------------------------------


def both(*given):
    inputs = read_inputs(*given)
    return inputs.rows, inputs.names


def write_folder(folder, n=4):
    (folder / "sub").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for i in range(n):
        Image.new("L", (8, 8), i).save((folder / "sub" if i % 2 else folder) / f"{i}.png")
    Image.new("L", (8, 8), 99).save(folder / ".hidden/x.png")
    (folder / "notes.txt").write_text("not a picture")
    return folder


def test_inputs_from_folders_and_files(tmp_path):
    folder = write_folder(tmp_path / "f")
    seen = []
    images, names = both([folder], GREY, lambda done, total: seen.append((done, total)))
    assert (
        names == ["0.png", "2.png", "sub/1.png", "sub/3.png"]
        and images[:, 0, 0, 0].tolist() == [0, 2, 1, 3]
        and seen == [(4, 4)]
    )
    assert images.dtype == torch.uint8 and images.shape == (4, 1, 8, 8)
    images, names = both([folder / "sub/3.png", folder / "0.png"], GREY)
    assert names == ["3.png", "0.png"] and images[:, 0, 0, 0].tolist() == [3, 0]
    Image.new("L", (8, 8), 50).save(tmp_path / "0.png")
    assert read_inputs([folder / "0.png", tmp_path / "0.png"], GREY).names == [
        str(folder / "0.png"),
        str(tmp_path / "0.png"),
    ]


def test_inputs_from_arrays(tmp_path):
    np.save(tmp_path / "a.npy", np.full((2, 8, 8), 7, np.uint8))
    images, names = both([tmp_path / "a.npy"], GREY)
    assert names == ["a.npy[0]", "a.npy[1]"] and images.dtype == torch.uint8 and int(images.min()) == 7
    np.savez(tmp_path / "a.npz", np.full((1, 8, 8), -0.5))
    images, names = both([tmp_path / "a.npz"], GREY)
    assert names == ["a.npz[0]"] and images.dtype == torch.float32 and images.unique().tolist() == [-0.5]


def test_bad_inputs(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    np.save(tmp_path / "a.npy", np.zeros((2, 8, 8), np.uint8))
    refused(lambda: read_inputs([], GREY), "no input")
    refused(lambda: read_inputs([tmp_path / "none.png"], GREY), tmp_path / "none.png", "does not exist")
    refused(lambda: read_inputs([tmp_path / "empty"], GREY), tmp_path / "empty", "no pictures")
    refused(lambda: read_inputs([tmp_path / "notes.txt"], GREY), tmp_path / "notes.txt", "no PNG, JPEG or WebP")
    refused(lambda: read_inputs([tmp_path / "a.npy", tmp_path / "notes.txt"], GREY), "alone")


# --- the set `images` ---------------------------------------------------------------------------------------------


def config(path, size=8, channels=1, **more):
    values = {"data.name": "images", "data.path": None if path is None else str(path)}
    return resolve(values | {"generator.size": size, "generator.channels": channels} | more)


def test_images_from_an_array(tmp_path):
    x = np.arange(20, dtype=np.uint8)[:, None, None] * np.ones((8, 8), np.uint8)
    np.save(tmp_path / "a.npy", x)
    s = load(config(tmp_path / "a.npy", **{"data.test_fraction": 0.25}))
    order = torch.randperm(20, generator=rng.stream(0, "split")).tolist()
    assert s.test[:, 0, 0, 0].tolist() == order[:5] and s.train[:, 0, 0, 0].tolist() == order[5:]
    np.save(tmp_path / "f.npy", x / 127.5 - 1)
    assert torch.equal(load(config(tmp_path / "f.npy", **{"data.test_fraction": 0.25})).train, s.train)
    np.save(tmp_path / "f.npy", x / 255)
    refused(lambda: load(config(tmp_path / "f.npy")), "looks like [0, 1]")


def test_images_from_a_folder(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "f", 6)
    values = [0, 2, 4, 1, 3, 5]  # by path: 0.png 2.png 4.png sub/1.png ...
    order = torch.randperm(6, generator=rng.stream(0, "split")).tolist()
    for _ in range(2):
        s = load(config(folder))
        assert s.test[:, 0, 0, 0].tolist() == [values[i] for i in order[:1]] and s.train[:, 0, 0, 0].tolist() == [
            values[i] for i in order[1:]
        ]
        assert not (folder / ".lebm-cache").exists()
    monkeypatch.setattr(user_images, "CACHE_FROM", 3)
    for _ in range(2):
        assert torch.equal(load(config(folder)).train, s.train) and (folder / ".lebm-cache").is_dir()
    assert torch.equal(load(config("f"), tmp_path).train, s.train)  # also under the data folder


def test_bad_image_sets(tmp_path):
    folder = tmp_path / "f"
    folder.mkdir()
    Image.new("L", (8, 8), 1).save(folder / "a.png")
    refused(lambda: load(config(None)), "--set data.path=PATH")
    refused(lambda: load(config(tmp_path / "none")), "does not exist")
    refused(lambda: load(config(folder)), "one image", "at least two")
    refused(lambda: load(config(folder / "a.png")), "give the folder that holds it")
    (folder / "b.png").write_bytes(b"broken")
    refused(lambda: load(config(folder)), folder / "b.png", "remove this file")
    (tmp_path / "x.txt").write_text("hello")
    refused(lambda: load(config(tmp_path / "x.txt")), "x.txt", "give a folder of pictures")

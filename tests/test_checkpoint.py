"""Files that survive a kill and cannot run code."""

import errno
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lebm.config import resolve
from lebm.config.build import build
from lebm.core import files
from lebm.core.errors import CheckpointError, UserError
from lebm.core.tensors import load_tensors, save_tensors
from lebm.run import load, save
from lebm.training import checkpoint

TINY = resolve("digits", ["generator.ngf=2", "method.energy.width=4", "nz=3"])
TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones((), dtype=torch.uint8)}
NOTE = {"updates": 3, "words": "β"}


def refused(what, *parts):
    with pytest.raises(CheckpointError) as e:
        what()
    message = str(e.value)
    assert "\n" not in message and all(str(p) in message for p in parts), message


def litter(folder):
    return [p.name for p in folder.rglob("*") if p.name.startswith(".")]


class Canary:
    """Unpickling this makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


# --- atomic -------------------------------------------------------------------------------------------------------


def test_a_file_is_written_whole_with_the_usual_rights(tmp_path):
    files.write_atomic(tmp_path / "new" / "a.txt", "β")
    plain = tmp_path / "plain"
    plain.touch()
    assert (tmp_path / "new" / "a.txt").read_bytes() == "β".encode()
    assert (tmp_path / "new" / "a.txt").stat().st_mode == plain.stat().st_mode
    assert not litter(tmp_path)


@pytest.mark.parametrize("broken", ["fsync", "replace", "write"])
def test_a_failure_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, broken):
    target = tmp_path / "model.safetensors"
    save_tensors(target, TENSORS, NOTE)
    before = target.read_bytes()

    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    if broken == "write":
        monkeypatch.setattr(files, "write_synced", fail)
        monkeypatch.setattr(checkpoint, "write_synced", fail)
    else:
        monkeypatch.setattr(Path if broken == "replace" else os, broken, fail)
    with pytest.raises(OSError, match="No space"):
        save_tensors(target, {"a": torch.zeros(9)}, NOTE)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path / "checkpoints", 5, TENSORS, {})
    assert target.read_bytes() == before and not litter(tmp_path)
    assert checkpoint.saved_updates(tmp_path / "checkpoints") == []


@pytest.mark.parametrize("nth", range(1, 5))
def test_a_checkpoint_cut_short_anywhere_leaves_the_one_before(tmp_path, monkeypatch, nth):
    checkpoint.save(tmp_path, 1, TENSORS, {"seconds": 1.0})
    real, calls = os.fsync, []

    def fail(fd):
        calls.append(fd)
        if len(calls) == nth:
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input"):
        checkpoint.save(tmp_path, 2, TENSORS, {"seconds": 2.0})
    monkeypatch.setattr(os, "fsync", real)
    tensors, state = checkpoint.load_latest(tmp_path)
    assert state["updates"] == (2 if nth == 4 else 1)  # the fourth comes after the rename
    assert torch.equal(tensors["a"], TENSORS["a"]) and not litter(tmp_path)


def test_the_last_three_are_kept(tmp_path):
    for step in (0, 5, 10, 15, 20):
        checkpoint.save(tmp_path, step, TENSORS, {})
    assert checkpoint.saved_updates(tmp_path) == [10, 15, 20] and sorted(p.name for p in tmp_path.iterdir()) == [
        "00000010",
        "00000015",
        "00000020",
    ]
    assert checkpoint.load_latest(tmp_path)[1]["updates"] == 20


def test_what_is_no_checkpoint_is_left_alone_and_half_a_one_is_swept(tmp_path):
    checkpoint.save(tmp_path, 7, TENSORS, {})
    for name in ("notes", ".tmp-abc", ".tmp-old-00000001", "²"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "8").touch()
    assert checkpoint.saved_updates(tmp_path) == [7]
    checkpoint.sweep(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["00000007", "notes", "²", "8"])
    assert checkpoint.load_latest(tmp_path / "nothing") is None and checkpoint.saved_updates(tmp_path / "nothing") == []


def test_a_checkpoint_is_readable_json_beside_tensors(tmp_path):
    folder = checkpoint.save(tmp_path, 12, TENSORS, {"seconds": 1.5})
    assert sorted(p.name for p in folder.iterdir()) == ["state.json", "tensors.safetensors"]
    state = json.loads((folder / "state.json").read_text())
    assert (
        state["updates"] == 12
        and state["seconds"] == 1.5
        and state["file"]["bytes"] == (folder / "tensors.safetensors").stat().st_size
    )


def test_round_trip(tmp_path):
    tensors = TENSORS | {
        "view": torch.arange(8.0)[::2],
        "bf": torch.ones(3, dtype=torch.bfloat16),
        "none": torch.zeros(0),
    }
    tensors["shared"] = tensors["a"]  # safetensors itself refuses shared memory
    save_tensors(tmp_path / "x.safetensors", tensors, NOTE)
    back, note = load_tensors(tmp_path / "x.safetensors")
    assert note == NOTE and back.keys() == tensors.keys()
    assert all(torch.equal(back[k], tensors[k]) and back[k].dtype == tensors[k].dtype for k in back)


# --- files that are not what they should be -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "model.safetensors"
    save(build(TINY), path, {"updates": 1})
    return path


def altered(good, tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    return path


def test_truncated_at_many_lengths(good, tmp_path):
    whole = good.read_bytes()
    header = struct.unpack("<Q", whole[:8])[0] + 8
    lengths = {0, 1, 7, 8, 9, header - 1, header, header + 1, len(whole) - 1} | set(range(0, len(whole), 97))
    for n in sorted(lengths):
        path = altered(good, tmp_path, whole[:n])
        refused(lambda p=path: load(p), path)
    refused(lambda: load(altered(good, tmp_path, whole + b"more")), "damaged")
    load(altered(good, tmp_path, whole))


def test_bits_flipped_in_the_header(good, tmp_path):
    """Every byte of the header once: the file is refused, or what it says is still a whole model."""
    whole = bytearray(good.read_bytes())
    header = struct.unpack("<Q", whole[:8])[0] + 8
    refusals = 0
    for i in range(0, header, 3):
        flipped = whole.copy()
        flipped[i] ^= 1 << (i % 7)
        try:
            load(altered(good, tmp_path, flipped))
        except UserError as e:
            refusals += 1
            assert "\n" not in str(e), e
    assert refusals > header / 12


def test_bits_flipped_in_a_checkpoint(tmp_path):
    folder = checkpoint.save(tmp_path, 4, TENSORS, {"seconds": 0.0})
    path = folder / checkpoint.TENSORS
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 16]) + whole[i + 1 :])
        refused(lambda: checkpoint.load_latest(tmp_path), "00000004")
    path.write_bytes(whole[:-5])
    refused(lambda: checkpoint.load_latest(tmp_path), "checksum", "train again")
    path.unlink()
    refused(lambda: checkpoint.load_latest(tmp_path), "damaged")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"file": 3}', '{"file": {}}', "[" * 100_000, "\udcff"])
def test_a_state_that_is_not_readable(tmp_path, text):
    checkpoint.save(tmp_path, 3, TENSORS, {})
    folder = checkpoint.save(tmp_path, 4, TENSORS, {})
    (folder / checkpoint.STATE).write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(lambda: checkpoint.load_latest(tmp_path), "state.json", "delete", "update 3")


def test_a_state_of_megabytes(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_JSON", 10)
    checkpoint.save(tmp_path, 3, TENSORS, {})
    refused(lambda: checkpoint.load_latest(tmp_path), "state.json", "train again")


def test_foreign_safetensors(tmp_path, good):
    path = tmp_path / "foreign.safetensors"
    safetensors.torch.save_file(TENSORS, path)
    refused(lambda: load(path), "not written by lebm")
    safetensors.torch.save_file(TENSORS, path, metadata={"format": "pt"})
    refused(lambda: load(path), "not written by lebm")
    for note, word in (
        (["x"], "foreign"),
        ({"updates": 1}, "no lebm configuration"),
        ({"config": 3}, "no lebm configuration"),
        ({"config": {"nzz": 3}}, "nzz"),
    ):
        safetensors.torch.save_file(TENSORS, path, metadata={"lebm": json.dumps(note)})
        refused(lambda: load(path), word)
    safetensors.torch.save_file(TENSORS, path, metadata={"lebm": "{"})
    refused(lambda: load(path), "header")


def test_wrong_shapes_and_names(tmp_path, good):
    tensors, note = load_tensors(good)
    path = tmp_path / "x.safetensors"
    first = next(iter(tensors))
    for changed in (
        tensors | {first: torch.zeros(1)},
        {k: v for k, v in tensors.items() if k != first},
        tensors | {"more": torch.zeros(1)},
    ):
        save_tensors(path, changed, note)
        refused(lambda: load(path), "does not fit this model")
    save_tensors(path, tensors, note | {"config": TINY.with_values(nz=4).to_dict()})
    refused(lambda: load(path), "does not fit this model")


@pytest.mark.parametrize(
    "changes",
    [
        {"generator.widths": [10**9]},
        {"generator.ngf": 4096, "nz": 4096},
        {"method.energy.width": 65536},
        {"nz": 10**12},
        {
            "method.posterior_start": {"kind": "encoder", "width": 4096},
            "generator.size": 32,
            "generator.widths": [64, 64, 64],
        },
        {"method.prior_start": {"kind": "flow", "width": 4096, "bins": 64, "layers": 64}},
        {"method.base": {"kind": "flow", "width": 4096, "bins": 64, "layers": 64}},
        {"method.base": {"kind": "mixture", "components": 1000}, "nz": 4096},
    ],
)
def test_a_small_file_cannot_ask_for_all_memory(tmp_path, good, changes):
    tensors, note = load_tensors(good)
    for key, value in changes.items():
        *sections, name = key.split(".")
        part = note["config"]
        for section in sections:
            part = part[section]
        part[name] = value
    save_tensors(tmp_path / "x.safetensors", tensors, note)
    refused(lambda: load(tmp_path / "x.safetensors"), "configuration")


@pytest.mark.parametrize("length", [0, 1, 2**20, 2**31, 2**40, 2**63, 2**64 - 1])
def test_absurd_lengths_in_the_header(tmp_path, length):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}" * 100)
    refused(lambda: load(path), path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]},
        {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]},
        {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]},
        {"dtype": "F8_E8M0", "shape": [8], "data_offsets": [0, 8]},
        {"dtype": "I16", "shape": [4], "data_offsets": [0, 8]},
        {"shape": [2]},
        3,
    ],
)
def test_absurd_tensors_in_the_header(tmp_path, entry):
    header = json.dumps({"__metadata__": {"lebm": json.dumps({"config": TINY.to_dict()})}, "a": entry}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    refused(lambda: load(path), path)


@pytest.mark.parametrize(
    "raw", [b"[1]", b"3", b'{"__metadata__": 3}', b'{"__metadata__": {"lebm": 3}}', b"\xff\xff", b"[" * 100_000, b'"x"']
)
def test_headers_that_are_no_header(tmp_path, raw):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw)
    refused(lambda: load(path), path)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_refused(tmp_path_factory, content, framed):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(struct.pack("<Q", len(content)) + content if framed else content)
    refused(lambda: load(path), path)


def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path):
    """0x80 is a pickle's first byte, and the low byte of every thirty-second header length."""
    seen = set()
    for n in range(0, 300, 4):
        save_tensors(tmp_path / "a.safetensors", {"w": torch.zeros(2)}, {"note": "x" * n})
        seen.add((tmp_path / "a.safetensors").read_bytes()[0])
        assert load_tensors(tmp_path / "a.safetensors")[1]["note"] == "x" * n
    assert 0x80 in seen


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "model.pkl", "model.ckpt", "model.safetensors"])
@pytest.mark.parametrize("kind", ["torch", "torch-old", "protocol0", "protocol2", "protocol5", "zip"])
def test_a_pickle_is_refused_and_not_opened(tmp_path, name, kind):
    path, canary = tmp_path / name, tmp_path / "CANARY"
    if kind.startswith("torch"):
        torch.save({"a": Canary(canary)}, path, _use_new_zipfile_serialization=kind == "torch")
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as z:
            z.writestr("archive/data.pkl", pickle.dumps(Canary(canary)))
    else:
        path.write_bytes(pickle.dumps(Canary(canary), protocol=int(kind[-1])))
    refused(lambda: load(path), path)
    if kind != "protocol0":
        refused(lambda: load(path), "pickle", ".safetensors")
    run = tmp_path / "checkpoints"
    folder = checkpoint.save(run, 1, TENSORS, {})
    (folder / checkpoint.TENSORS).write_bytes(path.read_bytes())
    refused(lambda: checkpoint.load_latest(run), "00000001")
    assert not canary.exists()


def test_places_without_a_model(tmp_path):
    refused(lambda: load(tmp_path / "nothing"), "does not exist", "run folder")
    refused(lambda: load(tmp_path), "not a run folder", "lebm train")
    (tmp_path / "config.yaml").write_text(TINY.to_yaml())
    refused(lambda: load(tmp_path), "no model.safetensors yet", "--resume")

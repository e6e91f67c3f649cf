"""The leaves: files, tensors, devices, progress, random streams and errors."""

import json
import os
import pickle
import struct

import numpy as np
import pytest
import torch
import torch.distributed as dist

from lebm.core import device, distributed, files, tensors
from lebm.core.errors import CheckpointError, ConfigError, DataError, NotDefined, UserError, one_line
from lebm.core.lookup import did_you_mean
from lebm.core.pixels import as_floats, as_tensor, to_pixels, to_x
from lebm.core.progress import SILENT, Reporter
from lebm.core.rng import stream

# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "a.txt"
    files.write_atomic(path, "first")
    assert path.read_text() == "first" and [p.name for p in path.parent.iterdir()] == ["a.txt"]

    def fail(temporary):
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError):
        files.write_with(path, fail)
    assert path.read_text() == "first" and [p.name for p in path.parent.iterdir()] == ["a.txt"]


def test_the_mode_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        files.write_atomic(tmp_path / "a", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_sizes_and_kinds_are_checked_before_reading(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert files.check_regular_size(path, 5) == 5
    with pytest.raises(DataError, match="has 5 bytes, more than the 4"):
        files.check_regular_size(path, 4)
    with pytest.raises(DataError, match="cannot be read"):
        files.check_regular_size(tmp_path / "none", 4)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        files.check_regular_size(tmp_path / "pipe", 4)


def test_tables_and_arrays(tmp_path):
    files.save_csv(tmp_path / "a.csv", ["name", "score"], [["x,y", 1], ["z", 2]])
    assert (tmp_path / "a.csv").read_text() == 'name,score\n"x,y",1\nz,2\n'
    files.save_npz(tmp_path / "a.npz", x=np.arange(3))
    assert np.load(tmp_path / "a.npz")["x"].tolist() == [0, 1, 2]


# --- tensors ----------------------------------------------------------------------------------------------------------


def test_tensors_come_back_with_their_facts(tmp_path):
    path = tmp_path / "a.safetensors"
    wide = torch.arange(6.0).reshape(2, 3)
    tensors.save_tensors(path, {"w": wide.t(), "same": wide}, {"step": 3})
    loaded, meta = tensors.load_tensors(path)
    assert meta == {"step": 3} == tensors.read_meta(path)
    assert torch.equal(loaded["w"], wide.t()) and torch.equal(loaded["same"], wide)
    path.unlink()  # the tensors are copies, not views of the file
    assert float(loaded["w"].sum()) == 15


def test_pickles_are_refused_unread(tmp_path):
    mark = tmp_path / "ran"

    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {mark}",)

    for name, raw in {
        "a.safetensors": pickle.dumps(Hostile()),
        "b.pt": b"anything",
        "c.safetensors": b"PK\x03\x04" + bytes(99),
    }.items():
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(CheckpointError, match=rf"{name} is a pickle file"):
            tensors.load_tensors(tmp_path / name)
    assert not mark.exists()
    for name in ("none", "."):
        with pytest.raises(CheckpointError, match="safetensors file"):
            tensors.load_tensors(tmp_path / name)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"short",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 2) + b"{]",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"{}",
    ],
)
def test_damaged_and_foreign_files_are_named(tmp_path, raw):
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match="a.safetensors"):
        tensors.read_meta(path)


def test_a_header_of_another_kind(tmp_path):
    for meta in ("[1]", "{", json.dumps(3)):
        header = json.dumps({"__metadata__": {"lebm": meta}}).encode()
        (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
        with pytest.raises(CheckpointError):
            tensors.read_meta(tmp_path / "a.safetensors")


# --- pixels, devices, streams -----------------------------------------------------------------------------------------


def test_pixels_come_back():
    pixels = torch.arange(256, dtype=torch.uint8)
    x = to_x(pixels)
    assert x.dtype == torch.float32 and (float(x.min()), float(x.max())) == (-1, 1)
    assert torch.equal(to_pixels(x), pixels) and torch.equal(as_floats(pixels), x) and as_floats(x) is x
    assert to_pixels(torch.tensor([-3.0, 0.0, 3.0])).tolist() == [0, 128, 255]
    assert as_tensor(np.arange(6).reshape(2, 3)[:, ::-1]).tolist() == [[2, 1, 0], [5, 4, 3]]


def test_devices(monkeypatch):
    assert device.pick_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="'gpu'"):
        device.pick_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.pick_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match="no CUDA device"):
        device.pick_device("cuda:1")


def test_small_updates_use_one_thread(monkeypatch):
    threads = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    for flops, where, inside in ((1e7, "cpu", 1), (1e9, "cpu", 4), (None, "cpu", 4), (1e7, "meta", 4)):
        with device.fitting_threads(flops, where):
            assert threads[-1] == inside
        assert threads[-1] == 4


def test_streams_are_named():
    draw = lambda seed, name: torch.rand(3, generator=stream(seed, name)).tolist()  # noqa: E731
    assert draw(1, "a") == draw(1, "a") and draw(1, "a") != draw(1, "b") and draw(1, "a") != draw(2, "a")


# --- several processes ------------------------------------------------------------------------------------------------


def test_one_process_averages_nothing():
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.full((2,), 3.0)
    distributed.average_over_ranks([p])
    assert p.grad.tolist() == [3, 3] and (distributed.rank(), distributed.world_size()) == (0, 1)


def test_several_processes_average_their_gradients(monkeypatch):
    p, idle = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    p.grad = torch.tensor([3.0, 4.0])
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "all_reduce", lambda t: t.add_(torch.tensor([1.0, 2.0])))
    distributed.average_over_ranks([p, idle])
    assert p.grad.tolist() == [2, 3] and idle.grad is None and distributed.rank() == 1


# --- messages ---------------------------------------------------------------------------------------------------------


def test_the_silent_reporter():
    SILENT.say("anything")
    with SILENT.progress("work") as update:
        update(1, 2)
        update(2, 2, note="done")
    assert isinstance(SILENT, Reporter)


def test_suggestions():
    assert did_you_mean("svnh", ["svhn", "mnist"]) == " (did you mean svhn?)" and did_you_mean("x", ["svhn"]) == ""


def test_what_a_method_does_not_define():
    class MEG:
        pass

    error = NotDefined(MEG(), "infer")
    assert isinstance(error, UserError) and (error.method, error.verb) == ("MEG", "infer") and error.exit_code == 2
    assert str(NotDefined(MEG(), "energy")) == "the method MEG has no energy, which this needs"
    assert "MEG" in str(error) and "infer" in str(error) and NotDefined("RAE", "log_prior").method == "RAE"


def test_foreign_messages_fit_on_a_line():
    assert one_line("a\n  b\x1b[31m") == "a b?[31m" and one_line(ValueError()) == "ValueError"
    assert len(one_line("x" * 999)) == 200

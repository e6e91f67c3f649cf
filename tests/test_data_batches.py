"""Batches as a function of the step, and the cache of decoded images."""

import os
from functools import partial

import numpy as np
import pytest
import torch

from lebm.core import rng
from lebm.core.errors import DataError
from lebm.data import Batches, SentenceBatches, VariedBatches
from lebm.data import batches as batches_module
from lebm.data.cache import FOLDER, Decoded, cached


def rows(n):
    return torch.arange(n, dtype=torch.uint8).reshape(n, 1, 1, 1).expand(n, 1, 2, 2).contiguous()


def test_an_epoch_is_a_permutation_without_the_remainder():
    b = Batches(rows(23), 5, seed=3, device="cpu")
    assert (b.per_epoch, b.batch, b.epoch(3), b.epoch(4)) == (4, 5, 0, 1)
    order = torch.randperm(23, generator=rng.stream(3, "data/epoch-1"))
    got = torch.cat([b.indices(s) for s in range(4, 8)])
    assert got.dtype == torch.int64 and got.tolist() == order[:20].tolist()
    assert torch.equal(b(5), rows(23)[order[5:10]]) and b(5).dtype == torch.uint8


def test_an_update_does_not_depend_on_history():
    a, b = Batches(rows(23), 5, seed=3), Batches(rows(23), 5, seed=3)
    forward = [a(s).clone() for s in range(30)]
    for s in (29, 0, 17, 4, 3, 29):
        assert torch.equal(b(s), forward[s])
    assert not torch.equal(Batches(rows(23), 5, seed=4)(0), forward[0])


def test_every_other_image_is_mirrored():
    images = torch.arange(3000, dtype=torch.uint8).reshape(500, 1, 2, 3)
    plain, b = Batches(images, 100, seed=3), VariedBatches(images, 100, seed=3, flip=True)
    turned = []
    for s in range(15):
        same, other = ((b(s) == rows).flatten(1).all(1) for rows in (plain(s), plain(s).flip(-1)))
        assert bool((same ^ other).all())
        turned.append(other)
    assert torch.equal(b(2), VariedBatches(images, 100, seed=3, flip=True)(2))  # without history
    first, second = torch.cat(turned[:5]), torch.cat(turned[5:10])
    assert 0.4 < float(first.float().mean()) < 0.6 and not torch.equal(first, second)


def test_images_are_moved_and_their_borders_reflected():
    images = torch.randint(0, 256, (900, 3, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    plain, b = Batches(images, 300, seed=3), VariedBatches(images, 300, seed=3, shift=1)
    padded = [np.pad(plain(s).numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)), mode="reflect") for s in range(6)]
    seen = np.zeros((6, 3, 3))
    for s in range(6):
        each = np.array(
            [
                [(b(s).numpy() == padded[s][:, :, y : y + 5, x : x + 6]).all((1, 2, 3)) for x in range(3)]
                for y in range(3)
            ]
        )
        assert (each.sum((0, 1)) == 1).all()  # each image is one of the nine
        seen[s] = each.sum(-1)
    assert (
        seen[:3].sum(0).min() > 53 and seen[:3].sum(0).max() < 147
    )  # 100 of 900 are expected, 5 standard errors are 47
    assert not np.array_equal(seen[:3], seen[3:])  # anew in the next epoch
    assert torch.equal(b(4), VariedBatches(images, 300, seed=3, shift=1)(4))  # without history


def test_mirrored_and_moved():
    wide = torch.arange(250, dtype=torch.uint8).repeat(400, 1).reshape(400, 1, 10, 25)
    rows = VariedBatches(wide, 400, seed=3, flip=True, shift=2)(0).long()
    seen = set(map(tuple, torch.stack([rows[:, 0, 5, 12], rows[:, 0, 5, 12] - rows[:, 0, 5, 11]], 1).tolist()))
    middle = wide[0, 0, 5, 12].item()
    # The middle shows one of 25 neighbours, and the next column is one more, or mirrored one less: all fifty occur.
    assert seen == {(middle + 25 * y + x, step) for y in range(-2, 3) for x in range(-2, 3) for step in (-1, 1)}


def test_only_images_are_varied():
    images = torch.zeros(9, 1, 4, 5, dtype=torch.uint8)
    with pytest.raises(DataError, match="data.flip is true and the rows have shape"):
        VariedBatches(images.flatten(1), 3, seed=3, flip=True)
    with pytest.raises(DataError, match="data.shift is 2 and the rows have shape"):
        VariedBatches(images.flatten(1), 3, seed=3, shift=2)
    with pytest.raises(DataError, match="data.shift is 4, but the images have 4 x 5 pixels"):
        VariedBatches(images, 3, seed=3, shift=4)


def test_fewer_rows_than_a_batch():
    b = Batches(rows(3), 5, seed=0)
    assert b.batch == 3 and b.per_epoch == 1 and sorted(b(7)[:, 0, 0, 0].tolist()) == [0, 1, 2] and b.epoch(7) == 7


def test_nothing_to_learn_from():
    with pytest.raises(DataError, match="no training rows"):
        Batches(rows(3)[:0], 5, seed=0)
    with pytest.raises(DataError, match="batch size is 0"):
        Batches(rows(3), 0, seed=0)
    with pytest.raises(ValueError, match="negative"):
        Batches(rows(3), 1, seed=0)(-1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", [Batches, partial(VariedBatches, flip=True, shift=1)])
@pytest.mark.parametrize("fits", [True, False])
def test_the_device_sees_the_same_batches(fits, kind, monkeypatch):
    if not fits:
        monkeypatch.setattr(batches_module, "_fits", lambda rows, device: False)
    here, there = kind(rows(23), 5, seed=3), kind(rows(23), 5, seed=3, device="cuda")
    assert there.rows.is_cuda == fits
    for s in (0, 5, 11):
        assert there(s).is_cuda and there.indices(s).is_cuda == fits
        assert torch.equal(there(s).cpu(), here(s)) and torch.equal(there.indices(s).cpu(), here.indices(s))


@pytest.mark.parametrize("kind", [Batches, partial(VariedBatches, flip=True, shift=1)])
def test_several_processes_share_a_batch(kind):
    images = torch.arange(23 * 9, dtype=torch.uint8).reshape(23, 1, 3, 3)
    alone, parts = kind(images, 6, 3), [kind(images, 6, 3, rank=rank, ranks=3) for rank in range(3)]
    for update in (0, 2, 7):
        assert torch.equal(torch.cat([b(update) for b in parts]), alone(update))
        assert torch.equal(torch.cat([b.indices(update) for b in parts]), alone.indices(update))
    assert all(b.per_epoch == alone.per_epoch for b in parts)
    with pytest.raises(DataError, match="6 rows.*4 processes"):
        kind(images, 6, 3, ranks=4)


def test_several_processes_see_sentences_of_one_width():
    rows = (torch.arange(40)[None] < torch.arange(1, 41)[:, None]).int() * 4
    alone, parts = SentenceBatches(rows, 8, 3), [SentenceBatches(rows, 8, 3, rank=rank, ranks=2) for rank in range(2)]
    for update in range(5):
        assert torch.equal(torch.cat([b(update) for b in parts]), alone(update))


# --- cache --------------------------------------------------------------------------------------------------------


class Builder:
    def __init__(self, labels=None):
        self.calls, self.labels = 0, labels

    def __call__(self):
        self.calls += 1
        return Decoded(np.arange(48, dtype=np.uint8).reshape(4, 3, 2, 2), 3, self.labels)


def source(folder, text="x"):
    path = folder / "source"
    path.write_text(text)
    return [path]


def test_cache_keeps_rows_and_labels(tmp_path):
    build, files = Builder(np.array([3, 1, 2, 0])), source(tmp_path)
    for _ in range(2):
        s = cached(tmp_path, "set-2x3", files, build).splits("here")
        assert s.train.shape == (3, 3, 2, 2) and s.test.flatten().tolist() == list(range(36, 48))
        assert s.train_labels.tolist() == [3, 1, 2] and s.test_labels.tolist() == [0]
    assert build.calls == 1
    s.train.zero_()  # a private mapping: what is kept stays as it is
    assert int(cached(tmp_path, "set-2x3", files, build).images.sum()) == sum(range(48))


def test_cache_follows_its_sources(tmp_path):
    build, files = Builder(), source(tmp_path)
    cached(tmp_path, "set-2x3", files, build)
    cached(tmp_path, "set-4x3", files, build)
    os.utime(files[0], ns=(1, 1))
    cached(tmp_path, "set-2x3", files, build)
    assert build.calls == 3
    names = sorted(p.name for p in (tmp_path / FOLDER).iterdir())
    assert [n[:7] for n in names] == ["set-2x3", "set-2x3", "set-4x3", "set-4x3"]  # the stale one is gone


@pytest.mark.parametrize("suffix", [".npy", ".json"])
@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"\x93NUMPY\x01\x00", b"PK\x03\x04", None])
def test_damaged_cache_is_made_again(tmp_path, suffix, raw):
    build, files = Builder(), source(tmp_path)
    cached(tmp_path, "set-2x3", files, build)
    path = next((tmp_path / FOLDER).glob(f"*{suffix}"))
    path.write_bytes(path.read_bytes()[:-1] if raw is None else raw)
    assert cached(tmp_path, "set-2x3", files, build).images.shape == (4, 3, 2, 2) and build.calls == 2
    cached(tmp_path, "set-2x3", files, build)
    assert build.calls == 2


def test_a_folder_that_cannot_be_written_to(tmp_path):
    build, files = Builder(), source(tmp_path)
    (tmp_path / FOLDER).write_text("in the way")
    for calls in (1, 2):
        assert len(cached(tmp_path, "set-2x3", files, build).images) == 4 and build.calls == calls


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    build, files = Builder(), source(tmp_path)
    monkeypatch.setattr(np, "save", full)
    assert len(cached(tmp_path, "set-2x3", files, build).images) == 4
    assert list((tmp_path / FOLDER).iterdir()) == []

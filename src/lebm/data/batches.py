"""Batches as a function of (seed, update): a run resumes at any update without stored state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lebm.core import rng
from lebm.core.errors import DataError
from lebm.core.words import lengths


@dataclass(eq=False, repr=False)
class Batches:
    """`batches(update)` is the batch of that update: epoch e follows a permutation from the stream `data/epoch-e`.

    The remainder that does not fill a batch is dropped; with fewer rows than `batch`, a batch is all rows. Of several
    processes (`ranks`) each takes its part of every batch: all see the same permutation.
    """

    rows: Tensor  # as they are stored; they move to the device where they fit
    batch: int  # of all processes together
    seed: int
    device: torch.device | str = "cpu"
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        self.count = len(self.rows)
        if not self.count:
            raise DataError("there are no training rows; give at least one")
        if self.batch < 1:
            raise DataError(f"the batch size is {self.batch}; it must be at least 1")
        self.batch = min(self.batch, self.count)
        if self.batch % self.ranks:
            raise DataError(f"a batch of {self.batch} rows cannot be parted among {self.ranks} processes alike")
        # This way of naming the device turns "cuda" into "cuda:0", as tensors call it.
        self.device = torch.empty(0, device=self.device).device
        self.rows = self.rows.to(self.device) if _fits(self.rows, self.device) else self.rows
        self._epoch = -1  # the one that `_shuffle` has put in order

    @property
    def per_epoch(self) -> int:
        """Updates in an epoch."""
        return self.count // self.batch

    def epoch(self, update: int) -> int:
        """The epoch that an update belongs to, from 0."""
        return update // self.per_epoch

    def __call__(self, update: int) -> Tensor:
        """The batch of this update on the device, in the type in which it is stored."""
        rows = self.rows.index_select(0, self.indices(update))
        if rows.device == self.device:
            return rows
        # Only the batch is pinned: locking a set that is larger than the GPU's memory would starve the machine.
        return rows.pin_memory().to(self.device, non_blocking=True)

    def indices(self, update: int) -> Tensor:
        """The numbers of the rows in the batch of this update."""
        if update < 0:
            raise ValueError(f"update is {update}; it must not be negative")
        if self.epoch(update) != self._epoch:
            self._epoch = self.epoch(update)
            self._shuffle(self._epoch)
        part = self.batch // self.ranks
        start = update % self.per_epoch * self.batch + self.rank * part
        return self._order[start : start + part]

    def _shuffle(self, epoch: int) -> None:
        # Drawn on the CPU, so that the order is the same on every device.
        order = torch.randperm(self.count, generator=rng.stream(self.seed, f"data/epoch-{epoch}"))
        self._order = order.to(self.rows.device)


@dataclass(eq=False, repr=False)
class VariedBatches(Batches):
    """The same with images varied anew in each epoch: mirrored left for right with chance 1/2 (`flip`), and moved by up
    to `shift` pixels up or down and to either side, their borders filled by reflection."""

    flip: bool = False
    shift: int = 0

    def __post_init__(self) -> None:
        setting = "data.flip is true" if self.flip else f"data.shift is {self.shift}"
        if self.rows.ndim != 4:
            raise DataError(
                f"{setting} and the rows have shape {tuple(self.rows.shape[1:])}; "
                "only images (channels, height, width) can be varied in this way"
            )
        h, w = self.rows.shape[2:]
        if self.shift >= min(h, w):
            raise DataError(f"data.shift is {self.shift}, but the images have {h} x {w} pixels; it must be smaller")
        super().__post_init__()

    def _shuffle(self, epoch: int) -> None:
        super()._shuffle(epoch)
        moves = torch.zeros(self.count, 3, dtype=torch.int64)  # of every row: mirrored (0 or 1), down, to the right
        if self.flip:
            moves[:, 0] = torch.rand(self.count, generator=rng.stream(self.seed, f"data/flip-{epoch}")) < 0.5
        if self.shift:
            g = rng.stream(self.seed, f"data/shift-{epoch}")
            moves[:, 1:] = torch.randint(-self.shift, self.shift + 1, (self.count, 2), generator=g)
        self._moves = moves.to(self.rows.device)

    def __call__(self, update: int) -> Tensor:
        rows = super().__call__(update)
        mirrored, down, right = self._moves[self.indices(update)].to(self.device).unsqueeze(-1).unbind(1)
        y, x = (_moved(n, by) for n, by in zip(rows.shape[2:], (down, right), strict=True))
        x = torch.where(mirrored == 1, rows.shape[3] - 1 - x, x)
        row, channel = (torch.arange(n, device=self.device) for n in rows.shape[:2])
        return rows[row[:, None, None, None], channel[:, None, None], y[:, None, :, None], x[:, None, None, :]]


def _moved(n: int, by: Tensor) -> Tensor:
    """For each row the n places that it reads when it is moved `by`; those beyond either end are reflected there."""
    at = (torch.arange(n, device=by.device) - by).abs()
    return n - 1 - (n - 1 - at).abs()


class SentenceBatches(Batches):
    """The same for padded sentences: those of a batch have nearly the same length, and their common padding is cut off.

    Sentences are sorted by length within pools of a random order, cut into batches, and the batches shuffled. Widths
    are rounded up to a few numbers, so that a captured iteration can be used again.
    """

    POOL = 50  # batches that are sorted together

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lengths = lengths(self.rows).cpu()

    def _shuffle(self, epoch: int) -> None:
        g = rng.stream(self.seed, f"data/epoch-{epoch}")
        order = torch.randperm(self.count, generator=g)
        pools = [p[self.lengths[p].argsort(stable=True)] for p in order.split(self.POOL * self.batch)]
        batches = torch.cat([p[: len(p) // self.batch * self.batch] for p in pools]).view(-1, self.batch)
        batches = batches[torch.randperm(len(batches), generator=g)]
        self._widths = [width(int(n)) for n in self.lengths[batches].amax(1)]
        self._order = batches.flatten().to(self.rows.device)

    def __call__(self, update: int) -> Tensor:
        rows = super().__call__(update)
        return rows[:, : self._widths[update % self.per_epoch]].contiguous()


def width(length: int) -> int:
    """A length rounded up: to 8, 16, ..., 64, and by sixteens beyond."""
    step = 8 if length <= 64 else 16
    return -(-length // step) * step


def _fits(rows: Tensor, device: torch.device) -> bool:
    """Rows move to a GPU once if they take less than half of its free memory."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return rows.numel() * rows.element_size() < free / 2

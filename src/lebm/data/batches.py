"""Batches as a function of (seed, update): a run resumes at any update without stored state."""

from __future__ import annotations

import torch
from torch import Tensor

from lebm.core import rng
from lebm.core.errors import DataError
from lebm.core.words import lengths


class Batches:
    """`batches(update)` is the batch of that update: epoch e follows a permutation from the stream `data/epoch-e`.

    The remainder that does not fill a batch is dropped; with fewer rows than `batch`, a batch is all rows. Of several
    processes (`ranks`) each takes its part of every batch: all see the same permutation.
    """

    def __init__(
        self,
        rows: Tensor,
        batch: int,
        seed: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        if len(rows) == 0:
            raise DataError("there are no training rows; give at least one")
        if batch < 1:
            raise DataError(f"the batch size is {batch}; it must be at least 1")
        if min(batch, len(rows)) % ranks:
            raise DataError(f"a batch of {min(batch, len(rows))} rows cannot be parted among {ranks} processes alike")
        # This way of naming the device turns "cuda" into "cuda:0", as tensors call it.
        self.device, self.seed, self.rank, self.ranks = torch.empty(0, device=device).device, seed, rank, ranks
        self.count, self.batch = len(rows), min(batch, len(rows))  # the batch of all processes together
        self.rows = rows.to(self.device) if _fits(rows, self.device) else rows  # as they are stored
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)  # on the device of the rows

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


class VariedBatches(Batches):
    """The same with images varied anew in each epoch: mirrored left for right with chance 1/2 (`flip`), and moved by up
    to `shift` pixels up or down and to either side, their borders filled by reflection."""

    def __init__(
        self,
        rows: Tensor,
        batch: int,
        seed: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        ranks: int = 1,
        *,
        flip: bool = False,
        shift: int = 0,
    ) -> None:
        setting = "data.flip is true" if flip else f"data.shift is {shift}"
        if rows.ndim != 4:
            raise DataError(
                f"{setting} and the rows have shape {tuple(rows.shape[1:])}; "
                "only images (channels, height, width) can be varied in this way"
            )
        if shift >= min(rows.shape[2:]):
            raise DataError(
                f"data.shift is {shift}, but the images have {rows.shape[2]} x {rows.shape[3]} pixels; "
                "it must be smaller"
            )
        super().__init__(rows, batch, seed, device, rank, ranks)
        self.flip, self.shift = flip, shift
        # For every row: mirrored (0 or 1), moved down, moved to the right; on the device of the rows.
        self._moves = torch.empty(0)

    def _shuffle(self, epoch: int) -> None:
        super()._shuffle(epoch)
        moves = torch.zeros(self.count, 3, dtype=torch.int64)
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

    def __init__(
        self,
        rows: Tensor,
        batch: int,
        seed: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        super().__init__(rows, batch, seed, device, rank, ranks)
        self.lengths = lengths(rows).cpu()
        self._widths: list[int] = []

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

"""Batches as a pure function of (seed, step): a run resumes at any step without stored state."""

from __future__ import annotations

import torch
from torch import Tensor

from lebm import rng
from lebm.errors import DataError
from lebm.words import lengths


class Batches:
    """`batches(step)` is the batch of that step: epoch e walks through a permutation from the stream `data/epoch-e`.

    The remainder that does not fill a batch is dropped; with fewer rows than `batch`, a batch is all rows.
    """

    def __init__(self, images: Tensor, batch: int, seed: int, device: torch.device | str = "cpu") -> None:
        if len(images) == 0:
            raise DataError("there are no training images; give at least one")
        if batch < 1:
            raise DataError(f"the batch size is {batch}; it must be at least 1")
        self.device, self.seed = torch.empty(0, device=device).device, seed  # "cuda" becomes "cuda:0", as tensors call it
        self.rows, self.batch = len(images), min(batch, len(images))
        self.images = images.to(self.device) if _fits(images, self.device) else images
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)  # where the images are

    @property
    def per_epoch(self) -> int:
        return self.rows // self.batch

    def epoch(self, step: int) -> int:
        return step // self.per_epoch

    def __call__(self, step: int) -> Tensor:
        """The batch at this step on the device, in the type it is stored in."""
        rows = self.images.index_select(0, self.indices(step))
        if rows.device == self.device:
            return rows
        # Only the batch is pinned: locking a set that is larger than the GPU's memory would starve the machine.
        return rows.pin_memory().to(self.device, non_blocking=True)

    def indices(self, step: int) -> Tensor:
        """The rows of the batch at this step."""
        if step < 0:
            raise ValueError(f"step is {step}; it must not be negative")
        if self.epoch(step) != self._epoch:
            self._shuffle(self.epoch(step))
        start = step % self.per_epoch * self.batch
        return self._order[start : start + self.batch]

    def _shuffle(self, epoch: int) -> None:
        # Drawn on the CPU, so every device sees the same order.
        order = torch.randperm(self.rows, generator=rng.stream(self.seed, f"data/epoch-{epoch}"))
        self._order = order.to(self.images.device)
        self._epoch = epoch


class VariedBatches(Batches):
    """The same with images varied anew in each epoch: mirrored left for right with chance 1/2 (`flip`), and moved by up to `shift` pixels
    up or down and to either side, their borders filled by reflection."""

    def __init__(self, images: Tensor, batch: int, seed: int, device: torch.device | str = "cpu", flip: bool = False, shift: int = 0) -> None:
        asked = "data.flip is true" if flip else f"data.shift is {shift}"
        if images.ndim != 4:
            raise DataError(f"{asked} and the rows have shape {tuple(images.shape[1:])}; only images (channels, height, width) can be so varied")
        if shift >= min(images.shape[2:]):
            raise DataError(f"data.shift is {shift}, but the images have {images.shape[2]} x {images.shape[3]} pixels; it must be smaller")
        super().__init__(images, batch, seed, device)
        self.flip, self.shift = flip, shift
        self._places = torch.empty(0)  # where the images are, a row for each: mirrored (0 or 1), moved down, moved to the right

    def _shuffle(self, epoch: int) -> None:
        super()._shuffle(epoch)
        places = torch.zeros(self.rows, 3, dtype=torch.int64)
        if self.flip:
            places[:, 0] = torch.rand(self.rows, generator=rng.stream(self.seed, f"data/flip-{epoch}")) < 0.5
        if self.shift:
            moves = torch.randint(-self.shift, self.shift + 1, (self.rows, 2), generator=rng.stream(self.seed, f"data/shift-{epoch}"))
            places[:, 1:] = moves
        self._places = places.to(self.images.device)

    def __call__(self, step: int) -> Tensor:
        rows = super().__call__(step)
        mirrored, down, right = self._places[self.indices(step)].to(self.device).unsqueeze(-1).unbind(1)
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

    Sentences are sorted by length within pools of a random order, cut into batches, and the batches shuffled. Widths are rounded up
    to a few numbers, so that a captured iteration can be used again.
    """

    POOL = 50  # batches that are sorted together

    def __init__(self, rows: Tensor, batch: int, seed: int, device: torch.device | str = "cpu") -> None:
        super().__init__(rows, batch, seed, device)
        self.lengths = lengths(rows).cpu()
        self._widths: list[int] = []

    def _shuffle(self, epoch: int) -> None:
        g = rng.stream(self.seed, f"data/epoch-{epoch}")
        order = torch.randperm(self.rows, generator=g)
        pools = [p[self.lengths[p].argsort(stable=True)] for p in order.split(self.POOL * self.batch)]
        batches = torch.cat([p[: len(p) // self.batch * self.batch] for p in pools]).view(-1, self.batch)
        batches = batches[torch.randperm(len(batches), generator=g)]
        self._widths = [width(int(n)) for n in self.lengths[batches].amax(1)]
        self._order = batches.flatten().to(self.images.device)
        self._epoch = epoch

    def __call__(self, step: int) -> Tensor:
        rows = super().__call__(step)
        return rows[:, : self._widths[step % self.per_epoch]].contiguous()


def width(length: int) -> int:
    """A length rounded up: to 8, 16, ..., 64, and by sixteens beyond."""
    step = 8 if length <= 64 else 16
    return -(-length // step) * step


def _fits(images: Tensor, device: torch.device) -> bool:
    """Images move to a GPU once if they take less than half of its free memory."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return images.numel() * images.element_size() < free / 2

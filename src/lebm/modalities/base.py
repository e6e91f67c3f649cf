"""What the package must know of a kind of rows: how they are read, batched, shown and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lebm.core.errors import DataError, NotDefined, UserError
from lebm.core.files import save_npz
from lebm.core.pixels import as_tensor
from lebm.data import Batches, VariedBatches
from lebm.data.arrays import is_array, read_array
from lebm.generators.base import Generator

VERBS = ("sample", "reconstruct", "interpolate")  # the commands that write rows
Given = Sequence[str | Path]  # what a user named or wrote
Target = Path | None  # where a result goes; None is the terminal
Ends = tuple[Tensor, Tensor]  # two of (n, ...): where each of n paths begins, and where it ends


@dataclass(frozen=True)
class Inputs:
    """Rows that a user gave to be scored, reconstructed or joined by paths."""

    rows: Tensor  # as `Method.encode` takes them; images that were read from pictures stay uint8
    names: list[str]  # where each row came from
    texts: Sequence[str] = ()  # sentences as they were given
    notes: Sequence[str] = ()  # what a person should know of how they were read


class Modality:
    """Rows of numbers that are neither images nor text. The other modalities override what differs for them."""

    noun = "row"
    unit = "number"  # what a row consists of, as a mean squared error counts it
    # Where a command may write, by its name; text may also go to the terminal.
    endings: ClassVar[Mapping[str, tuple[str, ...]]] = dict.fromkeys(VERBS, (".npz",))
    terminal = False
    unvaried = Batches
    pictures = False  # whether rows can be shown as pictures, and `write_samples` takes a .png
    sample_options: tuple[str, ...] = ()  # the options of `Method.sample` that mean something here

    def __init__(self, name: str) -> None:
        self.name = name

    # --- rows in ---------------------------------------------------------------------------------------------------

    def read_inputs(self, given: Given, generator: Generator) -> Inputs:
        """The rows of one .npy or .npz file, checked against the generator."""
        if len(given) != 1 or not is_array(path := Path(given[0]).expanduser()):
            raise DataError(
                f"{len(given)} inputs are given; give one .npy or .npz file with a row for each {self.noun}"
            )
        rows = generator.as_input(as_tensor(read_array(path)))
        return Inputs(rows, [f"{path.name}[{i}]" for i in range(len(rows))])

    def training_rows(self, data: Any, generator: Generator) -> Tensor:
        """The rows that a user handed to `lebm.train`, checked, as they are stored for training."""
        numbers = isinstance(data, Tensor) or (isinstance(data, np.ndarray) and data.dtype.kind in "biuf")
        if not numbers or data.ndim < 1:
            array = isinstance(data, np.ndarray | Tensor)
            what = f"an array of {data.dtype} with shape {tuple(data.shape)}" if array else f"a {type(data).__name__}"
            raise DataError(f"the data is {what}; give a numpy array or tensor of numbers, a row for every example")
        x = generator.as_input(data)
        return generator.to_storage(x) if torch.as_tensor(data).dtype == torch.uint8 else x

    def batches(self, rows: Tensor, batch: int, seed: int, flip: bool = False, shift: int = 0, **where: Any) -> Batches:
        """Batches of stored rows for training. where: `device`, and of several processes `rank` and `ranks`."""
        if flip or shift:
            return VariedBatches(rows, batch, seed, flip=flip, shift=shift, **where)
        return self.unvaried(rows, batch, seed, **where)

    # --- rows out --------------------------------------------------------------------------------------------------

    def check_target(self, verb: str, path: Target) -> None:
        """Raise, before any work, where a command's result cannot be written to this path."""
        endings = " or ".join(self.endings[verb])
        if path is None and not self.terminal:
            raise UserError(f"this model needs --out; give a file that ends in {endings}")
        if path is not None and path.suffix.lower() not in self.endings[verb]:
            raise UserError(f"--out {path} does not fit a model of kind {self.name}; it must end in {endings}")

    def check_options(self, **options: Any) -> None:
        """Raise where an option of sampling is given that means nothing here."""
        foreign = [name for name in options if name not in self.sample_options]
        if foreign:
            named = ", ".join(foreign)
            raise UserError(f"{named} does not go with a model of kind {self.name}; leave it out")

    def write_samples(self, path: Target, x: Tensor, generator: Generator, columns: int | None = None) -> None:
        """x, as `Method.sample` gives it, in a file."""
        write_arrays(path, x=x)

    def write_reconstructions(
        self, path: Target, inputs: Inputs, x_hat: Tensor, z: Tensor, log_px: Tensor, generator: Generator
    ) -> str:
        """Rows and their reconstructions g(z), in a file; returns how good they are, in words.

        log_px: (n,), log p(x|z).
        """
        mse = (generator.from_storage(inputs.rows) - x_hat).square().flatten(1).mean(1)
        self.write_pairs(path, inputs.rows, x_hat, z=z, mse=mse)
        return f"mean squared error {float(mse.mean()):.4f} per {self.unit}"

    def write_pairs(self, path: Target, rows: Tensor, x_hat: Tensor, **numbers: Tensor) -> None:
        """Rows (as they are stored) beside their reconstructions, and numbers of each, in a file."""
        write_arrays(path, x_hat=x_hat, **numbers)

    def write_paths(self, path: Target, ends: Ends, x: Tensor, z: Tensor, generator: Generator) -> None:
        """Paths between pairs of rows. x: (n, points, ...); z: (n, points, nz)."""
        write_arrays(path, x=x, z=z)

    def sample_example(self) -> str:
        """The options with which `lebm sample` shows something, for a hint."""
        return "-n 20" if self.terminal else f"-n 64 --out samples{self.endings['sample'][0]}"

    def plane(self, x: Tensor) -> Tensor | None:
        """(n, 2): where a scatter of rows puts each of them; None where such rows have no place in a plane."""
        return None

    def lines(self, x: Tensor, generator: Generator) -> list[str]:
        """Every row as a line of text."""
        raise NotDefined(f"modality {self.name}", "lines")

    # --- numbers ---------------------------------------------------------------------------------------------------

    def default_metrics(self, generator: Generator, data: str, inception: bool) -> list[str]:
        """The metrics that say something about such a model in reasonable time.

        data: the name of the data set; inception: whether the Inception network is at hand.
        """
        return ["mse"]

    def variety(self, x: Tensor) -> float:
        """How much rows differ from each other: 0 where all are the same."""
        return float(x.std(0).mean())

    def saturation(self, x: Tensor) -> float | None:
        """The share of numbers at the limits of their range; None where there are no limits."""
        return None


def write_arrays(path: Target, **arrays: Tensor) -> None:
    assert path is not None  # `check_target` has refused it
    save_npz(path, **{name: array.numpy() for name, array in arrays.items()})

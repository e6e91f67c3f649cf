"""What a detector accepts: images in several layouts, or rows of a table, checked as scikit-learn checks them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import validate_data
from torch import Tensor

from lebm.core.pixels import to_x


class RowReader:
    """The part of a Detector that reads X, and remembers from `fit` what later rows must look like."""

    image_shape: tuple[int, ...] | None
    fitted_shape_: tuple[int, ...]
    n_features_in_: int
    mean_: np.ndarray
    scale_: np.ndarray

    def _read(self, X: Any, fitting: bool = False) -> Tensor:
        """Images as floats (n, c, h, w) in [-1, 1]; rows of a table standardised, as float64."""
        array = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
        if isinstance(array, np.ndarray) and array.ndim > 2:
            return self._images(array, fitting)
        array = validate_data(
            self,
            array,
            dtype=None if self.image_shape else "numeric",
            ensure_min_samples=2 if fitting else 1,
            reset=fitting,
        )
        if self.image_shape is None:
            return self._table(array.astype(np.float64), fitting)
        if math.prod(self.image_shape) != array.shape[1]:
            raise ValueError(f"image_shape is {self.image_shape}, but a row of X has {array.shape[1]} values")
        return self._images(array.reshape(-1, *self.image_shape), fitting)

    def _table(self, rows: np.ndarray, fitting: bool) -> Tensor:
        if fitting:
            with np.errstate(over="ignore", invalid="ignore"):
                self.mean_, spread = rows.mean(0), rows.std(0)
            if not np.isfinite(spread).all():
                column = int(np.argmin(np.isfinite(spread)))
                raise ValueError(f"column {column} of X is too large for its standard deviation; scale it down")
            varies = spread > 1e-12 * np.abs(self.mean_).clip(1e-300)
            self.scale_ = np.where(varies, spread, 1.0)  # a constant column stays as it is
        elif not hasattr(self, "mean_"):
            raise ValueError(
                f"X has rows of {rows.shape[1]} values, but Detector was fitted on images; give images, or image_shape"
            )
        return torch.from_numpy((rows - self.mean_) / self.scale_)

    def _images(self, array: np.ndarray, fitting: bool) -> Tensor:
        layout = array.ndim == 3 or (array.ndim == 4 and array.shape[3] in (1, 3))
        if array.dtype.kind not in "uif" or not layout:
            raise ValueError(
                f"images of shape {array.shape} and type {array.dtype}; give numbers (n, h, w) or (n, h, w, 1 or 3)"
            )
        least = 2 if fitting else 1
        if len(array) < least:
            raise ValueError(
                f"Found array with {len(array)} sample(s) while a minimum of {least} is required by Detector."
            )
        shape = array.shape[1:3] + (array.shape[3:] or (1,))
        if fitting:
            self.fitted_shape_, self.n_features_in_ = shape, math.prod(shape)
            for name in ("mean_", "scale_"):
                self.__dict__.pop(name, None)
        elif shape != (fitted := getattr(self, "fitted_shape_", None)):
            raise ValueError(f"X has images of shape {shape}, but Detector was fitted on {fitted or 'rows of a table'}")
        rows = array.reshape(len(array), *shape).transpose(0, 3, 1, 2)
        return _in_range(torch.from_numpy(np.ascontiguousarray(rows)))


def _in_range(x: Tensor) -> Tensor:
    """Pixels as floats in [-1, 1]."""
    if x.dtype == torch.uint8:
        return to_x(x)
    x = x.float()
    if not bool(torch.isfinite(x).all()):
        raise ValueError("Input X contains NaN or infinity.")
    if float(x.abs().max()) > 1.001:
        raise ValueError(
            f"image values run from {float(x.min()):.4g} to {float(x.max()):.4g}; give uint8, or floats in [-1, 1]"
        )
    return x

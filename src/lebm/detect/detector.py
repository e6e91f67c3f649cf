"""Detector: an anomaly detector in PyOD's convention. Higher scores are more anomalous; a label is 0 (normal) or 1.

    detector = Detector(contamination=0.05).fit(X)      # images (n, h, w[, c]), or rows of a table
    detector.decision_function(new), detector.predict(new)

scikit-learn's OutlierMixin has the opposite signs; all else is as in its estimators: get_params, clone, Pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, check_is_fitted, check_random_state, validate_data
from torch import Tensor

from lebm.config import Config, from_dict, resolve
from lebm.config.build import build
from lebm.config.files import expand, merge
from lebm.core.device import pick_device
from lebm.core.errors import CheckpointError, ConfigError
from lebm.core.pixels import to_x
from lebm.core.tensors import load_tensors, save_tensors
from lebm.data.splits import size_settings
from lebm.detect.scores import Density, Scorer
from lebm.method import Method
from lebm.run import restore
from lebm.training.train import train

# An encoder infers z and the paper's chain synthesises; rates are for a thousand updates rather than seventy thousand.
RATES = {"prior": 1e-4, "generator": 1e-3, "encoder": 1e-3}
COMMON: dict[str, Any] = {
    "method.posterior_start": {"kind": "encoder", "objective": "reverse_kl"},
    "method.posterior_chain.steps": 0,
    "method.prior_chain.steps": 30,
    "method.energy.l2": 1e-2,  # bounds f, and with it z: a detector must not diverge
    "optimizers": {name: {"rate": rate, "betas": [0.9, 0.999]} for name, rate in RATES.items()},
    "training.updates": 1000,
}
IMAGES = {"nz": 16, "generator.kind": "image", "generator.ngf": 16, "method.posterior_start.width": 16}
TABLE = {"generator.kind": "table", "method.posterior_start.width": 64, "method.energy.width": 64}
ARRAYS = ("decision_scores_", "labels_", "mean_", "scale_")  # of a saved detector, and what else was learned
FITTED = ("threshold_", "n_features_in_", "fitted_shape_", "feature_names_in_")


class Detector(BaseEstimator):
    """A latent energy-based model that learns what is normal and scores what is not.

    contamination: the share of anomalies to expect, which sets `threshold_` on the scores of the training rows.
    score_by: joint (the paper's), chains, error, likelihood, prior or combined; see docs/anomaly.md.
    nz, updates, batch, sigma: of the model; None is a default that fits the kind of data. sigma None learns one for
        each column of a table, and is the paper's 0.3 for images.
    image_shape: (h, w) or (h, w, c) of images that come as flat rows.
    settings: more keys of the configuration, e.g. {"method.energy.width": 100}.
    device: auto, cpu or cuda. random_state: of the learning and of the noise in scores.
    """

    def __init__(
        self,
        *,
        contamination: float = 0.1,
        score_by: str = "combined",
        nz: int | None = None,
        updates: int | None = None,
        batch: int = 100,
        sigma: float | None = None,
        image_shape: tuple[int, ...] | None = None,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.contamination, self.score_by = contamination, score_by
        self.nz, self.updates, self.batch, self.sigma = nz, updates, batch, sigma
        self.image_shape, self.settings, self.device, self.random_state = image_shape, settings, device, random_state

    # --- learning -------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Detector:
        """Learn what rows of X look like. A few anomalies among them do no harm; labels are not used."""
        if not 0 < self.contamination <= 0.5:
            raise ValueError(f"contamination is {self.contamination}; it must be above 0 and at most 0.5")
        x = self._read(X, fitting=True)
        config = self._config(x)
        self.model_ = train(config, x, _build(config), device=self.device)
        self.scorer_ = Scorer(self.model_, self.score_by, config.seed)
        self.decision_scores_ = self.scorer_.fit_scores(x).numpy()
        self.threshold_ = float(np.quantile(self.decision_scores_, 1 - self.contamination))
        self.labels_ = (self.decision_scores_ > self.threshold_).astype(int)
        return self

    def _config(self, x: Tensor) -> Config:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        given = {"training.updates": self.updates, "nz": self.nz, "generator.sigma": self.sigma}
        values = expand({"seed": seed, "training.batch": self.batch})
        for more in (COMMON, _kind(x), {k: v for k, v in given.items() if v is not None}, self.settings or {}):
            values = merge(values, expand(more))
        return resolve(values)

    # --- scoring --------------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> np.ndarray:
        """The anomaly score of every row; a row's score does not depend on its neighbours."""
        check_is_fitted(self, "threshold_")
        scores: np.ndarray = self.scorer_(self._read(X)).numpy()
        return np.where(np.isnan(scores), np.inf, scores)  # a row so far off that its score overflows

    def predict(self, X: Any) -> np.ndarray:
        """1 for an anomaly, 0 for a normal row."""
        return (self.decision_function(X) > self.threshold_).astype(int)

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, 2): how normal and how anomalous a row is, from 0 to 1 over the training scores (PyOD's `linear`)."""
        check_is_fitted(self, "threshold_")
        low, high = self.decision_scores_.min(), self.decision_scores_.max()
        p = ((self.decision_function(X) - low) / (high - low if high > low else 1.0)).clip(0, 1)
        return np.stack([1 - p, p], 1)

    # --- what it accepts: images in several layouts, or rows of a table, checked as scikit-learn checks them -------

    def _read(self, X: Any, fitting: bool = False) -> Tensor:
        """Images as floats (n, c, h, w) in [-1, 1]; rows of a table standardised, as float64."""
        array = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
        if isinstance(array, np.ndarray) and array.ndim > 2:
            return self._images(array, fitting)
        kind = None if self.image_shape else "numeric"
        array = validate_data(self, array, dtype=kind, ensure_min_samples=2 if fitting else 1, reset=fitting)
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
        check_array(array, dtype=None, allow_nd=True, ensure_min_samples=least, input_name="X", estimator=self)
        shape = array.shape[1:3] + (array.shape[3:] or (1,))
        if fitting:
            self.fitted_shape_, self.n_features_in_ = shape, math.prod(shape)
            for name in ("mean_", "scale_"):
                self.__dict__.pop(name, None)
        elif shape != (fitted := getattr(self, "fitted_shape_", None)):
            raise ValueError(f"X has images of shape {shape}, but Detector was fitted on {fitted or 'rows of a table'}")
        x = torch.from_numpy(np.ascontiguousarray(array.reshape(len(array), *shape).transpose(0, 3, 1, 2)))
        if x.dtype == torch.uint8:
            return to_x(x)
        x = x.float()
        if float(x.abs().max()) > 1.001:
            raise ValueError(
                f"image values run from {float(x.min()):.4g} to {float(x.max()):.4g}; give uint8, or floats in [-1, 1]"
            )
        return x

    # --- files ----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Everything in one safetensors file; nothing in it can run code."""
        check_is_fitted(self, "threshold_")
        if not isinstance(self.random_state, int | None):
            raise ValueError("a detector whose random_state is a generator cannot be saved; fit it with a whole number")
        tensors = {name: torch.as_tensor(getattr(self, name)) for name in ARRAYS if hasattr(self, name)}
        for part, module in (("model", self.model_), ("density", self.scorer_.density)):
            tensors |= {f"{part}.{k}": t for k, t in module.state_dict().items()} if module is not None else {}
        fitted = {name: getattr(self, name) for name in FITTED if hasattr(self, name)}
        if "feature_names_in_" in fitted:
            fitted["feature_names_in_"] = list(map(str, self.feature_names_in_))
        settings = None if self.settings is None else dict(self.settings)
        meta = {"detector": self.get_params() | {"settings": settings}, "config": self.model_.config.to_dict()}
        save_tensors(Path(path), tensors, {**meta, "fitted": fitted})

    @classmethod
    def load(cls, path: str | Path, device: str | None = None) -> Detector:
        """A detector that `save` wrote, on the device it was made for or another."""
        path = Path(path)
        tensors, meta = load_tensors(path)
        if "detector" not in meta:
            raise CheckpointError(
                f"{path} is not a detector that Detector.save wrote; a model alone is read by lebm.load"
            )
        try:
            params, fitted = dict(meta["detector"]), dict(meta["fitted"])
            if params["image_shape"] is not None:
                params["image_shape"] = tuple(params["image_shape"])
            if device is not None:
                params["device"] = device
            detector = cls(**params)
            detector.model_ = _build(from_dict(meta["config"]))
            restore(detector.model_, _below("model", tensors), path)
            detector.model_.to(pick_device(detector.device)).eval()
            detector._restore(tensors, fitted)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, ConfigError) as e:
            raise CheckpointError(f"{path} is damaged: a part of the detector is missing or wrong ({e})") from None
        return detector

    def _restore(self, tensors: dict[str, Tensor], fitted: dict[str, Any]) -> None:
        self.scorer_ = Scorer(self.model_, self.score_by, self.model_.config.seed)
        if self.score_by == "combined":
            density = _below("density", tensors)
            self.scorer_.density = Density(*density["mixture.centres"].shape)
            self.scorer_.density.load_state_dict(density)
        for name in set(ARRAYS) & set(tensors):
            setattr(self, name, tensors[name].numpy())
        self.threshold_, self.n_features_in_ = float(fitted["threshold_"]), int(fitted["n_features_in_"])
        if shape := fitted.get("fitted_shape_"):
            self.fitted_shape_ = tuple(shape)
        elif not self.mean_.shape == self.scale_.shape == (self.n_features_in_,):
            raise ValueError("its columns do not match")
        if names := fitted.get("feature_names_in_"):
            self.feature_names_in_ = np.array(names, dtype=object)


def _kind(x: Tensor) -> dict[str, Any]:
    """The settings for rows of this kind and shape."""
    if x.ndim == 2:
        columns = x.shape[1]
        return {**TABLE, "nz": max(1, min(8, columns // 2)), "generator.columns": columns}
    side = size_settings(x.shape[2])
    if x.shape[2] != x.shape[3] or not side:
        raise ValueError(
            f"images of {x.shape[2]}x{x.shape[3]} pixels; give squares whose side is at most 16 times a power of two"
        )
    sizes = {key: int(value) for key, value in (setting.split("=") for setting in side)}
    return {**IMAGES, "generator.channels": x.shape[1], **sizes}


def _build(config: Config) -> Method:
    """The method; a table's is small and computed in float64, so that scores are exact to all digits that are shown."""
    method = build(config)
    return method.double() if config.generator.kind == "table" else method


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(f"{prefix}."): t for k, t in tensors.items() if k.startswith(f"{prefix}.")}

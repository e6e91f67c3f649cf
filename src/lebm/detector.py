"""Detector: an anomaly detector in PyOD's convention. Higher scores are more anomalous, and a label is 0 (normal) or 1 (an anomaly).

    detector = Detector(contamination=0.05).fit(X)      # images (n, h, w[, c]), or rows of a table
    detector.decision_function(new), detector.predict(new)

scikit-learn's OutlierMixin has the opposite signs; everything else here is as its estimators are: get_params, clone, Pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import Tensor

from lebm import checkpoint
from lebm.anomaly.density import Mixture
from lebm.anomaly.scores import Scorer
from lebm.config import Config, from_dict, resolve
from lebm.data.splits import size_settings
from lebm.errors import CheckpointError, ConfigError
from lebm.generators.image import to_x
from lebm.model import LatentEBM, restore
from lebm.training import pick_device, train

# An encoder infers z and the paper's chain synthesises; rates for a thousand updates rather than for seventy thousand.
COMMON: dict[str, Any] = {
    "draw.posterior": "amortised",
    "learning.prior_rate": 1e-4,
    "learning.generator_rate": 1e-3,
    "learning.encoder_rate": 1e-3,
    "learning.betas": [0.9, 0.999],
    "learning.l2": 1e-2,  # bounds f, and with it z: a detector must not diverge
    "chains.prior.steps": 30,
}
IMAGES: dict[str, Any] = {"nz": 16, "generator.kind": "image", "generator.ngf": 16, "encoder.width": 16, "training.steps": 1000}
TABLE: dict[str, Any] = {"generator.kind": "table", "encoder.width": 64, "prior.width": 64, "training.steps": 1000}
FITTED = ("decision_scores_", "labels_", "mean_", "scale_")  # arrays of a saved detector


class Detector(BaseEstimator):
    """A latent energy-based model that learns what is normal and scores what is not.

    contamination: the share of anomalies to expect, which sets `threshold_` on the scores of the training rows.
    score_by: joint (the paper's), chains, error, likelihood, prior or combined; see docs/anomaly.md.
    nz, steps, batch, sigma: of the model; None is a default that fits the kind of data. sigma None learns one for every column of a
        table, and is the paper's 0.3 for images.
    image_shape: (h, w) or (h, w, c) of images that come as flat rows.
    settings: more keys of the configuration, e.g. {"prior.width": 100}.
    device: auto, cpu or cuda. random_state: of the learning and of the noise in scores.
    """

    def __init__(
        self,
        *,
        contamination: float = 0.1,
        score_by: str = "combined",
        nz: int | None = None,
        steps: int | None = None,
        batch: int = 100,
        sigma: float | None = None,
        image_shape: tuple[int, ...] | None = None,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.contamination, self.score_by = contamination, score_by
        self.nz, self.steps, self.batch, self.sigma = nz, steps, batch, sigma
        self.image_shape, self.settings, self.device, self.random_state = image_shape, settings, device, random_state

    # --- learning ------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Detector:
        """Learn what rows of X look like. A few anomalies among them do no harm; labels are not used."""
        if not 0 < self.contamination <= 0.5:
            raise ValueError(f"contamination is {self.contamination}; it must be above 0 and at most 0.5")
        x = self._read(X, fitting=True)
        config = self._config(x)
        model = LatentEBM(config)
        model = model.double() if config.generator.kind == "table" else model  # small, and then scores are exact to all shown digits
        self.model_ = train(config, x, model, device=self.device)
        self.scorer_ = Scorer(self.model_, self.score_by, config.seed)
        self.decision_scores_ = self.scorer_.fit_scores(x).numpy()
        self.threshold_ = float(np.quantile(self.decision_scores_, 1 - self.contamination))
        self.labels_ = (self.decision_scores_ > self.threshold_).astype(int)
        return self

    def _config(self, x: Tensor) -> Config:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        own: dict[str, Any] = {"seed": seed, "training.batch": self.batch, "training.steps": self.steps, "nz": self.nz, "generator.sigma": self.sigma}
        return resolve({**COMMON, **self._kind(x), **{k: v for k, v in own.items() if v is not None}, **(self.settings or {})})

    def _kind(self, x: Tensor) -> dict[str, Any]:
        if x.ndim == 2:
            columns = x.shape[1]
            return {**TABLE, "nz": max(1, min(8, columns // 2)), "generator.columns": columns}
        side = size_settings(x.shape[2])
        if x.shape[2] != x.shape[3] or not side:
            raise ValueError(
                f"images of {x.shape[2]}x{x.shape[3]} pixels; give squares whose side is at most 16 times a power of two, such as 28 or 32"
            )
        return {**IMAGES, "generator.channels": x.shape[1], **dict(s.split("=") for s in side)}

    # --- scoring -------------------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> np.ndarray:
        """The anomaly score of every row; a row's score does not depend on its neighbours."""
        check_is_fitted(self, "threshold_")
        scores: np.ndarray = self.scorer_(self._read(X)).numpy()
        return np.where(np.isnan(scores), np.inf, scores)  # a row so far off that its score overflows

    def predict(self, X: Any) -> np.ndarray:
        """1 for an anomaly, 0 for a normal row."""
        return (self.decision_function(X) > self.threshold_).astype(int)

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, 2): how normal and how anomalous a row is, the training scores' range stretched to 0..1 (PyOD's `linear`)."""
        check_is_fitted(self, "threshold_")
        low, high = self.decision_scores_.min(), self.decision_scores_.max()
        p = ((self.decision_function(X) - low) / (high - low if high > low else 1.0)).clip(0, 1)
        return np.stack([1 - p, p], 1)

    # --- rows ----------------------------------------------------------------------------------------------------------

    def _read(self, X: Any, fitting: bool = False) -> Tensor:
        """Images as floats (n, c, h, w) in [-1, 1]; rows of a table standardised, as float64."""
        array = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
        if isinstance(array, np.ndarray) and array.ndim > 2:
            return self._images(array, fitting)
        least = 2 if fitting else 1
        kinds = {"dtype": None if self.image_shape else "numeric", "ensure_min_samples": least, "reset": fitting}
        array = validate_data(self, array, **kinds)
        if self.image_shape is not None:
            if math.prod(self.image_shape) != array.shape[1]:
                raise ValueError(f"image_shape is {self.image_shape}, but a row of X has {array.shape[1]} values")
            return self._images(array.reshape(-1, *self.image_shape), fitting)
        rows = array.astype(np.float64)
        if fitting:
            with np.errstate(over="ignore", invalid="ignore"):
                self.mean_, spread = rows.mean(0), rows.std(0)
            if not np.isfinite(spread).all():
                raise ValueError(f"column {int(np.argmin(np.isfinite(spread)))} of X is too large for its standard deviation; scale it down")
            self.scale_ = np.where(spread > 1e-12 * np.abs(self.mean_).clip(1e-300), spread, 1.0)  # a constant column stays as it is
        elif not hasattr(self, "mean_"):
            raise ValueError(f"X has rows of {array.shape[1]} values, but the detector was fitted on images; give images, or set image_shape")
        return torch.from_numpy((rows - self.mean_) / self.scale_)

    def _images(self, array: np.ndarray, fitting: bool) -> Tensor:
        if array.dtype.kind not in "uif" or array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in (1, 3)):
            raise ValueError(f"images of shape {array.shape} and type {array.dtype}; give numbers of shape (n, h, w) or (n, h, w, 1 or 3)")
        if len(array) < (2 if fitting else 1):
            raise ValueError(f"Found array with {len(array)} sample(s) while a minimum of {2 if fitting else 1} is required by Detector.")
        shape = array.shape[1:3] + (array.shape[3:] or (1,))
        if fitting:
            self.fitted_shape_, self.n_features_in_ = shape, math.prod(shape)
            for name in ("mean_", "scale_"):
                self.__dict__.pop(name, None)
        elif shape != getattr(self, "fitted_shape_", None):
            raise ValueError(f"X has images of shape {shape}, but Detector was fitted on {getattr(self, 'fitted_shape_', 'rows of a table')}")
        x = torch.from_numpy(np.ascontiguousarray(array.reshape(len(array), *shape).transpose(0, 3, 1, 2)))
        if x.dtype == torch.uint8:
            return to_x(x)
        x = x.float()
        if not bool(torch.isfinite(x).all()):
            raise ValueError("Input X contains NaN or infinity.")
        if float(x.abs().max()) > 1.001:
            raise ValueError(f"image values run from {float(x.min()):.4g} to {float(x.max()):.4g}; give uint8 pixels 0..255, or floats in [-1, 1]")
        return x

    # --- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Everything in one safetensors file; nothing in it can run code."""
        check_is_fitted(self, "threshold_")
        if not isinstance(self.random_state, int | None):
            raise ValueError("a detector whose random_state is a generator cannot be saved; fit it with a whole number")
        tensors = {f"model.{k}": t for k, t in self.model_.state_dict().items()}
        tensors |= {name: torch.from_numpy(np.asarray(getattr(self, name))) for name in FITTED if hasattr(self, name)}
        if self.scorer_.mixture is not None:
            tensors |= {f"mixture.{k}": t for k, t in self.scorer_.mixture.tensors().items()}
        meta = {
            "detector": {**self.get_params(), "settings": dict(self.settings) if self.settings is not None else None},
            "config": self.model_.config.to_dict(),
            "fitted": {"threshold_": self.threshold_, "n_features_in_": self.n_features_in_, "fitted_shape_": getattr(self, "fitted_shape_", None)},
        }
        names = getattr(self, "feature_names_in_", None)
        meta["fitted"]["feature_names_in_"] = None if names is None else [str(n) for n in names]
        checkpoint.save_tensors(Path(path), tensors, meta)

    @classmethod
    def load(cls, path: str | Path, device: str | None = None) -> Detector:
        """A detector that `save` wrote, on its own device or another."""
        path = Path(path)
        tensors, meta = checkpoint.load_tensors(path)
        if "detector" not in meta:
            raise CheckpointError(f"{path} is not a detector that Detector.save wrote; a model alone is read by lebm.load")
        try:
            params, fitted = dict(meta["detector"]), dict(meta["fitted"])
            if params["image_shape"] is not None:
                params["image_shape"] = tuple(params["image_shape"])
            detector = cls(**{**params, **({"device": device} if device else {})})
            model = LatentEBM(from_dict(meta["config"]))
        except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as e:
            raise CheckpointError(f"{path} is not a detector that lebm saved ({e}); fit it again") from None
        model = model.double() if model.config.generator.kind == "table" else model
        restore(model, {k.removeprefix("model."): t for k, t in tensors.items() if k.startswith("model.")}, path)
        detector._restore(model.to(pick_device(detector.device)).eval(), tensors, fitted, path)
        return detector

    def _restore(self, model: LatentEBM, tensors: dict[str, Tensor], fitted: dict[str, Any], path: Path) -> None:
        self.model_ = model
        self.scorer_ = Scorer(model, self.score_by, model.config.seed)
        try:
            if self.score_by == "combined":
                self.scorer_.mixture = Mixture(**{k.removeprefix("mixture."): t for k, t in tensors.items() if k.startswith("mixture.")})
            for name in FITTED:
                if name in tensors:
                    setattr(self, name, tensors[name].numpy())
            self.threshold_, self.n_features_in_ = float(fitted["threshold_"]), int(fitted["n_features_in_"])
            if fitted["fitted_shape_"] is not None:
                self.fitted_shape_ = tuple(int(n) for n in fitted["fitted_shape_"])
            if fitted["feature_names_in_"] is not None:
                self.feature_names_in_ = np.array([str(n) for n in fitted["feature_names_in_"]], dtype=object)
            if not hasattr(self, "fitted_shape_") and not self.mean_.shape == self.scale_.shape == (self.n_features_in_,):
                raise ValueError("its columns do not match")
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as e:
            raise CheckpointError(f"{path} is damaged: a part of the detector is missing or odd ({e}); fit it again") from None

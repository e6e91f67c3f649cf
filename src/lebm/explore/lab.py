"""What the page can ask of a model: plain values in, plain values out. Knows nothing of HTTP."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lebm import figures
from lebm.analysis import Subject
from lebm.analysis.chains import profile, start_of, walk
from lebm.data.pictures import decode_bytes
from lebm.errors import DataError, UserError
from lebm.generators.image import as_floats, to_pixels, to_x
from lebm.report.folder import data_uri

FRAMES, DIRECTIONS, ANCHORS, DOTS, SCORED = 20, 8, 8, 400, 64
MOST = {"k": 5000, "n": 32, "seed": 2**31, "frames": FRAMES}


class Lab:
    """A model on the bench. One question at a time: a lock keeps requests apart."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.model = subject, subject.model
        self.shape = self.model.images()
        self._lock = threading.Lock()
        z = torch.cat(list(self.model.sample_z(DOTS))).cpu()
        self._centre = z.mean(0)
        _, _, axes = torch.linalg.svd(z - self._centre, full_matrices=False)
        self._plane, self._dots = axes[:2], z
        self._spread = z.std(0).mean()
        self._directions = strongest(self.model, z[:ANCHORS])
        self._scores: np.ndarray | None = None
        self._scored = ""

    def info(self) -> dict[str, Any]:
        """What the page needs to draw itself."""
        c = self.model.config
        return {
            "experiment": c.experiment,
            "shape": list(self.shape),
            "nz": c.nz,
            "k": c.chains.prior.steps,
            "start": start_of(self.model),
            "step_size": c.chains.prior.step_size,
            "k1": c.chains.posterior.steps,
            "directions": len(self._directions),
            "map": self._place(self._dots),
            "most": MOST["k"],
            "frames": FRAMES,
            "report": (self.subject.run / "report.html").is_file(),
        }

    def chain(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Chains of K steps (none: the starts alone): start and so many frames as one sheet (a row a frame), energies, places on the map, and the last z."""
        k, n, seed, frames = (_whole(asked, key, low) for key, low in (("k", 0), ("n", 1), ("seed", 0), ("frames", 1)))
        s = _number(asked, "step_size", 0.001, 2.0)
        with self._lock:
            w = walk(self.model, k, max(1, math.ceil(k / frames)), n, seed, s)
        if not np.isfinite(w.energy).all() or not bool(torch.isfinite(w.z).all()):
            raise DataError(f"with step size {s:g} the chains fly apart; choose a smaller one")
        return {
            "steps": w.steps,
            "sheet": _png(w.pixels.flatten(0, 1), n),
            "energy": np.round(w.energy[w.steps, :n], 3).tolist(),
            "profile": profile(w.energy, 150),
            "z": [_short(row) for row in w.z[-1]],
            "trail": [self._place(frame) for frame in w.z],
        }

    def move(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The image at z plus so many standard deviations along each of the strongest directions."""
        z = self._vector(asked, "z", self.model.config.nz)
        by = self._vector(asked, "by", len(self._directions))
        with self._lock:
            z = z + self._spread * by @ self._directions
            image = to_pixels(self.model.decode(z.unsqueeze(0)).cpu())
        return {"image": _png(image, 1), **self._facts(z)}

    def image(self, data: bytes) -> dict[str, Any]:
        """An uploaded picture: what the model sees, what it makes of it, how strange it is and where it lies."""
        pixels = torch.from_numpy(decode_bytes(data, "the picture", self.shape).copy()).unsqueeze(0)
        x = to_x(pixels)
        with self._lock:
            z = self.model.infer(x)[0]
            x_hat = self.model.decode(z.unsqueeze(0)).cpu()
            score = float(-self.model.log_joint(x.to(self.model.device), z.unsqueeze(0).to(self.model.device)).detach())
        scores = self.reference()
        return {
            "seen": _png(pixels, 1),
            "image": _png(to_pixels(x_hat), 1),
            "mse": float((x - x_hat).square().mean()),
            "score": score,
            "stranger_than": float((scores < score).mean()),
            "against": f"{len(scores)} {self._scored}",
            **self._facts(z),
        }

    def reference(self) -> np.ndarray:
        """Scores of test images, or of the model's own samples where the data is not here; computed once."""
        with self._lock:
            if self._scores is None:
                try:
                    x, self._scored = as_floats(self.subject.splits.test[:SCORED]), "test images"
                except UserError:
                    x, self._scored = self.model.sample(SCORED), "samples of the model"
                self._scores = self.model.anomaly_score(x).double().numpy()
            return self._scores

    @torch.no_grad()
    def _facts(self, z: Tensor) -> dict[str, Any]:
        row = z.unsqueeze(0)
        f = float(self.model.prior.f(row.to(self.model.device)))
        return {"z": _short(z), "energy": round(-f, 3), "size": round(float(z.norm()), 3), "place": self._place(row)[0]}

    def _place(self, z: Tensor) -> list[list[float]]:
        return [_short(row, 2) for row in (z.cpu() - self._centre) @ self._plane.T]

    def _vector(self, asked: Mapping[str, Any], key: str, n: int) -> Tensor:
        values = asked.get(key)
        fine = isinstance(values, list) and len(values) == n and all(isinstance(v, int | float) and abs(v) < 1e4 for v in values)
        if not fine:
            raise DataError(f"{key} must be a list of {n} numbers")
        return torch.tensor(values, dtype=torch.float32)


@torch.no_grad()
def strongest(model: Any, z: Tensor, count: int = DIRECTIONS, step: float = 0.05) -> Tensor:
    """Directions along which the image changes most, on average over z: eigenvectors of E[J^T J], J by differences."""
    nz = z.shape[1]
    total = torch.zeros(nz, nz)
    eye = step * torch.eye(nz)
    for row in z:
        there = model.decode(torch.cat([row + eye, row - eye])).cpu().flatten(1)
        j = (there[:nz] - there[nz:]) / (2 * step)
        total += j @ j.T
    vectors = torch.linalg.eigh(total)[1].T.flip(0)[:count]
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    return vectors * largest.sign()  # one way round, whatever the library's choice


def _whole(asked: Mapping[str, Any], key: str, low: int) -> int:
    value = asked.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MOST[key]:
        raise DataError(f"{key} is {str(value)[:40]!r}; it must be a whole number from {low} to {MOST[key]}")
    return value


def _number(asked: Mapping[str, Any], key: str, low: float, high: float) -> float:
    value = asked.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise DataError(f"{key} is {str(value)[:40]!r}; it must be a number from {low:g} to {high:g}")
    return float(value)


def _short(values: Tensor | Sequence[float], digits: int = 4) -> list[float]:
    return [round(float(v), digits) for v in values]


def _png(pixels: Tensor, columns: int) -> str:
    return data_uri(figures.png(figures.grid(pixels, columns=columns, scale=1, gutter=0)), "image/png")

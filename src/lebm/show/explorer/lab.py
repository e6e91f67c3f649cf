"""What the page can ask of a model: plain values in, plain values out. It knows nothing of HTTP."""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lebm.core.errors import DataError, UserError
from lebm.core.pixels import as_tensor, to_pixels, to_x
from lebm.data.pictures import decode
from lebm.measure.analysis import Subject
from lebm.measure.chains import prior_chains, profile, trace
from lebm.method import Method
from lebm.show import pictures
from lebm.show.templates import data_uri, is_number

FRAMES, DIRECTIONS, ANCHORS, DOTS, SCORED = 20, 8, 8, 400, 64
# What the page may ask of chains: lowest and highest, whole numbers where these are whole.
LIMITS = {"k": (0, 5000), "n": (1, 32), "seed": (0, 2**31), "frames": (1, FRAMES), "step_size": (0.001, 2.0)}


class Lab:
    """A model to play with. It answers one question at a time: a lock keeps requests apart."""

    def __init__(self, subject: Subject) -> None:
        subject.images_only("the explorer's pictures")
        self.subject, self.method = subject, subject.method
        self.report = subject.run.path / "report.html"
        self._prior = prior_chains(self.method).prior
        self._lock = threading.Lock()
        z = torch.cat(list(self.method.sample_z(DOTS))).cpu()
        self._centre = z.mean(0)
        _, _, axes = torch.linalg.svd(z - self._centre, full_matrices=False)
        self._plane, self._dots = axes[:2], z
        self._spread = z.std(0).mean()
        self._directions = strongest(self.method, z[:ANCHORS])

    def info(self) -> dict[str, Any]:
        """What the page needs to draw itself."""
        prior, posterior = self.method.choose("prior"), self.method.choose("posterior")
        return {
            "name": self.method.config.name,
            "shape": list(self.method.generator.shape or ()),
            "nz": self._prior.nz,
            "k": prior.steps,
            "step_size": prior.step_size,
            "prior": prior.in_words(),
            "posterior": posterior.in_words(),
            "directions": len(self._directions),
            "map": self._place(self._dots),
            "most": LIMITS["k"][1],
            "frames": FRAMES,
            "report": self.report.is_file(),
        }

    def chain(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Chains of K steps (none: the starts alone): frames as one sheet, energies, places on the map, the last z."""
        k, n, seed, frames, s = (_number(asked, key) for key in LIMITS)
        with self._lock:
            t = trace(self.method, k, max(1, math.ceil(k / frames)), n, seed, s)
            z = t.z.cpu()
            if not np.isfinite(t.energy).all() or not bool(torch.isfinite(z).all()):
                raise DataError(f"with step size {s:g} the chains fly apart; choose a smaller one")
            pixels = to_pixels(self.method.decode(z.flatten(0, 1)).cpu())
        return {
            "steps": t.steps,
            "sheet": _png(pixels, n),
            "energy": np.round(t.energy[t.steps, :n], 3).tolist(),
            "profile": profile(t.energy, 150),
            "z": _short(z[-1]),
            "trail": [self._place(frame) for frame in z],
        }

    def move(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The image at z plus so many standard deviations along each of the strongest directions."""
        z, by = _vector(asked, "z", self._prior.nz), _vector(asked, "by", len(self._directions))
        with self._lock:
            z = z + self._spread * by @ self._directions
            image = to_pixels(self.method.decode(z.unsqueeze(0)).cpu())
            return {"image": _png(image, 1), **self._facts(z)}

    def image(self, data: bytes) -> dict[str, Any]:
        """An uploaded picture: what the model is given, its reconstruction, how strange it is, and where it lies."""
        channels, height, width = self.method.generator.shape or ()
        pixels = as_tensor(decode(io.BytesIO(data), (channels, height, width), "the picture")).unsqueeze(0)
        x = to_x(pixels)
        scores, scored = self.reference()
        with self._lock:
            z = self.method.encode(x)
            x_hat = self.method.decode(z).cpu()
            score = float(self.method.anomaly_score(x))
            return {
                "given": _png(pixels, 1),
                "image": _png(to_pixels(x_hat), 1),
                "mse": float((x - x_hat).square().mean()),
                "score": score,
                "stranger_than": float((scores < score).mean()),
                "against": f"{len(scores)} {scored}",
                **self._facts(z[0]),
            }

    def reference(self) -> tuple[np.ndarray, str]:
        """Scores of test images, or of the model's own samples where the data is not here; computed once."""
        with self._lock:
            return self._reference

    @cached_property
    def _reference(self) -> tuple[np.ndarray, str]:
        try:
            x, scored = self.subject.splits.test[:SCORED], "test images"
        except UserError:
            x, scored = self.method.sample(SCORED), "samples of the model"
        return self.method.anomaly_score(x).double().numpy(), scored

    @torch.no_grad()
    def _facts(self, z: Tensor) -> dict[str, Any]:
        f = float(self._prior.f(z.unsqueeze(0).to(self.method.device)))
        place = self._place(z.unsqueeze(0))[0]
        return {"z": _short(z), "energy": round(-f, 3), "size": round(float(z.norm()), 3), "place": place}

    def _place(self, z: Tensor) -> list[list[float]]:
        return _short((z.cpu() - self._centre) @ self._plane.T, 2)


@torch.no_grad()
def strongest(method: Method, z: Tensor, count: int = DIRECTIONS, step: float = 0.05) -> Tensor:
    """Directions along which the image changes most, on average over z: eigenvectors of E[J^T J], J by differences."""
    nz = z.shape[1]
    total = torch.zeros(nz, nz)
    eye = step * torch.eye(nz)
    for row in z:
        x = method.decode(torch.cat([row + eye, row - eye])).cpu().flatten(1)
        j = (x[:nz] - x[nz:]) / (2 * step)
        total += j @ j.T
    vectors = torch.linalg.eigh(total)[1].T.flip(0)[:count]
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    return vectors * largest.sign()  # the same sign whatever the library chose


def _number(asked: Mapping[str, Any], key: str) -> Any:
    value, (low, high) = asked.get(key), LIMITS[key]
    whole = isinstance(low, int)
    if not is_number(value) or not low <= value <= high or (whole and not isinstance(value, int)):
        what = "a whole number" if whole else "a number"
        raise DataError(f"{key} is {str(value)[:40]!r}; it must be {what} from {low} to {high}")
    return value


def _vector(asked: Mapping[str, Any], key: str, n: int) -> Tensor:
    values = asked.get(key)
    if not isinstance(values, list) or len(values) != n or not all(is_number(v) and abs(v) < 1e4 for v in values):
        raise DataError(f"{key} must be a list of {n} numbers")
    return torch.tensor(values, dtype=torch.float32)


def _short(values: Tensor, digits: int = 4) -> Any:
    return values.double().round(decimals=digits).tolist()


def _png(pixels: Tensor, columns: int) -> str:
    return data_uri(pictures.png(pictures.grid(pixels, columns=columns, scale=1, gutter=0)), "image/png")

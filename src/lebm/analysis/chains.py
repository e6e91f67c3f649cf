"""Chains of the learned prior from where the run's own start, with what they look like on the way (the paper's "Analysis of latent space")."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lebm import checkpoint, figures
from lebm.config import BASES, Chain
from lebm.errors import ConfigError
from lebm.generators import TextGenerator
from lebm.generators.image import to_pixels
from lebm.methods.ways import STARTS
from lebm.model import CHUNK, LatentEBM
from lebm.rng import stream

if TYPE_CHECKING:
    from lebm.analysis import Subject

WATCHED = 200  # chains behind the energy profile; the first of them are shown
STEPS, EVERY, ROWS = 100, 10, 8


def start_of(model: LatentEBM) -> str:
    """In words, where the run's own prior chains start."""
    return STARTS.get(model.config.draw.prior, BASES[model.config.prior.base])


def begun(start: str, k0: int) -> str:
    """A sentence on where the chains start, where it is not the paper's N(0, I) before K0 steps; else nothing."""
    if not k0:
        return f"This run has no prior chain (K0 = 0): its z are {start}, and the chains go on from there. "
    return "" if start == "N(0, I)" else f"The chains start from {start}, as the run's own do. "


@dataclass(frozen=True)
class Walk:
    """Chains as they were seen: z and images at `steps`, the energy -f of all watched chains after every step."""

    steps: list[int]
    z: Tensor  # (frames, rows, nz)
    pixels: Tensor  # uint8 (frames, rows, c, h, w)
    energy: np.ndarray  # (K + 1, WATCHED)

    @property
    def length(self) -> int:
        return len(self.energy) - 1


@torch.no_grad()
def walk(
    model: LatentEBM, steps: int = STEPS, every: int = EVERY, rows: int = ROWS, seed: int = 0, step_size: float | None = None, progress: Any = None
) -> Walk:
    """Run chains for `steps`, look at the first `rows` of them `every` so many steps. More rows or steps leave those shown as they are."""
    kept, z, energy = visit(model, steps, every, rows, seed, step_size, progress)
    pixels = to_pixels(model.decode(z.flatten(0, 1)).cpu())
    return Walk(kept, z.cpu(), pixels.view(*z.shape[:2], *pixels.shape[1:]), energy)


@torch.no_grad()
def visit(
    model: LatentEBM, steps: int, every: int, rows: int, seed: int = 0, step_size: float | None = None, progress: Any = None
) -> tuple[list[int], Tensor, np.ndarray]:
    """The steps at which chains were looked at, z of the first `rows` there (frames, rows, nz), and -f of all after every step."""
    if steps < 0 or every < 1 or not 1 <= rows <= WATCHED:
        raise ConfigError(f"{rows} chains of {steps} steps, shown every {every}: steps are at least 0, every at least 1, rows 1 to {WATCHED}")
    rng = stream(seed, "chains", model.device)
    chain = replace(model.config.chains.prior, steps=steps)
    chain = chain if step_size is None else Chain(steps, step_size)
    kept: list[int] = []
    seen: list[Tensor] = []
    energy: list[Tensor] = []

    def watch(k: int, z: Tensor) -> None:
        energy.append(-model.prior.f(z[:WATCHED]))
        if k % every == 0 or k == steps:
            kept.append(k)
            seen.append(z[:rows])
        if progress:
            progress(k, steps)

    model.prior.walk(model.starts(model.synthesis, CHUNK, rng)[0][:WATCHED], chain, rng, watch=watch)
    return kept, torch.stack(seen), torch.stack(energy).cpu().double().numpy()


def draw(subject: Subject, steps: int = STEPS, every: int | None = None, rows: int = ROWS, seed: int = 0) -> dict[str, Any]:
    """Figure, animation and data of a walk, written into the run folder; returns what the report needs."""
    every = every or max(1, steps // 10)
    if isinstance(subject.model.generator, TextGenerator):
        return _say(subject, steps, every, rows, seed)
    subject.images_only("these chains")
    with subject.bar("walking") as update:
        w = walk(subject.model, steps, every, rows, seed, progress=update)
    folder, k0 = subject.run / "figures", subject.model.config.chains.prior.steps
    figures.save(figures.transition(w.pixels, w.steps, w.energy, k0), folder / "chains.png")
    figures.save(figures.grid(w.pixels.flatten(0, 1), columns=rows, scale=1, gutter=0), folder / "chains-frames.png")
    checkpoint.write_atomic(folder / "chains.webp", figures.animation(w.pixels, w.steps))
    _save(subject.run / "chains.npz", w)
    return {
        "seed": seed,
        "start": start_of(subject.model),
        "steps": w.steps,
        "rows": rows,
        "tile": list(w.pixels.shape[-2:]),
        "trained": k0,
        "step_size": subject.model.config.chains.prior.step_size,
        "profile": profile(w.energy),
        "shown": [[round(float(e), 4) for e in w.energy[k, :rows]] for k in w.steps],
    }


def _say(subject: Subject, steps: int, every: int, rows: int, seed: int) -> dict[str, Any]:
    """The same for text: the likeliest words at every z that was looked at, data, and the energy as a figure."""
    model = subject.model
    with subject.bar("walking") as update:
        kept, z, energy = visit(model, steps, every, rows, seed, progress=update)
    text = model.text().to_text(model.decode(z.flatten(0, 1)))
    k0 = model.config.chains.prior.steps
    figures.save(figures.energy_profile(energy, trained=k0), subject.run / "figures" / "chains.png")
    arrays: dict[str, Any] = {"steps": np.array(kept), "z": z.cpu().numpy(), "energy": energy.astype(np.float32)}
    checkpoint.write_with(subject.run / "chains.npz", lambda temporary: np.savez_compressed(temporary, **arrays))
    return {
        "seed": seed,
        "start": start_of(model),
        "steps": kept,
        "rows": rows,
        "trained": k0,
        "step_size": model.config.chains.prior.step_size,
        "profile": profile(energy),
        "shown": [[round(float(e), 4) for e in energy[k, :rows]] for k in kept],
        "sentences": [text[i : i + rows] for i in range(0, len(text), rows)],
    }


def profile(energy: np.ndarray, points: int = 250) -> dict[str, list[float]]:
    """Median and spread of the energy over chains, at no more than so many steps."""
    at = np.unique(np.linspace(0, len(energy) - 1, min(points, len(energy))).round().astype(int))
    quantiles = np.quantile(energy[at], [0.1, 0.25, 0.5, 0.75, 0.9], axis=1)
    names = ("low", "lower", "middle", "upper", "high")
    return {"step": at.tolist(), **{name: np.round(q, 4).tolist() for name, q in zip(names, quantiles, strict=True)}}


def _save(path: Path, w: Walk) -> None:
    arrays: dict[str, Any] = {"steps": np.array(w.steps), "z": w.z.numpy(), "pixels": w.pixels.numpy(), "energy": w.energy.astype(np.float32)}
    checkpoint.write_with(path, lambda temporary: np.savez_compressed(temporary, **arrays))

"""How long a learned model takes: a learning iteration, and the inference of an image beside chains that do it as well."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from lebm.bench import Ours
from lebm.metrics.reconstruction import mean_squared_error
from lebm.model import LatentEBM

FIRST, MOST = 20, 1280  # steps of the shortest and the longest chain that inference is compared with
CALLS, ENOUGH = 5, 1.0  # an inference is timed so often, but not again once that took so many seconds


def iteration_ms(model: LatentEBM, rows: Tensor, warn: Callable[[str], None]) -> float:
    """One learning iteration of the run's configuration, by the engine that `lebm train` takes on this device; the model stays as it is.
    `warn` hears what training would warn of: where the fast engine does not run."""
    return Ours(model.config, rows.to(model.device), model.device, warn).iteration_ms()


def inference(
    model: LatentEBM, x: Tensor, seed: int, by: str | None, steps: int | None, update: Callable[[int, int], None]
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Milliseconds an image by the chosen way, and by chains from N(0, I) doubled until they reconstruct no worse."""

    def reconstructed(steps: int | None, by: str | None) -> tuple[float, float]:
        times: list[float] = []
        while len(times) < CALLS and sum(times) < ENOUGH:
            begun = time.perf_counter()
            z = model.infer(x, seed, steps, shared_noise=False, by=by)  # comes back on the CPU: the device is done
            times.append(time.perf_counter() - begun)
        return mean_squared_error(x, model.decode(z).cpu()), 1e3 * statistics.median(times) / len(x)

    drawing = model.drawing("posterior", by, steps)
    model.infer(x, seed, steps, shared_noise=False, by=by)  # warms up
    error, own = reconstructed(steps, by)
    how = {"images": len(x), **drawing.protocol(), "mse": error, "code_path": "reference", "timed": f"median of up to {CALLS} calls"}
    if drawing.by == "langevin":
        return {"infer_ms": own, "infer_chains_ms": None, "infer_ratio": None}, how
    longer, again, other = FIRST // 2, math.inf, 0.0
    while again > error and longer < MOST:
        longer *= 2
        again, other = reconstructed(longer, "langevin")
        update(longer, MOST)
    what = "no larger error" if again <= error else "still a larger error"
    how |= {"chains": f"from N(0, I), doubled from {FIRST} to {longer} steps: {what}", "chains_mse": again}
    return {"infer_ms": own, "infer_chains_ms": other, "infer_ratio": other / own}, how

"""Reconstruction error, as the paper's Table 1 counts it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from lebm.measure.inception import float32_precision
from lebm.measure.metric import LONG, Evaluation, Metric, Number, Numbers


def mean_squared_error(x: Tensor, x_hat: Tensor) -> float:
    """Mean over rows, pixels and channels of (x - x_hat)^2, in float64."""
    return float((x.double() - x_hat.double()).square().mean())


def measure(ev: Evaluation) -> Iterator[Numbers]:
    """On all test rows, with the training K1 and with LONG posterior steps; only one of the two where one of them has
    no chain.
    """
    spec, own = ev.spec("posterior"), ev.method.choose("posterior")
    steps = {"mse": spec.steps, "mse_100": LONG}
    if not spec.steps:
        del steps["mse_100"]
    elif not own.steps and spec.steps == LONG:  # chains that were not asked to be of another length
        del steps["mse"]
    rows = ev.unseen()
    ev.protocol.update(
        images=_which(ev, len(rows)), sampler=spec.to_dict(), steps={}, precision=float32_precision(ev.method.device)
    )
    x = ev.method.generator.from_storage(rows)
    out: Numbers = {"mse": None, "mse_100": None}
    for key, n in steps.items():
        with ev.reporter.progress(f"reconstructing for {key}") as update:
            z = ev.method.encode(x, ev.seed, replace(spec, steps=n), shared_noise=False, progress=update)
        out[key] = mean_squared_error(x, ev.method.decode(z).cpu())
        ev.protocol["steps"] = {**ev.protocol["steps"], key: n}
        yield out


def _which(ev: Evaluation, n: int) -> str:
    if ev.split != "validation":
        return f"{'all' if n == len(ev.test) else 'the first'} {n} test images"
    limit = ev.learned_limit
    learned = limit is None or limit > len(ev.splits.train) - len(ev.held_out())
    also = ", which this run learned from (no data.limit)" if learned else ""
    return f"the last {n} training images held out{also}"


ABOUT = "Mean squared error of test reconstructions, per pixel"
LONGER = "The same with a longer posterior chain."
MSE = Metric(
    "mse", "Reconstruction error", True, f"{ABOUT}, with the run's own posterior chain and with {LONG} steps.",
    "posterior", measure=measure, modalities=("image", "table", "other"), gives=(
        Number("mse", "Reconstruction error", True, f"{ABOUT}.", "posterior"),
        Number("mse_100", f"Reconstruction error, {LONG} steps", True, LONGER, "posterior"),
    ),
)  # fmt: skip

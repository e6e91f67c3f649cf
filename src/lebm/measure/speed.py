"""How long a model takes: a learning update, and the inference of a row beside chains that infer as well."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from lebm.config.build import build, make_optimizers
from lebm.core.progress import Progress
from lebm.core.rng import stream
from lebm.measure.metric import Evaluation, Metric, Number, Numbers
from lebm.measure.mse import mean_squared_error
from lebm.method import Method
from lebm.sampler import SamplerSpec
from lebm.training import engine

ROWS = 1000  # rows that are inferred, where the caller names no number
FIRST, MOST = 20, 1280  # steps of the shortest and the longest chain that inference is compared with
CALLS, ENOUGH = 5, 1.0  # an inference is timed so often, but not again once that took so many seconds
BETWEEN = 100  # updates over which the work between updates is averaged


def milliseconds(call: Callable[[], Any], seconds: float = 2.0) -> float:
    """Median time of a call, waiting for the device. Short calls are timed many together."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    timer.timeit(3)  # a few calls warm up
    return 1e3 * timer.blocked_autorange(min_run_time=seconds).median


def iteration_ms(config: Any, rows: Tensor, device: torch.device, warn: Callable[[str], None]) -> float:
    """One learning update of the configuration without its stages, and its share of the work between updates."""
    config = config.with_values(**{"training.stages": []})
    method, rows, index = build(config).to(device), rows.to(device), torch.arange(len(rows), device=device)
    optimizers = make_optimizers(method, config, capturable=engine.wanted(config, device))
    learn = engine.choose(config, method, optimizers, stream(config.seed, "chain", device), rows, index, warn)

    def between() -> None:
        for k in range(BETWEEN):
            method.between_updates(k + 1)

    return milliseconds(lambda: learn(rows, index)) + milliseconds(between, 0.5) / BETWEEN


def inference(
    method: Method, x: Tensor, seed: int, spec: SamplerSpec, progress: Progress
) -> tuple[Numbers, dict[str, Any]]:
    """Milliseconds a row by the chosen sampler, and by chains from N(0, I) doubled until they reconstruct no worse."""

    def reconstruct(spec: SamplerSpec) -> tuple[float, float]:
        times: list[float] = []
        while len(times) < CALLS and sum(times) < ENOUGH:
            begun = time.perf_counter()
            z = method.encode(x, seed, spec, shared_noise=False)  # comes back on the CPU: the device is done
            times.append(time.perf_counter() - begun)
        return mean_squared_error(x, method.decode(z).cpu()), 1e3 * statistics.median(times) / len(x)

    method.encode(x, seed, spec, shared_noise=False)  # warms up
    error, own = reconstruct(spec)
    protocol = {"images": len(x), "sampler": spec.to_dict(), "mse": error, "timed": f"median of up to {CALLS} calls"}
    if spec.start == "noise" or "noise" not in method.starts("posterior"):
        return {"infer_ms": own, "infer_chains_ms": None, "infer_ratio": None}, protocol
    steps = FIRST
    while True:
        chains = method.choose("posterior", "noise", steps)
        again, other = reconstruct(chains)
        progress(steps, MOST)
        if again <= error or 2 * steps > MOST:
            break
        steps *= 2
    protocol |= {"chains": chains.to_dict(), "chains_mse": again}
    return {"infer_ms": own, "infer_chains_ms": other, "infer_ratio": other / own}, protocol


def measure(ev: Evaluation) -> Numbers:
    config, rows = ev.method.config, ev.unseen(ROWS)
    with ev.reporter.progress("chains of equal error") as progress:
        x = ev.method.generator.from_storage(rows)
        numbers, protocol = inference(ev.method, x, ev.seed, ev.spec("posterior"), progress)
    warnings: list[str] = []
    one = iteration_ms(config, ev.train[: config.training.batch], ev.method.device, warnings.append)
    ev.protocol.update(protocol, **({"engine": "; ".join(warnings)} if warnings else {}))
    return {"iteration_ms": one, **numbers}


SPEED = Metric(
    "speed", "Speed", None,
    "Milliseconds of a learning update and of inference, the latter beside chains of equal error.",
    measure=measure, modalities=("image", "table", "other"), gives=(
        Number("iteration_ms", "Milliseconds an update", True, "One learning update on this device."),
        Number("infer_ms", "Milliseconds to infer a row", True, "Inference of one row, without decoding.", "posterior"),
        Number("infer_chains_ms", "Milliseconds by chains alone", None,
               "Chains from N(0, I), as long as it takes for an equal error."),
        Number("infer_ratio", "Times faster than chains alone", False, "At equal error of reconstructions."),
    ),
)  # fmt: skip

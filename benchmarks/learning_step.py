"""How fast is a learning update: the paper's listing, lebm, their parts, and the floor that arithmetic sets.

    python benchmarks/learning_step.py --preset svhn/paper --preset ptb/paper --out results/bench.json

The rows are noise. What is timed of lebm is the update that `lebm train` makes on this device; where it would fall back
to a slower one, the benchmark refuses.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from listing import LISTINGS
from torch import Tensor

from lebm import fast
from lebm.config import Config, TextConfig, resolve
from lebm.config.build import build, make_optimizers
from lebm.core.device import fitting_threads, pick_device
from lebm.core.errors import ConfigError, UserError
from lebm.core.rng import stream
from lebm.core.words import END, PAD, UNKNOWN
from lebm.data.batches import width
from lebm.latent_ebm import LatentEBM
from lebm.measure import result as results
from lebm.measure.speed import milliseconds
from lebm.method import Method
from lebm.sampler import langevin
from lebm.training import engine

BATCHES, LENGTHS = (25, 50, 100, 200, 400), (10, 20, 40, 80)
WORDS = 24  # of a sentence here, </s> included, as in PTB
BETWEEN = 100  # updates over which the work between updates is averaged


def example(config: Config, n: int) -> Tensor:
    """Rows of noise as they are stored: pixels, or sentences of about WORDS words, padded as training pads them."""
    g = config.generator
    if isinstance(g, TextConfig):
        shape = (n, min(width(WORDS + 8), g.length + 1))
        x = torch.randint(UNKNOWN, g.vocabulary, shape, dtype=torch.int32)
        last = torch.randint(min(WORDS - 8, x.shape[1] - 1), x.shape[1], (n, 1))
        at = torch.arange(x.shape[1])
        return x.masked_fill(at == last, END).masked_fill(at > last, PAD)
    image = config.image
    return torch.randint(0, 256, (n, image.channels, image.size, image.size), dtype=torch.uint8)


def flops(config: Config, rows: int) -> float:
    """Multiply-adds times two of one learning update: both chains, the encoder, all networks."""
    method, text = config.method, config.generator.kind == "text"
    with torch.device("meta"):
        generator = config.generator.build(config.nz)
        forward = generator.flops(1) * (WORDS if text else 1)
        start = method.posterior_start
        with_encoder = start.kind == "encoder" and not text
        encoder = generator.make_encoder(config.nz, start.width, start.depth).flops(1) if with_encoder else 0.0
    e = method.energy
    energy = 0.0 if e is None else 2.0 * (config.nz * e.width + (e.depth - 1) * e.width**2 + e.width)
    k0, k1 = method.prior_chain.steps, method.posterior_chain.steps
    out = 2 * k0 * energy + k1 * (2 * forward + 2 * energy) + 3 * forward + 6 * energy
    if with_encoder:
        out += 4 * encoder  # a proposal, and a loss: forward, and twice that back
        if start.objective == "reverse_kl":
            out += 2 * forward + 2 * energy
    return rows * out  # the few products of a flow are left out


def matrix_rate(device: torch.device) -> float:
    """Floating-point operations a second of a large matrix product: bfloat16 on CUDA, float32 on a CPU."""
    n, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (2048, torch.float32)
    a, b = torch.randn(n, n, device=device).to(dtype), torch.randn(n, n, device=device).to(dtype)
    return 2 * n**3 / (milliseconds(lambda: a @ b, 1.0) / 1e3)


class Ours:
    """Our update as `lebm train` makes it on this device, and its two chains."""

    def __init__(self, config: Config, rows: Tensor, device: torch.device) -> None:
        config = config.with_values(**{"training.stages": []})  # the stage after the last one
        self.config, self.rows, self.device = config, rows, device
        method = build(config).to(device)
        assert isinstance(method, LatentEBM)
        self.method, self.rng = method, stream(config.seed, "chain", device)
        config.method.apply(method)
        optimizers = make_optimizers(method, config, capturable=engine.wanted(config, device))
        self.index = torch.arange(len(rows), device=device)
        self.update: Any = engine.choose(config, method, optimizers, self.rng, rows, self.index, _refuse)

    def __call__(self) -> None:
        self.update(self.rows, self.index)

    def update_ms(self, seconds: float = 2.0) -> float:
        """One learning update, and its share of the work between updates."""
        between = lambda: [self.method.between_updates(k + 1) for k in range(BETWEEN)]  # noqa: E731
        once = milliseconds(self, seconds)
        return once + milliseconds(between, seconds / 4) / BETWEEN

    def parts(self) -> dict[str, float]:
        """Prior and posterior chain alone, in milliseconds, run as the engine runs them."""
        captured = self.device.type == "cuda" and hasattr(self.update, "graphs")
        step = self.update.step if captured else None
        prior, posterior = self._fused(step) if hasattr(step, "posterior_chain") else self._plain()
        graph = partial(_graph, rng=self.rng) if captured else lambda call: call
        return {
            "prior_ms": milliseconds(graph(prior)),
            "posterior_ms": milliseconds(graph(posterior)),
        }

    def _fused(self, step: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
        rows = next(iter(self.update.graphs.values())).rows
        x = self.method.generator.from_storage(rows)

        def posterior_and_encoder() -> None:
            step.posterior_chain(rows, x)
            step.start_stream.join()

        return step.prior_chain, posterior_and_encoder

    def _plain(self) -> tuple[Callable[[], Any], Callable[[], Any]]:
        method, n, base = self.method, len(self.rows), self.method.prior.base
        x = method.generator.from_storage(self.rows)

        def prior() -> None:
            z0 = base.unwhiten(method.prior_start(method.start_noise(base.noise(n, self.rng))))
            method.run_prior_chain(z0, method.prior_chain, self.rng)

        def posterior() -> None:
            z0 = method.posterior_start(base.noise(n, self.rng), x)
            langevin(partial(method.posterior_score, x), z0, method.posterior_chain, self.rng)

        def alike(walk: Callable[[], None]) -> Callable[[], None]:
            def call() -> None:
                with torch.no_grad(), engine.float32_convolutions(self.config.precision):
                    walk()

            return fast.with_words(method, call, self.config.precision) if self.device.type == "cuda" else call

        return alike(prior), alike(posterior)


def _refuse(words: str) -> None:
    """A benchmark measures what was asked for, or nothing."""
    raise ConfigError(
        f"the benchmark would not measure what was asked for: {words}; ask for engine=reference or another precision"
    )


def _graph(call: Callable[[], Any], rng: torch.Generator) -> Callable[[], Any]:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(rng)
    with torch.no_grad(), torch.cuda.graph(graph):
        call()
    return graph.replay


def samples_per_second(method: Method, config: Config) -> float:
    """`Method.sample` with the images left on the device; of text, sentences sampled word by word."""
    fast.accelerate(method, config.precision)
    n = 500 if method.engine is None else 50_000
    sample = lambda: method.sample(n, on_device=True)  # noqa: E731
    return n / (milliseconds(sample, 0.5 if method.generator.autoregressive else 2.0) / 1e3)


def measure(config: Config, device: torch.device, sweep: bool) -> dict[str, Any]:
    """Every number of one preset."""
    batch = config.training.batch
    stored = example(config, max(batch, *BATCHES)).to(device)
    rows = stored[:batch]
    out: dict[str, Any] = {"batch": batch, **_listing(config, rows, device)}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    ours = Ours(config, rows, device)
    with fitting_threads(ours.method.generator.flops(batch), device):  # as `lebm train` does
        out["ours_ms"] = ours.update_ms()
        out.update({f"ours_{k}": v for k, v in ours.parts().items()})
    if device.type == "cuda":
        out["ours_peak_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
    out["ratio"] = out["listing_ms"] / out["ours_ms"]
    out["prior_ratio"] = out["listing_prior_ms"] / out["ours_prior_ms"]
    out["images_per_s"] = samples_per_second(ours.method, config)
    out["flops"] = flops(config, batch)
    out["matrix_flops_per_s"] = matrix_rate(device)
    out["floor_ms"] = 1e3 * out["flops"] / out["matrix_flops_per_s"]
    out["fraction_of_floor"] = out["floor_ms"] / out["ours_ms"]
    if sweep:
        out["sweep"] = _sweep(config, stored, device)
    return out


def _listing(config: Config, rows: Tensor, device: torch.device) -> dict[str, float]:
    """The listing at PyTorch's default precision, which is the base of every ratio, and with TF32 everywhere."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    listing = LISTINGS[config.generator.kind](config, device)
    x = config.generator.build(config.nz).from_storage(rows)
    z = listing.start(len(x))
    out = {
        "listing_ms": milliseconds(lambda: listing(x), 3.0),
        "listing_prior_ms": milliseconds(lambda: listing.prior(z)),
        "listing_posterior_ms": milliseconds(lambda: listing.posterior(z, x)),
        "listing_update_ms": milliseconds(lambda: listing.update(x, z, z), 1.0),
    }
    if device.type == "cuda":
        out["listing_peak_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
        matmul.allow_tf32 = cudnn.allow_tf32 = cudnn.benchmark = True
        out["listing_tf32_ms"] = milliseconds(lambda: listing(x), device)
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
    return out


def _sweep(config: Config, stored: Tensor, device: torch.device) -> dict[str, dict[str, float]]:
    """How the cost of our update grows with the batch and with the length of each chain."""

    def update_ms(c: Config, n: int) -> float:
        ours = Ours(c, stored[:n], device)
        with fitting_threads(ours.method.generator.flops(n), device):
            return ours.update_ms(0.5)

    def by_length(chain: str) -> dict[str, float]:
        key, batch = f"method.{chain}_chain.steps", config.training.batch
        return {str(k): update_ms(config.with_values(**{key: k}), batch) for k in LENGTHS}

    batches = {str(n): update_ms(config, n) for n in BATCHES}
    return {"batch": batches, "k0": by_length("prior"), "k1": by_length("posterior")}


def benchmark(
    presets: list[str], device_name: str, out: Path | None, sweep: bool, settings: list[str]
) -> dict[str, Any]:
    """Measure the presets, print a table of each, and write the result file."""
    device = pick_device(device_name)
    begun, metrics, configs = time.monotonic(), {}, {}
    for preset in presets:
        config = resolve(preset, settings)
        configs[preset] = config.to_dict()
        if config.method.kind != "latent-ebm" or config.method.energy is None:
            raise ConfigError(f"preset {preset} has no energy network; the benchmark compares models that have one")
        print(f"measuring {preset} ...", flush=True)
        metrics[preset] = measure(config, device, sweep and preset == presets[0])
        print(table(preset, metrics[preset]), flush=True)
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    name = f"bench-{'h200' if 'H200' in gpu else device.type}"
    summary = results.result(
        name=name,
        metrics=metrics,
        protocol={
            "listing": "the paper's listing, corrected, eager, PyTorch's default precision; for text the same loop",
            "ours": "the update of `lebm train` with its default engine",
            "time": "median of repeated calls after warm-up, device synchronised",
            "samples": "`Method.sample` in the precision that the configuration asks for, left on the device",
            "floor": "FLOPs of the update over the rate of a large matrix product measured in the same run "
            "(bf16 on CUDA, float32 on a CPU)",
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        data={"name": "noise"},
        config=configs,
        device=results.device_name(device),
        seconds=round(time.monotonic() - begun, 1),
    )
    results.write(out or Path("results") / f"{name}.json", summary)
    return summary


def table(preset: str, m: dict[str, Any]) -> str:
    """The numbers of one preset, as text."""
    times = (("the paper's listing", "listing"), ("lebm", "ours"))
    lines = [f"{preset}: one learning update, batch {m['batch']}", " " * 22 + "ms   prior  posterior  peak MiB"]
    for title, key in times:
        cells = [m.get(f"{key}_{k}") for k in ("ms", "prior_ms", "posterior_ms", "peak_mib")]
        lines.append(f"{title:<20}" + "".join("          " if c is None else f"{c:10.2f}" for c in cells))
    if "listing_tf32_ms" in m:
        lines.append(f"{'the same, TF32':<20}{m['listing_tf32_ms']:10.2f}")
    lines += [
        f"{'floor':<20}{m['floor_ms']:10.2f}   {m['fraction_of_floor']:.0%} reached",
        f"{m['ratio']:.1f} times faster, the prior chain {m['prior_ratio']:.1f} times",
        f"{m['images_per_s']:,.0f} samples a second",
    ]
    for what, values in m.get("sweep", {}).items():
        lines.append(f"  ms by {what}: " + ", ".join(f"{k}: {v:.2f}" for k, v in values.items()))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a learning update beside the paper's listing and the floor.")
    parser.add_argument("--preset", action="append", help="may be repeated; svhn/paper on CUDA, digits/paper on a CPU")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="the result file; results/bench-DEVICE.json")
    parser.add_argument("--no-sweep", action="store_true", help="do not vary batch and chains of the first preset")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the configuration"
    )
    given = parser.parse_args()
    try:
        presets = given.preset or ["svhn/paper" if pick_device(given.device).type == "cuda" else "digits/paper"]
        benchmark(presets, given.device, given.out, not given.no_sweep, given.set)
    except UserError as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    main()

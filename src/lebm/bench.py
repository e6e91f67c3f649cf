"""How fast is a learning iteration: the paper's listing, ours, the parts, and the floor that arithmetic sets."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from lebm import fast, results
from lebm.config import Config, resolve
from lebm.config import TextGenerator as TextSection
from lebm.data.batches import width
from lebm.errors import ConfigError
from lebm.generators import GENERATORS, TextGenerator
from lebm.generators.image import as_floats
from lebm.learn import float32_convolutions
from lebm.listing import LISTINGS
from lebm.loop import choose_engine
from lebm.methods import Fresh
from lebm.methods.encoder import ImageNet
from lebm.model import LatentEBM
from lebm.prior import REFIT
from lebm.sampler import langevin
from lebm.state import TrainingState
from lebm.training import fitting_threads, pick_device
from lebm.words import END, PAD, UNKNOWN

BATCHES, LENGTHS = (25, 50, 100, 200, 400), (10, 20, 40, 80)
WORDS = 24  # of a sentence here, </s> included: as PTB's


def example(config: Config, n: int) -> Tensor:
    """Rows of noise in the generator's form: pixels, or sentences of about WORDS words, padded as learning pads them."""
    if isinstance(config.generator, TextSection):
        x = torch.randint(UNKNOWN, config.generator.vocabulary, (n, min(width(WORDS + 8), config.generator.length + 1)), dtype=torch.int32)
        last = torch.randint(min(WORDS - 8, x.shape[1] - 1), x.shape[1], (n, 1))
        at = torch.arange(x.shape[1])
        return x.masked_fill(at == last, END).masked_fill(at > last, PAD)
    g = config.image
    return torch.randint(0, 256, (n, g.channels, g.size, g.size), dtype=torch.uint8)


# --- measuring ------------------------------------------------------------------------------------------------------


def milliseconds(call: Callable[[], Any], device: torch.device, seconds: float = 2.0) -> float:
    """Median time of a call, waiting for the device; a few calls warm up."""
    for _ in range(3):
        call()
    _wait(device)
    begun = time.perf_counter()
    call()
    _wait(device)
    once = max(time.perf_counter() - begun, 1e-6)
    block = max(1, int(0.02 / once))  # many short calls are timed together: the clock's wait would count too
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 200):
        begun = time.perf_counter()
        for _ in range(block):
            call()
        _wait(device)
        times.append((time.perf_counter() - begun) / block)
    return 1e3 * statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def flops(config: Config, rows: int) -> float:
    """Multiply-adds times two of one learning iteration: both chains, the encoder, all updates."""
    with torch.device("meta"):
        generator = GENERATORS[config.generator.kind](config.nz, config.generator)
    forward = generator.flops(1) * (WORDS if config.generator.kind == "text" else 1)  # type: ignore[operator]
    p = config.prior
    energy = 0.0 if p.kind == "gaussian" else 2.0 * (config.nz * p.width + (p.depth - 1) * p.width**2 + p.width)
    k0, k1 = config.chains.prior.steps, config.chains.posterior.steps
    out = 2 * k0 * energy + k1 * (2 * forward + 2 * energy) + 3 * forward + 6 * energy
    if config.draw.encoder and config.generator.kind == "image":
        with torch.device("meta"):
            out += 4 * ImageNet(config).flops(1)  # a proposal, and a lesson: forward, and twice that back
        if config.encoder.teach == "follow" or config.draw.posterior == "amortised":
            out += 2 * forward + 2 * energy
    return rows * out  # a flow's few products are left out


def matrix_rate(device: torch.device) -> float:
    """Floating-point operations a second of a large matrix product: bf16 on CUDA, float32 on a CPU."""
    n, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (2048, torch.float32)
    a, b = torch.randn(n, n, device=device).to(dtype), torch.randn(n, n, device=device).to(dtype)
    return 2 * n**3 / (milliseconds(lambda: a @ b, device, 1.0) / 1e3)


class Ours:
    """Our step as `lebm train` runs it on this device, and its parts."""

    def __init__(self, config: Config, rows: Tensor, device: torch.device, warn: Callable[[str], None]) -> None:
        self.config, self.rows, self.device = config, rows, device
        self.model = LatentEBM(config).to(device)
        state = TrainingState(config, self.model, device, capturable=fast.wanted(config, device))
        state.step = config.draw.alone  # with the chain that is to be timed
        self.rng = state.rng
        self.engine = choose_engine(state, rows, warn)
        iterate: Any = getattr(self.engine, "iterate", None)
        self.fused = iterate if hasattr(iterate, "posterior_chain") else None

    def iteration_ms(self, seconds: float = 2.0) -> float:
        """One learning iteration, and its share of the fits of p_0 where that is fitted."""
        one = milliseconds(lambda: self.engine(self.rows), self.device, seconds)
        prior = self.model.prior
        return one + milliseconds(prior.refit, self.device, seconds / 4) / REFIT if prior.fitted else one

    def parts(self) -> dict[str, float]:
        """Prior and posterior chain alone, in milliseconds."""
        if self.fused is not None:
            fused = self.fused

            def prior_chain() -> None:
                fused.start_prior()
                fused.prior.chain(fused.z_neg, fused.z0_neg, fused.seeds[:1], self.config.chains.prior, fused.fresh["prior"])

            def with_lesson() -> None:
                fused.posterior_chain(self.engine.rows)  # type: ignore[attr-defined]
                fused.fourth.join()

            prior, posterior = _graph(prior_chain, self.rng), _graph(with_lesson, self.rng)
            return {"prior_ms": milliseconds(prior, self.device), "posterior_ms": milliseconds(posterior, self.device)}
        n, x, model, chains = len(self.rows), as_floats(self.rows), self.model, self.config.chains

        def prior_walk(e: Tensor) -> Tensor:
            return model.prior.walk(model.start_prior(e), chains.prior, self.rng)

        def posterior_walk(e: Tensor) -> Tensor:
            return langevin(partial(model.posterior_score, x), model.inference.start(e, x), chains.posterior, self.rng)

        def timed(walk: Callable[[Tensor], Tensor]) -> float:
            def call() -> None:
                with torch.no_grad(), self.precision():
                    walk(model.prior.draw_base(n, self.rng))

            captured = hasattr(self.engine, "graphs") or hasattr(self.engine, "graph")
            return milliseconds(_graph(call, self.rng) if captured else call, self.device)  # as the engine runs it

        return {"prior_ms": timed(prior_walk), "posterior_ms": timed(posterior_walk)}

    def precision(self) -> AbstractContextManager[None]:
        """As the engine's: of convolutions, or of a text engine's table of words x vocabulary."""
        if not hasattr(self.engine, "graphs"):
            return float32_convolutions(self.config.precision)
        from lebm.fast.text import working

        return working(self.model)


def _refuse(words: str) -> None:
    """A benchmark measures what was asked for, or nothing."""
    raise ConfigError(f"the bench would not measure what was asked for: {words}; ask for engine=reference or another precision")


def _graph(call: Callable[[], Any], rng: torch.Generator) -> Callable[[], Any]:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(rng)
    with torch.no_grad(), torch.cuda.graph(graph):
        call()
    return graph.replay


def images_per_second(model: LatentEBM, device: torch.device) -> float:
    """Samples by K0-step chains and one decoding, in large batches; of text, sentences sampled word by word."""
    if isinstance(model.generator, TextGenerator):
        return 500 / (milliseconds(lambda: model.sample_words(500), device, 0.5) / 1e3)
    if device.type == "cuda" and fast.plain_images(model) and fast.plain_prior_chain(model.config) and type(model.synthesis) is Fresh:
        from lebm.fast.sampling import FastSampler

        rows = 8192
        sampler = FastSampler(model, rows)
        return rows / (milliseconds(lambda: sampler(1), device) / 1e3)
    return 500 / (milliseconds(lambda: [model.decode(z) for z in model.sample_z(500)], device) / 1e3)


def measure(config: Config, device: torch.device, sweeps: bool) -> dict[str, Any]:
    """Every number of one preset."""
    batch = config.training.batch
    pixels = example(config, max(batch, *BATCHES)).to(device)
    rows = pixels[:batch]
    out: dict[str, Any] = {"batch": batch, **_listing(config, as_floats(rows), device)}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    ours = Ours(config, rows, device, _refuse)
    with fitting_threads(ours.model):  # as `lebm train` does
        out["ours_ms"] = ours.iteration_ms()
        out.update({f"ours_{k}": v for k, v in ours.parts().items()})
    if device.type == "cuda":
        out["ours_peak_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
    out["ratio"] = out["listing_ms"] / out["ours_ms"]
    out["prior_ratio"] = out["listing_prior_ms"] / out["ours_prior_ms"]
    out["images_per_s"] = images_per_second(ours.model, device)
    out["flops"] = flops(config, batch)
    out["matrix_flops_per_s"] = matrix_rate(device)
    out["floor_ms"] = 1e3 * out["flops"] / out["matrix_flops_per_s"]
    out["fraction_of_floor"] = out["floor_ms"] / out["ours_ms"]
    if sweeps:
        out["sweep"] = _sweep(config, pixels, device)
    return out


def _listing(config: Config, x: Tensor, device: torch.device) -> dict[str, float]:
    """The listing at PyTorch's default precision, which is the base of every ratio, and with TF32 everywhere."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    listing = LISTINGS[config.generator.kind](config, device)
    z = listing.start(len(x))
    out = {
        "listing_ms": milliseconds(lambda: listing(x), device, 3.0),
        "listing_prior_ms": milliseconds(lambda: listing.prior(z), device),
        "listing_posterior_ms": milliseconds(lambda: listing.posterior(z, x), device),
        "listing_update_ms": milliseconds(lambda: listing.update(x, z, z), device, 1.0),
    }
    if device.type == "cuda":
        out["listing_peak_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
        matmul.allow_tf32 = cudnn.allow_tf32 = cudnn.benchmark = True
        out["listing_tf32_ms"] = milliseconds(lambda: listing(x), device)
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
    return out


def _sweep(config: Config, pixels: Tensor, device: torch.device) -> dict[str, dict[str, float]]:
    """How the cost of our step grows with the batch and with each chain's length."""

    def step(c: Config, n: int) -> float:
        ours = Ours(c, pixels[:n], device, _refuse)
        with fitting_threads(ours.model):
            return ours.iteration_ms(0.5)

    return {
        "batch": {str(n): step(config, n) for n in BATCHES},
        "k0": {str(k): step(config.with_values(**{"chains.prior.steps": k}), config.training.batch) for k in LENGTHS},
        "k1": {str(k): step(config.with_values(**{"chains.posterior.steps": k}), config.training.batch) for k in LENGTHS},
    }


def bench(presets: list[str], device_name: str, out: Path | None, sweeps: bool, settings: list[str], console: Console) -> dict[str, Any]:
    """Measure the presets, print a table, and write the result file."""
    device = pick_device(device_name)
    begun = time.monotonic()
    metrics: dict[str, Any] = {}
    configs: dict[str, Any] = {}
    for preset in presets:
        config = resolve(preset, settings)
        configs[preset] = config.to_dict()
        if config.prior.kind != "energy":
            raise ConfigError(f"preset {preset} has a Gaussian prior; the bench compares models with an energy network")
        console.print(f"measuring {preset} …", highlight=False)
        metrics[preset] = measure(config, device, sweeps and preset == presets[0])
        table(preset, metrics[preset], console)
    name = {"cuda": "h200" if device.type == "cuda" and "H200" in torch.cuda.get_device_name(device) else "cuda"}.get(device.type, "cpu")
    summary = results.result(
        experiment=f"bench-{name}",
        metrics=metrics,
        protocol={
            "listing": "the paper's listing, corrected, eager, PyTorch's default precision; for text the same loop through the LSTM",
            "ours": "the step of `lebm train` with its default engine",
            "time": "median of repeated calls after warm-up, device synchronised",
            "floor": "FLOPs of the iteration over the rate of a large matrix product measured in the same run (bf16 on CUDA, float32 on a CPU)",
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        data={"name": "noise"},
        config=configs,
        device=results.device_name(device),
        seconds=round(time.monotonic() - begun, 1),
    )
    results.write(out or Path("results") / f"bench-{name}.json", summary)
    return summary


def table(preset: str, m: dict[str, Any], console: Console) -> None:
    t = Table("", "ms", "prior chain", "posterior chain", "ratio", "peak MiB", title=f"{preset}: one learning iteration, batch {m['batch']}")
    ms = lambda key: f"{m[key]:.2f}" if key in m else ""  # noqa: E731
    t.add_row("the paper's listing", ms("listing_ms"), ms("listing_prior_ms"), ms("listing_posterior_ms"), "1.0", ms("listing_peak_mib"))
    if "listing_tf32_ms" in m:
        t.add_row("the same, TF32", ms("listing_tf32_ms"), "", "", f"{m['listing_ms'] / m['listing_tf32_ms']:.1f}", "")
    t.add_row("lebm", ms("ours_ms"), ms("ours_prior_ms"), ms("ours_posterior_ms"), f"{m['ratio']:.1f}", ms("ours_peak_mib"))
    t.add_row("floor", ms("floor_ms"), "", "", f"{m['fraction_of_floor']:.0%} reached", "")
    console.print(t)
    console.print(f"prior chain {m['prior_ratio']:.1f} times the listing's; {m['images_per_s']:,.0f} samples a second", highlight=False)
    for what, values in m.get("sweep", {}).items():
        console.print(f"  ms by {what}: " + ", ".join(f"{k}: {v:.2f}" for k, v in values.items()), highlight=False)

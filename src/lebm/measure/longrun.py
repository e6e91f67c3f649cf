"""The paper's long-run test: do samples stay good when the chain runs far beyond the K0 steps it was learned with?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lebm.core.errors import ConfigError
from lebm.measure import result as results
from lebm.measure.fid import fid_of, frechet_of
from lebm.sampler import SamplerSpec

if TYPE_CHECKING:
    from lebm.measure.analysis import Subject

LONG = 2500
SAMPLES = 10_000
WORST = 1.5  # the distance after a long run may be so many times that at K0
DISTANCES = {"fid": fid_of, "frechet": frechet_of}


def measure(
    subject: Subject, steps: int = LONG, samples: int = SAMPLES, metric: str | None = None, seed: int = 0
) -> results.Result:
    """The Fréchet distance to the training images after K0 steps and after `steps`, from as many samples, as a result.

    Of replayed chains there are as many samples as chains: further rounds of them would run longer than the others.
    """
    check(subject, steps)
    started, method = time.monotonic(), subject.method
    metric = metric or ("fid" if "fid" in subject.default_metrics() else "frechet")
    if metric not in DISTANCES:
        raise ConfigError(f"the metric is {metric!r}; it must be fid or frechet")
    own = method.choose("prior")
    samples = min(samples, own.replay_chains or samples)
    ev = subject.evaluation(metric == "fid", samples=samples, seed=seed)
    short, long = (DISTANCES[metric](ev, replace(own, steps=k)) for k in (own.steps, steps))
    after = {f"{metric}_{k}": k for k in (own.steps, steps)}
    protocol = {**ev.protocol, "sampler": own.to_dict(), "steps": after, "passes_at": WORST}
    ratio = long / short if short else None
    return results.of_run(
        method,
        started,
        name=f"{method.config.name}-long-run",
        metrics={**dict(zip(after, (short, long), strict=True)), "long_run_ratio": ratio},
        protocol={**subject.weights(), "long_run": protocol},
        data={"name": method.config.data.name, "train": len(ev.train), "sha256": ev.train_sha256},
        seed=seed,
    )


def check(subject: Subject, steps: int) -> None:
    """Raise, before the work, where nothing can be compared."""
    subject.images_only("Fréchet distances")
    k0 = subject.method.choose("prior").steps
    subject.method.choose("prior", steps=steps)  # refused where the prior has no chain
    if steps <= k0:
        raise ConfigError(
            f"the distance after {steps} steps would be compared with that after the run's own K0 = {k0}; "
            f"give more than {k0} (the paper's test takes {LONG}), or measure no distance (--samples 0)"
        )


def in_words(summary: Mapping[str, Any]) -> str:
    """Passed or not, in a sentence."""
    (short, d0), (_, d1), (_, ratio) = summary["metrics"].items()
    if ratio is None:
        return f"{short} is 0: there is nothing to compare with."
    protocol = summary["protocol"]["long_run"]
    own, steps = SamplerSpec.from_dict(protocol["sampler"]), list(protocol["steps"].values())
    long = replace(own, steps=steps[1]).in_words()
    return (
        f"Long-run test {'passed' if ratio <= WORST else 'failed'}: the distance with z by {long} ({d1:.2f}) is "
        f"{ratio:.2f} times that of the run's own samples, with z {'by ' * bool(own.steps)}{own.in_words()} "
        f"({d0:.2f}); up to {WORST:g} passes."
    )

"""The paper's long-run test: do samples stay good when the chain runs far beyond the K0 steps it was learned with?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lebm.core.errors import ConfigError
from lebm.data import data_root
from lebm.measure import inception
from lebm.measure import result as results
from lebm.measure.fid import fid_of
from lebm.measure.frechet import frechet_of
from lebm.measure.inception import Features
from lebm.measure.metric import Evaluation
from lebm.measure.statistics import cache_folder, content_hash
from lebm.sampler import SamplerSpec

if TYPE_CHECKING:
    from lebm.measure.analysis import Subject

LONG = 2500
SAMPLES = 10_000
WORST = 1.5  # the distance after a long run may be so many times that at K0
DISTANCES = {"fid": fid_of, "frechet": frechet_of}


def measure(
    subject: Subject,
    steps: int = LONG,
    samples: int = SAMPLES,
    metric: str | None = None,
    seed: int = 0,
    features: Features | None = None,
) -> results.Result:
    """The Fréchet distance to the training images after K0 steps and after `steps`, from as many samples, as a result.

    Of replayed chains there are as many samples as chains: further rounds of them would run longer than the others.
    """
    check(subject, steps)
    started, method, root = time.monotonic(), subject.method, data_root(subject.data_dir)
    metric = metric or default_metric(subject)
    if metric not in DISTANCES:
        raise ConfigError(f"the metric is {metric!r}; it must be fid or frechet")
    if metric == "fid" and features is None:
        features = inception.load(root, method.device)
    own = method.choose("prior")
    samples = min(samples, own.replay_chains or samples)
    splits = subject.splits
    ev = Evaluation(method, splits, samples, seed, reporter=subject.reporter, features=features)
    ev.cache_folder, ev.train_sha256 = cache_folder(root), content_hash(splits.train)
    short, long = (DISTANCES[metric](ev, replace(own, steps=k)) for k in (own.steps, steps))
    names = f"{metric}_{own.steps}", f"{metric}_{steps}"
    protocol = {
        **ev.protocol,
        "sampler": own.to_dict(),
        "steps": dict(zip(names, (own.steps, steps), strict=True)),
        "passes_at": WORST,
    }
    return results.result(
        name=f"{method.config.name}-long-run",
        metrics={names[0]: short, names[1]: long, "long_run_ratio": long / short if short else None},
        protocol={**subject.weights(), "long_run": protocol},
        data={"name": method.config.data.name, "train": len(ev.train), "sha256": ev.train_sha256},
        config=method.config.to_dict(),
        seed=seed,
        updates=method.updates,
        device=results.device_name(method.device),
        seconds=round(time.monotonic() - started, 1),
    )


def check(subject: Subject, steps: int) -> None:
    """Raise, before the work, where nothing can be compared."""
    subject.images_only("Fréchet distances")
    k0 = subject.method.choose("prior").steps
    if steps <= k0:
        raise ConfigError(
            f"the distance after {steps} steps would be compared with that after the run's own K0 = {k0}; "
            f"give more than {k0} (the paper's test takes {LONG}), or measure no distance (--samples 0)"
        )


def default_metric(subject: Subject) -> str:
    return "fid" if "fid" in subject.default_metrics() else "frechet"


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

"""The paper's long-run test: do samples stay good when the chain runs far beyond the K0 steps it was learned with?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lebm import results
from lebm import statistics as stats
from lebm.analysis.chains import start_of
from lebm.compare import inception
from lebm.data import data_root
from lebm.errors import ConfigError
from lebm.evaluate import PHOTOGRAPHS
from lebm.evaluation import Evaluation, of_weights
from lebm.image_metrics import fid_after, frechet_after
from lebm.metrics.inception import FILE, Features

if TYPE_CHECKING:
    from lebm.analysis import Subject

LONG = 2500
GOES_ON = {"flow": "warm"}  # draw.prior -> the way whose chain goes on from the run's own draws; the others' own chain does
WORST = 1.5  # the distance after a long run may be so many times that at K0


def measure(
    subject: Subject, steps: int = LONG, samples: int = 10_000, metric: str | None = None, seed: int = 0, features: Features | None = None
) -> dict[str, Any]:
    """The Fréchet distance to the training images after K0 steps and after `steps`, from as many samples, as a result.

    Of kept chains there are as many samples as chains: further rounds of them would run longer than the others.
    """
    check(subject, steps)
    started, model = time.monotonic(), subject.model
    metric = metric or default_metric(subject)
    if metric not in ("fid", "frechet"):
        raise ConfigError(f"the metric is {metric!r}; it must be fid or frechet")
    root = data_root(subject.data_dir)
    if metric == "fid" and features is None:
        features = inception(root, model.device)
    k0, own = model.config.chains.prior.steps, model.drawing("prior")
    samples = min(samples, own.kept or samples)
    ev = Evaluation(model, subject.splits, samples, seed, bar=subject.bar, features=features)
    ev.cache, ev.content = stats.cache_folder(root), stats.content_hash(ev.splits.train)
    after = fid_after if metric == "fid" else frechet_after
    short, long = after(ev, k0, own.by), after(ev, steps, GOES_ON.get(own.by, own.by))
    return results.result(
        experiment=f"{model.config.experiment}-long-run",
        metrics={f"{metric}_{k0}": short, f"{metric}_{steps}": long, "long_run_ratio": long / short if short else None},
        protocol={
            **of_weights(subject.run),
            "long_run": {**ev.protocol, **own.protocol(), "start": start_of(model), "chain_steps": [k0, steps], "passes_at": WORST},
        },
        data={"name": model.config.data.name, "train": len(ev.train), "sha256": ev.content},
        config=model.config.to_dict(),
        seed=seed,
        steps=model.step,
        device=results.device_name(model.device),
        seconds=round(time.monotonic() - started, 1),
    )


def check(subject: Subject, steps: int) -> None:
    """Before the work: what cannot be compared."""
    subject.images_only("Fréchet distances")
    k0 = subject.model.config.chains.prior.steps
    if steps <= k0:
        raise ConfigError(
            f"the distance after {steps} steps would be compared with that after the run's own K0 = {k0}; give more than {k0} (the paper's test "
            f"takes {LONG}), or measure no distance (--samples 0)"
        )


def default_metric(subject: Subject) -> str:
    root = data_root(subject.data_dir)
    return "fid" if subject.model.config.data.name in PHOTOGRAPHS and root is not None and (root / FILE).is_file() else "frechet"


def words(summary: Mapping[str, Any]) -> str:
    """Passed or not, in a sentence."""
    (short, d0), (long, d1), (_, ratio) = summary["metrics"].items()
    if ratio is None:
        return f"{short} is 0: there is nothing to compare with."
    k0, k = short.split("_")[1], long.split("_")[1]
    start = summary["protocol"]["long_run"]["start"]
    own = f"after K0 = {k0}" if int(k0) else f"of {start}"
    return (
        f"Long-run test {'passed' if ratio <= WORST else 'failed'}: the distance after {k} steps from {start} ({d1:.2f}) is {ratio:.2f} times that {own} "
        f"({d0:.2f}); up to {WORST:g} passes."
    )

"""Numbers about learned models. A further metric is one file with a Metric, and its line in REGISTERED."""

from __future__ import annotations

from lebm.core.lookup import named
from lebm.measure.metric import Evaluation, Metric, Number

REGISTERED = (  # the metrics, in the order in which they are measured
    "measure.fid:FRECHET",
    "measure.mse:MSE",
    "measure.fid:FID",
    "measure.fid:FID_GAUSSIAN",
    "measure.fid:FID_RECONSTRUCTION",
    "measure.likelihood:LIKELIHOOD",
    "measure.speed:SPEED",
    "measure.perplexity:FPPL",
    "measure.perplexity:RPPL",
    "measure.likelihood:NLL",
    "measure.perplexity:REAL_PPL",
    "measure.perplexity:FPPL_GAUSSIAN",
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in map(named, REGISTERED)}

__all__ = ["METRICS", "Evaluation", "Metric", "Number", "describe_metrics"]


def describe_metrics() -> list[tuple[str, str, str, str]]:
    """Name, title, direction and a sentence about every metric: what help and the documentation show."""
    return [(m.name, m.title, m.direction, m.about) for m in METRICS.values()]

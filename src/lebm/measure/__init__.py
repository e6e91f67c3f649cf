"""Numbers about learned models. A further metric is one file with a Metric, and its line in METRICS."""

from __future__ import annotations

from lebm.measure.fid import FID, FID_GAUSSIAN, FID_RECONSTRUCTION
from lebm.measure.frechet import FRECHET
from lebm.measure.likelihood import LIKELIHOOD
from lebm.measure.metric import Evaluation, Metric, Number
from lebm.measure.mse import MSE
from lebm.measure.nll import NLL
from lebm.measure.perplexity import FPPL, FPPL_GAUSSIAN, REAL_PPL, RPPL
from lebm.measure.speed import SPEED

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (FRECHET, MSE, FID, FID_GAUSSIAN, FID_RECONSTRUCTION, LIKELIHOOD, SPEED,
                   FPPL, RPPL, NLL, REAL_PPL, FPPL_GAUSSIAN)
}  # fmt: skip

__all__ = ["METRICS", "Evaluation", "Metric", "Number", "describe_metrics"]


def describe_metrics() -> list[tuple[str, str, str, str]]:
    """Name, title, direction and a sentence about every metric: what help and the documentation show."""
    return [(m.name, m.title, m.direction, m.about) for m in METRICS.values()]

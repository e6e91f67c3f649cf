"""Anomaly detection: scores of a learned model, a density of normal rows, and the paper's experiment on MNIST."""

from lebm.anomaly.scores import SCORES, Scorer

__all__ = ["SCORES", "Scorer"]

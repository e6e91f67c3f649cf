"""Anomaly detection: a detector, scores by name, and the paper's experiment with held-out classes."""

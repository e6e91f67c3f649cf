"""Find anomalies among images and in a table, and compare with the detectors that a person would try first.

    python examples/anomaly.py                         # a minute or two on a CPU
    python examples/anomaly.py --out figures

Among the embedded digits the eights are the anomalies, and no detector learns from one. In scikit-learn's breast-cancer table
benign rows are normal. Every detector learns from the same normal rows and ranks the same test rows. The labels are used
only for the numbers at the end.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.preprocessing import StandardScaler

from lebm import Detector
from lebm.measure.auprc import auprc, chance
from lebm.show.figures import detection, save


def digits(anomaly=8):
    """Normal rows to learn from, test rows, and which of these are anomalies; images as uint8 (n, 8, 8)."""
    x, y = load_digits(return_X_y=True)
    return split((x * 255 / 16).round().astype(np.uint8).reshape(-1, 8, 8), y == anomaly)


def cancer():
    x, y = load_breast_cancer(return_X_y=True)
    return split(x, y == 0)


def split(x, anomalous, trained=0.7):
    normal = np.random.default_rng(0).permutation(np.flatnonzero(~anomalous))
    n = int(trained * len(normal))
    test = np.concatenate([normal[n:], np.flatnonzero(anomalous)])
    return x[normal[:n]], x[test], anomalous[test]


def others(train, test):
    """Scores of the usual detectors, higher is more anomalous."""
    scaler = StandardScaler().fit(train)
    a, b = scaler.transform(train), scaler.transform(test)
    return {
        "nearest neighbour": NearestNeighbors(n_neighbors=1).fit(a).kneighbors(b)[0][:, 0],
        "IsolationForest": -IsolationForest(random_state=0).fit(a).score_samples(b),
        "LocalOutlierFactor": -LocalOutlierFactor(novelty=True).fit(a).score_samples(b),
    }


def main(argv=None):
    parser = argparse.ArgumentParser(description="Anomaly detection on the embedded digits and on a table.")
    parser.add_argument("--updates", type=int, help="learning updates; by default the detector's own number")
    parser.add_argument("--out", type=Path, default=Path(), help="the folder for the figures")
    args = parser.parse_args(argv)
    for name, (train, test, anomalous) in {"digits": digits(), "table": cancer()}.items():
        detector = Detector(updates=args.updates).fit(train)
        rows, new = train.reshape(len(train), -1), test.reshape(len(test), -1)
        scores = {"lebm": detector.decision_function(test), **others(rows, new)}
        print(f"{name}: {len(train)} normal rows to learn from, {len(test)} to judge, chance {chance(anomalous):.3f}")
        for who, values in scores.items():
            print(f"  {who:20} AUPRC {auprc(values, anomalous):.3f}")
        hits, alarms = (detector.predict(test[which]).mean() for which in (anomalous, ~anomalous))
        print(f"  above its threshold: {hits:.0%} of the anomalies, {alarms:.0%} of the normal rows")
        pixels = test[:, None] if test.ndim == 3 else None
        figure = detection(scores["lebm"], anomalous, pixels, f"lebm.Detector on the {name}")
        print(f"  {save(figure, args.out / f'anomaly-{name}.png')}")


if __name__ == "__main__":
    main()

"""Your own generator: any module with log_prob(x, z) and decode(z) can stand under the energy-based prior.

Here x is a vector of 64 black-or-white pixels (binarised 8x8 digits) and p(x|z) a product of Bernoulli distributions.
lebm takes the gradient of log_prob in z by autograd; a method `score(x, z)` with the closed form would make chains faster.

    python examples/own_generator.py --steps 400 --out runs/own_generator
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import lebm
from lebm import figures

NZ = 10


class Bernoulli(nn.Module):
    """p(x|z): every pixel is white with a probability that an MLP computes from z."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Sequential(nn.Linear(NZ, 200), nn.LeakyReLU(0.2), nn.Linear(200, 200), nn.LeakyReLU(0.2), nn.Linear(200, 64))

    def log_prob(self, x, z):
        """log p(x|z), one number a row."""
        return -F.binary_cross_entropy_with_logits(self.logits(z), x, reduction="none").sum(1)

    def decode(self, z):
        """What a sample shows: the probabilities."""
        return torch.sigmoid(self.logits(z))


def picture(probabilities):
    """(n, 64) in [0, 1] -> a grid."""
    return figures.grid((probabilities * 255).round().to(torch.uint8).reshape(-1, 1, 8, 8))


def main(argv=None):
    parser = argparse.ArgumentParser(description="lebm with a generator of your own.")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("runs/own_generator"), help="the run folder, which must be new")
    args = parser.parse_args(argv)

    x = (load_digits().data > 7).astype(np.float32)  # (1797, 64), zeros and ones
    train, test = x[:1500], x[1500:]

    torch.manual_seed(1)  # the weights of your own module are yours to seed
    config = {
        "experiment": "own_generator",
        "nz": NZ,  # the keys under `generator` are for lebm's own generators and count for nothing here
        "prior.width": 100,
        "chains.posterior.step_size": 0.3,  # this likelihood is flatter than a Gaussian with sigma 0.3: chains need longer steps
        "learning.prior_rate": 1e-4,
        "learning.generator_rate": 1e-3,
        "training.steps": args.steps,
        "training.log_every": max(1, args.steps // 8),
    }
    lebm.train(config, data=train, model=Bernoulli(), run=args.out)

    # A later program names the generator again: a weight file holds numbers, never code.
    model = lebm.load(args.out, generator=Bernoulli())
    figures.save(picture(model.sample(64, seed=0)), args.out / "samples.png")

    x_hat = model.reconstruct(test).numpy()
    scores, strange = model.anomaly_score(test), model.anomaly_score(1 - test)
    print(f"pixels of test digits restored: {((x_hat > 0.5) == test).mean():.1%}")
    print(f"median score of test digits {scores.median():.1f}, of their negatives {strange.median():.1f}")
    print(f"64 samples in {args.out / 'samples.png'}")


if __name__ == "__main__":
    main()

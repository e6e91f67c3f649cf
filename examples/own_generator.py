"""A generator of your own: any module with log_prob(x, z) and decode(z) can stand under the energy-based prior.

Here x is a vector of 64 black-or-white pixels (binarised 8x8 digits), and p(x|z) is a product of Bernoulli distributions.
lebm takes the gradient of log_prob with respect to z by autograd. A subclass of lebm.Generator may also write that gradient
out as `score(x, z)`, which makes chains faster, and say more about its data; see src/lebm/generators/base.py.

    python examples/own_generator.py --updates 400 --out runs/own_generator
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import lebm

NZ = 10


class Bernoulli(nn.Module):
    """p(x|z): every pixel is white with a probability that an MLP computes from z."""

    def __init__(self):
        super().__init__()
        hidden = [nn.Linear(NZ, 200), nn.LeakyReLU(0.2), nn.Linear(200, 200), nn.LeakyReLU(0.2)]
        self.logits = nn.Sequential(*hidden, nn.Linear(200, 64))

    def log_prob(self, x, z):
        """log p(x|z), one number a row."""
        return -F.binary_cross_entropy_with_logits(self.logits(z), x, reduction="none").sum(1)

    def decode(self, z):
        """What a sample shows: the probabilities."""
        return torch.sigmoid(self.logits(z))


def main(argv=None):
    parser = argparse.ArgumentParser(description="Learn with a generator of your own.")
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/own_generator"), help="the run folder, which must be new"
    )
    args = parser.parse_args(argv)

    x = (load_digits().data > 7).astype(np.float32)  # (1797, 64), zeros and ones
    train, test = x[:1500], x[1500:]

    torch.manual_seed(1)  # lebm does not seed the weights of a module that you made
    config = {
        "name": "own_generator",
        "nz": NZ,  # the keys under `generator` belong to lebm's own generators and are not used here
        "method.energy.width": 100,
        "method.posterior_chain.step_size": 0.3,  # this likelihood is flatter than a Gaussian's, so chains need longer steps
        "optimizers.prior.rate": 1e-4,
        "optimizers.generator.rate": 1e-3,
        "training.updates": args.updates,
        "training.log_every": max(1, args.updates // 8),
    }
    lebm.train(config, data=train, model=Bernoulli(), run=args.out)

    # A later program has to give the generator again, because a weight file holds numbers and never code.
    model = lebm.load(args.out, generator=Bernoulli())
    x = model.sample(64, seed=0).reshape(-1, 1, 8, 8)  # probabilities
    lebm.save_images(2 * x - 1, args.out / "samples.png")

    x_hat = model.reconstruct(test).numpy()
    scores, strange = model.anomaly_score(test), model.anomaly_score(1 - test)
    print(f"pixels of test digits restored: {((x_hat > 0.5) == test).mean():.1%}")
    print(f"median score of test digits {scores.median():.1f}, of their negatives {strange.median():.1f}")
    print(f"64 samples in {args.out / 'samples.png'}")


if __name__ == "__main__":
    main()

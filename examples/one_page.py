"""The latent space energy-based prior model on one page, without the package: PyTorch, and scikit-learn's 8x8 digits.

A prior p_alpha(z), proportional to exp(f(z)) N(z; 0, I), stands on a generator p_beta(x|z) = N(g(z), sigma^2 I). Learning
needs samples from the prior (z_neg) and from the posterior of each image (z_pos). Both come from short Langevin chains that
start from fresh noise: z <- z + (s^2/2) grad log pi(z) + s e.

    python examples/one_page.py --updates 1500 --out one_page.png
"""

import argparse
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

NZ, BATCH, SIGMA = 16, 100, 0.3
K0, S0 = 60, 0.4  # the prior's chain: steps and step size
K1, S1 = 20, 0.1  # the posterior's chain
RATE_ALPHA, RATE_BETA, BETAS = 1e-4, 1e-3, (0.5, 0.999)


def networks():
    """f: R^16 -> R, the negative energy; g: R^16 -> an 8x8 image in [-1, 1]."""
    hidden = [nn.Linear(NZ, 100), nn.LeakyReLU(0.2), nn.Linear(100, 100), nn.LeakyReLU(0.2)]
    f = nn.Sequential(*hidden, nn.Linear(100, 1), nn.Flatten(0))
    to_map = nn.Sequential(nn.Linear(NZ, 64 * 16), nn.LeakyReLU(0.2), nn.Unflatten(1, (64, 4, 4)))
    g = nn.Sequential(to_map, nn.ConvTranspose2d(64, 1, 4, stride=2, padding=1), nn.Tanh())
    for layer in [*f.modules(), *g.modules()]:
        if hasattr(layer, "weight"):
            nn.init.xavier_normal_(layer.weight)
    return f, g


def log_prior(f, z):
    """log p_alpha(z) up to a constant: f(z) + log N(z; 0, I), whose gradient is grad f(z) - z."""
    return f(z) - 0.5 * z.square().sum(1)


def log_likelihood(g, x, z):
    """log p_beta(x|z) up to a constant."""
    return -(x - g(z)).square().flatten(1).sum(1) / (2 * SIGMA**2)


def langevin(log_pi, z, steps, s):
    """The short-run chain: `steps` times z <- z + (s^2/2) grad log pi(z) + s e, on every row at once."""
    for _ in range(steps):
        z = z.detach().requires_grad_()
        (grad,) = torch.autograd.grad(log_pi(z).sum(), z)
        z = z + 0.5 * s**2 * grad + s * torch.randn_like(z)
    return z.detach()


def sample_prior(f, n):
    return langevin(lambda z: log_prior(f, z), torch.randn(n, NZ), K0, S0)


def sample_posterior(f, g, x):
    return langevin(lambda z: log_prior(f, z) + log_likelihood(g, x, z), torch.randn(len(x), NZ), K1, S1)


def learn(data, updates, report=50):
    f, g = networks()
    rates = [{"params": f.parameters(), "lr": RATE_ALPHA}, {"params": g.parameters(), "lr": RATE_BETA}]
    optimizer = torch.optim.Adam(rates, betas=BETAS)
    for t in range(1, updates + 1):
        x = data[torch.randint(len(data), (BATCH,))]
        z_neg, z_pos = sample_prior(f, BATCH), sample_posterior(f, g, x)
        gap, log_px = f(z_pos).mean() - f(z_neg).mean(), log_likelihood(g, x, z_pos).mean()
        optimizer.zero_grad()
        (-gap - log_px).backward()  # alpha ascends f(z_pos) - f(z_neg), beta log p(x|z_pos)
        optimizer.step()
        if t == 1 or t % report == 0 or t == updates:
            mse = -2 * SIGMA**2 * log_px.item() / x[0].numel()
            print(f"update {t:5d}   mse {mse:.4f}   f(z_pos) - f(z_neg) {gap.item():+.3f}", flush=True)
    return f, g


def main(argv=None):
    args = argparse.ArgumentParser(description="The latent EBM prior on one page.")
    args.add_argument("--updates", type=int, default=300)
    args.add_argument("--out", type=Path, default=Path("one_page.png"))
    args = args.parse_args(argv)
    torch.manual_seed(1)
    data = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1  # 0..16 -> [-1, 1]
    f, g = learn(data, args.updates)
    x_hat = g(sample_prior(f, 64)).detach()
    grid = x_hat.unflatten(0, (8, 8)).squeeze(2).permute(0, 2, 1, 3).reshape(64, 64)
    Image.fromarray(((grid + 1) * 127.5).byte().numpy()).resize((512, 512), Image.Resampling.NEAREST).save(args.out)
    print(f"64 samples from the learned prior in {args.out}")


if __name__ == "__main__":
    main()

"""The paper's listing, corrected: what a bench measures ours against."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lebm.config import Config
from lebm.generators import ImageGenerator
from lebm.model import LatentEBM


class Listing:
    """The paper's one-page code, corrected (z where it has 1/z, K1 as reported): eager autograd, two optimisers."""

    def __init__(self, config: Config, device: torch.device) -> None:
        model = LatentEBM(config).to(device)
        assert isinstance(model.generator, ImageGenerator)
        layers: list[nn.Module] = []
        for c in model.generator.convolutions():
            layers += [c, nn.LeakyReLU(config.image.leak)]
        self.g = nn.Sequential(*layers[:-1], nn.Tanh())
        self.e = nn.Sequential(*_energy_layers(model, config))
        self.config, self.device, self.mse = config, device, nn.MSELoss(reduction="sum")
        self.opt_e, self.opt_g = _two_optimisers(self.e, self.g, config)

    def start(self, n: int) -> Tensor:
        return torch.randn(n, self.config.nz, 1, 1, device=self.device)

    def prior(self, z: Tensor) -> Tensor:
        k, a = self.config.chains.prior.steps, self.config.chains.prior.step_size
        z = z.clone().detach().requires_grad_(True)
        for _ in range(k):
            grad = torch.autograd.grad(-self.e(z.squeeze()).sum(), z)[0]
            z.data = z.data - 0.5 * a * a * (grad + z.data) + a * torch.randn_like(z).data
        return z.detach()

    def posterior(self, z: Tensor, x: Tensor) -> Tensor:
        k, a, sigma = self.config.chains.posterior.steps, self.config.chains.posterior.step_size, self.config.image.sigma
        z = z.clone().detach().requires_grad_(True)
        for _ in range(k):
            grad_g = torch.autograd.grad(1.0 / (2.0 * sigma * sigma) * self.mse(self.g(z), x), z)[0]
            grad_e = torch.autograd.grad(-self.e(z.squeeze()).sum(), z)[0]
            z.data = z.data - 0.5 * a * a * (grad_g + grad_e + z.data) + a * torch.randn_like(z).data
        return z.detach()

    def update(self, x: Tensor, z_pos: Tensor, z_neg: Tensor) -> None:
        self.opt_g.zero_grad()
        (self.mse(self.g(z_pos), x) / len(x)).backward()
        self.opt_g.step()
        self.opt_e.zero_grad()
        (self.e(z_neg.squeeze()).mean() - self.e(z_pos.squeeze()).mean()).backward()
        self.opt_e.step()

    def __call__(self, x: Tensor) -> None:
        z_neg = self.prior(self.start(len(x)))
        z_pos = self.posterior(self.start(len(x)), x)
        self.update(x, z_pos, z_neg)


class TextListing(Listing):
    """The same plain loop through the text generator: eager autograd, no dropout."""

    def __init__(self, config: Config, device: torch.device) -> None:
        model = LatentEBM(config).to(device)
        self.text = model.text()
        self.e = nn.Sequential(*_energy_layers(model, config))
        self.config, self.device = config, device
        self.opt_e, self.opt_g = _two_optimisers(self.e, self.text, config)

    def start(self, n: int) -> Tensor:
        return torch.randn(n, self.config.nz, device=self.device)

    def posterior(self, z: Tensor, x: Tensor) -> Tensor:
        c = self.config.chains.posterior
        z = z.clone().detach().requires_grad_(True)
        for a in [*c.first_steps, *[c.step_size] * c.steps][: c.steps]:
            grad_g = torch.autograd.grad(-self.text.log_prob(x, z).sum(), z)[0]
            grad_e = torch.autograd.grad(-self.e(z).sum(), z)[0]
            z.data = z.data - 0.5 * a * a * (grad_g + grad_e + z.data) + a * c.noise * torch.randn_like(z).data
        return z.detach()

    def update(self, x: Tensor, z_pos: Tensor, z_neg: Tensor) -> None:
        self.opt_g.zero_grad()
        (-self.text.log_prob(x, z_pos).mean()).backward()
        self.opt_g.step()
        self.opt_e.zero_grad()
        (self.e(z_neg).mean() - self.e(z_pos).mean()).backward()
        self.opt_e.step()


def _energy_layers(model: LatentEBM, config: Config) -> list[nn.Module]:
    energy: list[nn.Module] = []
    for layer in model.prior.linear():  # type: ignore[operator]
        energy += [layer, nn.LeakyReLU(config.prior.leak)]
    return energy[:-1]


def _two_optimisers(e: nn.Module, g: nn.Module, config: Config) -> tuple[torch.optim.Adam, torch.optim.Adam]:
    le = config.learning
    return torch.optim.Adam(e.parameters(), lr=le.prior_rate, betas=le.betas), torch.optim.Adam(g.parameters(), lr=le.generator_rate, betas=le.betas)


LISTINGS = {"image": Listing, "text": TextListing}

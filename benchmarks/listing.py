"""The paper's one-page listing, corrected: what a learning update of lebm is measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lebm.config.build import build
from lebm.latent_ebm import LatentEBM

if TYPE_CHECKING:
    from lebm.config import Config


class Listing:
    """The paper's code, corrected (z where it has 1/z, K1 as reported): eager autograd and two optimisers."""

    def __init__(self, config: Config, device: torch.device) -> None:
        method = _built(config, device)
        layers: list[nn.Module] = []
        for c in method.generator.convolutions():  # type: ignore[operator]
            layers += [c, nn.LeakyReLU(method.generator.leak)]  # type: ignore[arg-type]
        self.g = nn.Sequential(*layers[:-1], nn.Tanh())
        self.sigma = method.generator.sigma
        self._take(method, self.g, config, device)

    def _take(self, method: LatentEBM, g: nn.Module, config: Config, device: torch.device) -> None:
        self.e = nn.Sequential(*_energy_layers(method))
        self.nz, self.device, self.mse = config.nz, device, nn.MSELoss(reduction="sum")
        self.prior_chain, self.posterior_chain = method.prior_chain, method.posterior_chain
        self.opt_e, self.opt_g = (_adam(net, config, name) for name, net in (("prior", self.e), ("generator", g)))

    def start(self, n: int) -> Tensor:
        return torch.randn(n, self.nz, 1, 1, device=self.device)

    def prior(self, z: Tensor) -> Tensor:
        k, a = self.prior_chain.steps, self.prior_chain.step_size
        z = z.clone().detach().requires_grad_(True)
        for _ in range(k):
            grad = torch.autograd.grad(-self.e(z.squeeze()).sum(), z)[0]
            z.data = z.data - 0.5 * a * a * (grad + z.data) + a * torch.randn_like(z).data
        return z.detach()

    def posterior(self, z: Tensor, x: Tensor) -> Tensor:
        k, a = self.posterior_chain.steps, self.posterior_chain.step_size
        z = z.clone().detach().requires_grad_(True)
        for _ in range(k):
            grad_g = torch.autograd.grad(1.0 / (2.0 * self.sigma * self.sigma) * self.mse(self.g(z), x), z)[0]
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
        method = _built(config, device)
        self.text = method.generator
        self._take(method, self.text, config, device)

    def start(self, n: int) -> Tensor:
        return torch.randn(n, self.nz, device=self.device)

    def posterior(self, z: Tensor, x: Tensor) -> Tensor:
        c = self.posterior_chain
        z = z.clone().detach().requires_grad_(True)
        for a in map(c.size, range(c.steps)):
            grad_g = torch.autograd.grad(-self.text.log_prob(x, z).sum(), z)[0]
            grad_e = torch.autograd.grad(-self.e(z).sum(), z)[0]
            z.data = z.data - 0.5 * a * a * (grad_g + grad_e + z.data) + a * c.noise_scale * torch.randn_like(z).data
        return z.detach()

    def update(self, x: Tensor, z_pos: Tensor, z_neg: Tensor) -> None:
        self.opt_g.zero_grad()
        (-self.text.log_prob(x, z_pos).mean()).backward()
        self.opt_g.step()
        self.opt_e.zero_grad()
        (self.e(z_neg).mean() - self.e(z_pos).mean()).backward()
        self.opt_e.step()


def _built(config: Config, device: torch.device) -> LatentEBM:
    method = build(config).to(device)
    assert isinstance(method, LatentEBM)
    return method


def _energy_layers(method: LatentEBM) -> list[nn.Module]:
    assert method.prior.energy is not None
    layers: list[nn.Module] = []
    for layer in method.prior.energy.linear():
        layers += [layer, nn.LeakyReLU(method.prior.energy.leak)]
    return layers[:-1]


def _adam(net: nn.Module, config: Config, name: str) -> torch.optim.Adam:
    section = config.optimizers[name]
    return torch.optim.Adam(net.parameters(), lr=section.rate, betas=section.betas)


LISTINGS: dict[str, type[Listing]] = {"image": Listing, "text": TextListing}

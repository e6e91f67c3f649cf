"""q_psi(z): a normalising flow (neural splines by zuko), the synthesis network of the paper's appendix."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lebm.config import Flow
from lebm.errors import ConfigError
from lebm.prior import log_normal


class SplineFlow(nn.Module):
    """z = shift + scale * T(e) with T a chain of spline coupling layers. Splines act inside [-5, 5]; shift and scale, a number a
    coordinate, take them to where z is."""

    def __init__(self, nz: int, config: Flow | None = None) -> None:
        super().__init__()
        try:
            import zuko
        except ImportError:
            raise ConfigError("draw.prior needs a flow, and the package zuko is not installed; run `pip install 'lebm[flow]'`") from None
        config = config or Flow()
        # zuko's transform goes from z to e. Two passes make its layers couplings: equally cheap both ways, and with no indexing
        # by masks, which a CUDA graph could not hold.
        made = zuko.flows.NSF(nz, bins=config.bins, transforms=config.layers, hidden_features=[config.width] * 2, passes=2, randperm=nz > 2)
        self.transform = made.transform
        self.shift, self.log_scale = nn.Parameter(torch.zeros(nz)), nn.Parameter(torch.zeros(nz))

    def draw(self, e: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """z(e) and log q(z)."""
        inner, ladj = self.transform().inv.call_and_ladj(e)
        return self.shift + self.log_scale.exp() * inner, log_normal(e) - ladj - self.log_scale.sum()

    def log_prob(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        e, ladj = self.transform().call_and_ladj((z - self.shift) * (-self.log_scale).exp())
        return log_normal(e) + ladj - self.log_scale.sum()

    def describe(self, z0: Tensor, x: Tensor | None = None) -> dict[str, Tensor]:
        return {"q_spread": z0.std(0, correction=0).mean()}

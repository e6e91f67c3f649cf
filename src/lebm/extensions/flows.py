"""A normalising flow over z: neural spline couplings by zuko."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lebm.core.errors import ConfigError
from lebm.prior import log_normal


class SplineFlow(nn.Module):
    """z = shift + scale * T(e) with T a chain of spline coupling layers. Splines act inside [-5, 5]; shift and scale,
    one number a coordinate, carry them to where z is."""

    def __init__(self, nz: int, layers: int = 4, width: int = 128, bins: int = 8) -> None:
        super().__init__()
        try:
            import zuko
        except ImportError:
            raise ConfigError(
                "a flow is asked for, and the package zuko is not installed; run `pip install 'lebm[flow]'`"
            ) from None
        # zuko's transform goes from z to e. Two passes make its layers couplings: equally cheap both ways, and without
        # the indexing by masks that a CUDA graph cannot hold.
        flow = zuko.flows.NSF(nz, bins=bins, transforms=layers, hidden_features=[width] * 2, passes=2, randperm=nz > 2)
        self.transform = flow.transform
        self.shift, self.log_scale = nn.Parameter(torch.zeros(nz)), nn.Parameter(torch.zeros(nz))

    def draw(self, e: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """z(e) and log q(z)."""
        inner, log_det = self.transform().inv.call_and_ladj(e)
        return self.shift + self.log_scale.exp() * inner, log_normal(e) - log_det - self.log_scale.sum()

    def log_prob(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        e, log_det = self.transform().call_and_ladj((z - self.shift) * (-self.log_scale).exp())
        return log_normal(e) + log_det - self.log_scale.sum()

    def scalars(self, z0: Tensor, x: Tensor | None = None) -> dict[str, Tensor]:
        return {"q_spread": z0.std(0, correction=0).mean()}

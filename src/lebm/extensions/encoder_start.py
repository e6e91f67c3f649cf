"""Posterior chains that start from an encoder's proposal. With 0 steps after it, the encoder alone infers z, as in a
VAE."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from lebm.core.errors import ConfigError, DataError
from lebm.extensions.proposals import LearnedStart
from lebm.generators.base import what
from lebm.health import COLLAPSED
from lebm.prior import log_normal
from lebm.start import Rule

AWAY = 3.0  # standard deviations of the encoder; a chain that only refines moves by about 1.5
# The spread of an encoder's means over that of its draws. One of images that has learned nothing has .07, others soon 1
# and more.
BLIND = 0.1
LOWEST, HIGHEST = -7.0, 3.0  # limits of log std: they keep the likelihood of a refined z finite


class GaussianEncoder(nn.Module):
    """q(z|x) = N(mean(x), diag std(x)^2), from a network with 2 nz outputs a row: mean, then log std."""

    def __init__(self, net: nn.Module, nz: int) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise ConfigError(f"the encoder's network is {what(net)}; make_encoder must give a torch.nn.Module")
        self.net, self.nz = net, nz

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log std, (batch, nz) each."""
        out = self.net(x)
        if not isinstance(out, Tensor) or out.shape != (len(x), 2 * self.nz):
            raise DataError(
                f"the encoder makes {what(out)} of {len(x)} rows; it must make one tensor, "
                f"2 x nz = {2 * self.nz} numbers a row: mean, then log std"
            )
        mean, log_std = out.chunk(2, -1)
        return mean, _bounded(log_std)

    def draw(self, e: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        mean, log_std = self(x)
        e = e.to(mean.dtype)
        return mean + log_std.exp() * e, log_normal(e) - log_std.sum(-1)

    def log_prob(self, z: Tensor, x: Tensor | None) -> Tensor:
        mean, log_std = self(x)
        return log_normal((z - mean) * (-log_std).exp()) - log_std.sum(-1)

    def scalars(self, z0: Tensor, x: Tensor | None) -> dict[str, Tensor]:
        """The spread of means, not of draws: an encoder that ignores x still spreads its draws. It is a root mean
        square over coordinates, so that a few that depend on x are not lost among many that do not."""
        mean, log_std = self(x)
        return {"q_spread": mean.var(0, correction=0).mean().sqrt(), "q_std": log_std.exp().mean()}


def _bounded(log_std: Tensor) -> Tensor:
    """Softly inside (LOWEST, HIGHEST), with slope 1 at 0 on either side, so that no gradient ever vanishes."""
    return torch.where(log_std < 0, LOWEST * torch.tanh(log_std / LOWEST), HIGHEST * torch.tanh(log_std / HIGHEST))


class EncoderStart(LearnedStart):
    name = "encoder"
    rules: ClassVar[dict[str, Rule]] = {
        "encoder_left": (
            lambda m, r: r.judged and m.posterior_chain.steps and r["disp_pos"] > AWAY * r["q_std_pos"],
            "the posterior chain does not stay with the encoder: it moves by {disp_pos:.2g} a coordinate, and the "
            "encoder's standard deviation is {q_std_pos:.2g}; lower method.posterior_chain.step_size, which may be too "
            "large for so narrow a posterior, or raise optimizers.encoder.rate",
        ),
        "encoder_collapsed": (  # of a text the likelihood says more: see z_unused
            lambda m, r: r.judged and r["q_spread_pos"] < max(COLLAPSED, ("z_share" not in r) * BLIND * r["q_std_pos"]),
            "the encoder has collapsed: it proposes nearly the same z for every x (its means spread by "
            "{q_spread_pos:.2g}, its draws of one x by {q_std_pos:.2g}); raise optimizers.encoder.rate or "
            "method.posterior_chain.steps; of images lower generator.sigma, of text raise generator.word_dropout",
        ),
    }

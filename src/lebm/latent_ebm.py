"""The latent space energy-based prior model of Pang, Han, Nijkamp, Zhu and Wu (NeurIPS 2020).

Algorithm 1 is `LatentEBM.losses`, on one screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lebm import health
from lebm.generators.base import as_generator
from lebm.method import CHUNK, Batch, Check, Method
from lebm.prior import EnergyPrior
from lebm.sampler import Chain, SamplerSpec, Watch, langevin
from lebm.start import Draws, Phase, Start


@dataclass
class Iteration:
    """What one learning iteration made, for the log: draws, energies and the likelihood, still on the device."""

    x: Tensor
    neg: Draws
    pos: Draws
    f_neg: Tensor
    f_pos: Tensor
    log_px: Tensor


class LatentEBM(Method):
    """p(x, z) = p_alpha(z) p_beta(x|z), learned by maximum likelihood with short-run chains (equations 1 to 9).

    By default everything is the paper's. `prior_start` and `posterior_start` replace the noise that the two chains
    start from; the prior may have another base, and the chains may be tempered. `energy_l2` weighs the mean of f
    squared."""

    def __init__(
        self,
        prior: EnergyPrior,
        generator: nn.Module,
        prior_chain: Chain = Chain(60, 0.4),
        posterior_chain: Chain = Chain(20, 0.1),
        prior_start: Start | None = None,
        posterior_start: Start | None = None,
        energy_l2: float = 0.0,
    ) -> None:
        super().__init__()
        self.prior, self.generator = prior, as_generator(generator, prior.nz)
        self.prior_chain, self.posterior_chain = prior_chain, posterior_chain
        self.prior_start, self.posterior_start = prior_start or Start(), posterior_start or Start()
        self.energy_l2: Tensor
        self.register_buffer("energy_l2", torch.tensor(energy_l2, dtype=torch.float64), persistent=False)
        self.last: Iteration | None = None

    # --- learning -------------------------------------------------------------------------------------------------

    def losses(self, batch: Batch, rng: torch.Generator) -> Iterator[Phase]:
        """Algorithm 1 (equations 10 and 11). The order of the random draws is fixed, so that runs of one seed agree."""
        x, n = batch.x, len(batch.x)
        with torch.no_grad():
            masks = self.generator.draw_masks(x, rng)  # dropout, which images do without
            e_neg, e_pos = self.prior.base.noise(n, rng), self.prior.base.noise(n, rng)
            z0_neg, z0_pos = self.start_prior(e_neg), self.posterior_start(e_pos, x)  # in the paper, the noise itself
            z_neg = self.run_prior_chain(z0_neg, self.prior_chain, rng)
            z_pos = langevin(lambda z: self.posterior_score(x, z, *masks), z0_pos, self.posterior_chain, rng)
        f_pos, f_neg = self.prior.f(z_pos), self.prior.f(z_neg)
        log_px = self.generator.log_prob(x, z_pos, *masks).mean()
        loss = f_neg.mean() - f_pos.mean() - log_px  # alpha and beta share no term, so one pass serves both
        draws = Draws(e_neg, z0_neg, z_neg), Draws(e_pos, z0_pos, z_pos, x)
        self.last = Iteration(x, *draws, f_neg.detach().mean(), f_pos.detach().mean(), log_px.detach())
        yield self._main_networks(), loss + self.further_losses(f_pos, f_neg, *masks)  # the latter is 0 in the paper
        yield from self.further_phases(*masks)  # in the paper there are none

    def start_prior(self, e: Tensor) -> Tensor:
        """Where prior chains start, as z. A start of the prior lives on the whitened u of the base, so it is unwhitened
        here."""
        return self.prior.base.unwhiten(self.prior_start(self.start_noise(e)))

    def start_noise(self, e: Tensor) -> Tensor:
        """What the prior's start takes: a draw of the base, as u, or the noise behind it."""
        return self.prior.base.transform(e) if self.prior_start.from_base else e

    def run_prior_chain(self, z: Tensor, chain: Chain, rng: torch.Generator, watch: Watch | None = None) -> Tensor:
        """A chain of the prior from z, preconditioned by its base: with z = L u + m it moves by (s^2/2) L L' grad log
        p(z) + s L e, which is the plain chain in u, so that one step size suits all directions."""
        base = self.prior.base
        watch_u = watch and (lambda k, u: watch(k, base.unwhiten(u)))
        return base.unwhiten(langevin(self.prior.score_white, base.whiten(z), chain, rng, watch=watch_u))

    def posterior_score(self, x: Tensor, z: Tensor, *masks: Any) -> Tensor:
        """The gradient of log p(z|x) in z, which is that of log p(x, z)."""
        return self.prior.score(z) + self.generator.score(x, z, *masks)

    def networks(self) -> dict[str, nn.Module]:
        own = {**self.prior.networks(), "generator": self.generator}
        networks = {**own, **self.posterior_start.networks(), **self.prior_start.networks()}
        return {name: net for name, net in networks.items() if any(True for _ in net.parameters())}

    def parts(self) -> dict[str, nn.Module]:
        base = self.prior.base
        return {**self.networks(), "base": base} if base.state_dict() else self.networks()

    def _main_networks(self) -> tuple[str, ...]:
        """All but a base that gradients move: it has a phase of its own."""
        return tuple(name for name in self.networks() if name != "base")

    def further_losses(self, f_pos: Tensor, f_neg: Tensor, *masks: Any) -> Tensor:
        """What joins the main loss: the weight of f squared, and what the starts learn."""
        loss = self.energy_l2 * (f_pos.square().mean() + f_neg.square().mean())
        for start, draws, score in self._learning_starts(*masks):
            further = start.loss(draws, score)
            loss = loss if further is None else loss + further
        return loss

    def further_phases(self, *masks: Any) -> Iterator[Phase]:
        """What is learned after the main phase, by starts and by a base that gradients move."""
        assert self.last is not None
        for start, draws, score in self._learning_starts(*masks):
            yield from start.phases(draws, score)
        yield from self.prior.base.phases(self.last.pos.z, self.last.neg.z)

    def _learning_starts(self, *masks: Any) -> list[tuple[Start, Draws, Any]]:
        """Each start with its chain's draws and target score; those of the prior are on u, where its start lives."""
        assert self.last is not None
        x, chain = self.last.x, self.posterior_chain

        def limited_score(z: Tensor) -> Tensor:
            return chain.drift(self.posterior_score(x, z, *masks), 0.5 * chain.step_size**2)

        starts = [
            (self.prior_start, self.neg_white(), self.prior.score_white),
            (self.posterior_start, self.last.pos, limited_score),
        ]
        return [start for start in starts if type(start[0]) is not Start]

    def neg_white(self) -> Draws:
        """The last draws from the prior, as u."""
        assert self.last is not None
        neg, base = self.last.neg, self.prior.base
        return Draws(neg.e, base.whiten(neg.z0), base.whiten(neg.z))

    def observe(self) -> None:
        assert self.last is not None
        for start, draws, _ in self._learning_starts():
            start.observe(draws)
        self.prior.base.observe(self.last.pos.z)

    def between_updates(self, updates: int) -> None:
        if self.prior.base.refit_every and updates % self.prior.base.refit_every == 0:
            self.prior.base.refit()

    def coefficients(self) -> dict[str, Tensor]:
        return {"energy_l2": self.energy_l2}

    @torch.no_grad()
    def scalars(self) -> dict[str, Tensor]:
        return {} if self.last is None else health.scalars(self, self.last)

    def checks(self) -> Sequence[Check]:
        return health.checks(self)

    # --- use ------------------------------------------------------------------------------------------------------

    def samplers(self) -> dict[str, SamplerSpec]:
        prior, posterior = self._spec("prior", self.prior_start), self._spec("posterior", self.posterior_start)
        return {"prior": replace(prior, base=self.prior.base.name), "posterior": posterior}

    def _spec(self, target: Any, start: Start) -> SamplerSpec:
        chain = self.prior_chain if target == "prior" else self.posterior_chain
        values = {f.name: getattr(chain, f.name) for f in fields(chain)}
        steps, size = values.pop("steps"), values.pop("step_size")
        return SamplerSpec(target, start.name, steps, size, options=values, **start.describe())

    def starts(self, target: str) -> tuple[str, ...]:
        start = self.prior_start if target == "prior" else self.posterior_start
        return tuple(dict.fromkeys(("noise", start.name)))

    def chain_of(self, spec: SamplerSpec) -> Chain:
        """The chain that a spec describes."""
        chain = self.prior_chain if spec.target == "prior" else self.posterior_chain
        return replace(chain, steps=spec.steps, step_size=spec.step_size, **spec.options)

    def draw(self, n: int, rng: torch.Generator, spec: SamplerSpec | None = None, first: int = 0) -> Tensor:
        spec = spec or self.samplers()["prior"]
        e, base, chain = self.prior.base.noise(n, rng), self.prior.base, self.chain_of(spec)
        if spec.start == "noise":
            z, rounds = base.unwhiten(base.transform(e)), torch.ones(n, dtype=torch.int64, device=e.device)
        else:
            u, rounds = self.prior_start.resume(self.start_noise(e), first)
            z = base.unwhiten(u)
        end = z
        for k in range(1, int(rounds.max()) + 1):
            z = self.run_prior_chain(z, chain, rng)
            end = torch.where((rounds == k)[:, None], z, end)
        return end

    def infer(
        self, x: Tensor, rng: torch.Generator, spec: SamplerSpec | None = None, shared_noise: bool = True
    ) -> Tensor:
        spec = spec or self.samplers()["posterior"]
        e = self.prior.base.noise(1 if shared_noise else CHUNK, rng).expand(CHUNK, -1)[: len(x)]
        z = e if spec.start == "noise" else self.posterior_start(e, x)
        score = partial(self.posterior_score, x)
        return langevin(score, z, self.chain_of(spec), rng, shared_noise=shared_noise, chunk=CHUNK)

    def anomaly(self, x: Tensor, rng: torch.Generator, spec: SamplerSpec | None = None) -> Tensor:
        """-log p(x, z) - log Z at one draw of z from the posterior: the paper's decision function."""
        return -self.log_joint(x, self.infer(x, rng, spec))

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x, z) + log Z = f(z) + log p_0(z) + log p(x|z), one number a row (equation 1)."""
        return self.prior.log_prob(z) + self.generator.log_prob(x, z)

    def log_prior(self, z: Tensor) -> Tensor:
        return self.prior.log_prob(z)

    def prior_score(self, z: Tensor) -> Tensor:
        return self.prior.score(z)

"""Algorithm 1 on the kernels of this package, for a LatentEBM of images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import triton
from torch import Tensor

from lebm.extensions.encoder_start import EncoderStart
from lebm.extensions.flow_start import FlowStart
from lebm.extensions.replay_start import ReplayStart
from lebm.extensions.tempered_chain import TemperedChain
from lebm.fast import chain_kernels as kernels
from lebm.fast.generator import FastGenerator, fastest
from lebm.fast.graphs import Optimizers
from lebm.fast.prior import BASES, FastPrior, PlainPrior, fits, fits_chain
from lebm.fast.streams import Stream
from lebm.generators.images import ImageGenerator
from lebm.latent_ebm import Iteration, LatentEBM
from lebm.method import Method, move, set_gradients
from lebm.prior import EnergyPrior
from lebm.sampler import Chain, Score
from lebm.start import Draws, Start


def applies(method: Method, rows: int) -> bool:
    """Whether FusedStep computes this method. Classes must be exactly ours: a subclass may compute something else."""
    if type(method) is not LatentEBM or type(method.generator) is not ImageGenerator:
        return False
    prior, starts = method.prior, (type(method.prior_start), type(method.posterior_start))
    known = type(prior) is EnergyPrior and type(prior.base) in BASES
    known = known and starts[0] in (Start, FlowStart, ReplayStart) and starts[1] in (Start, EncoderStart)
    chains = type(method.posterior_chain) in (Chain, TemperedChain) and fits_chain(method.prior_chain, rows, prior.nz)
    return known and chains


class FusedStep:
    """One update of a LatentEBM of images: as `lebm.method.update`, in working precision and with noise of its own.

    Four streams. The main one has the posterior chain and the generator's update; `prior_stream` the prior chain and
    the updates of energy and flow; `score_stream` the energy's score in each posterior step and small work beside the
    generator; `start_stream` what an encoder and a base learn. Of an encoder with the objective reverse_kl the chain
    waits for the proposal, and the rest of its loss runs beside the chain. Each network moves on the stream that made
    its gradient, so only energy and flow wait for the prior chain. Starts and bases are those of the reference.
    """

    def __init__(
        self,
        method: LatentEBM,
        optimizers: Optimizers,
        rng: torch.Generator,
        rows: int,
        clip: float = 0.0,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        assert isinstance(method.generator, ImageGenerator)
        self.method, self.optimizers, self.rng = method, optimizers, rng
        self.rows, self.clip, self.dtype = rows, clip, dtype
        self.generator = FastGenerator(method.generator, rows, dtype)
        self.prior = FastPrior(method.prior, dtype) if fits(method.prior) else PlainPrior(method, rng)
        device, nz = method.device, method.prior.nz
        zeros = [torch.zeros(rows, nz, device=device) for _ in range(8)]
        self.z0_neg, self.z_neg, self.z0_pos, self.z_pos, self.grad_f, *zeros = zeros
        # The score at an encoder's proposal, and the noise behind the starts where these are not the noise itself.
        self.start_score, self.e_neg, self.e_pos = zeros
        self.seeds = torch.zeros(2, dtype=torch.int64, device=device)
        # Of the loss, in f at z_pos and at z_neg.
        self.slope = torch.tensor([[-1.0], [1.0]], device=device).expand(2, rows) / rows
        self.neg_from_noise = type(method.prior_start) is Start
        self.encoder = method.posterior_start if isinstance(method.posterior_start, EncoderStart) else None
        if self.encoder is not None:
            self.encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.generator.make_grads()
        _follow_layout(optimizers)
        self.prior_stream, self.score_stream, self.start_stream = Stream(device), Stream(device), Stream(device)

    @torch.no_grad()
    def __call__(self, rows: Tensor, index: Tensor | None = None) -> None:
        if len(rows) != self.rows:
            raise ValueError(f"a batch has {len(rows)} rows; this engine was made for {self.rows}")
        method = self.method.train()
        self.seeds.random_(0, 2**62, generator=self.rng)
        self.prior_stream.after_main()
        self.score_stream.after_main()
        with self.prior_stream:
            self.prior.refresh(self.score_stream)
            self.score_stream.after(self.prior_stream)
            self.prior_chain()
            x = method.generator.from_storage(rows) if self.encoder is None else None  # for the log alone
        self.generator.refresh(self.score_stream)
        if x is None:
            x = method.generator.from_storage(rows)
        self.score_stream.join()
        self.posterior_chain(rows, x)
        self.start_stream.after_main()
        with self.start_stream:
            method.prior.base.observe(self.z_pos)
            if self.encoder is not None and not self.follows_score:
                self.learn_encoder(x, _no_score)
        self.prior_stream.after_main()
        with self.prior_stream:
            f_pos, f_neg = self.learn_energy()
            self.learn_prior_start()
            self.move("prior", "flow")
        log_px = self.learn_generator(rows)
        self.start_stream.join()
        self.prior_stream.join()
        e_neg = self.z0_neg if self.neg_from_noise else self.e_neg
        e_pos = self.z0_pos if self.encoder is None else self.e_pos
        neg, pos = Draws(e_neg, self.z0_neg, self.z_neg), Draws(e_pos, self.z0_pos, self.z_pos, x)
        method.last = Iteration(x, neg, pos, f_neg, f_pos, log_px)

    # --- the chains -----------------------------------------------------------------------------------------------

    def prior_chain(self) -> None:
        """K0 steps into z_neg, from draws of the base or from where the prior's start puts them."""
        method, base = self.method, self.method.prior.base
        if not self.neg_from_noise:
            self.e_neg.copy_(base.noise(self.rows, self.rng))
            self.z0_neg.copy_(method.start_prior(self.e_neg))
        self.prior.chain(self.z_neg, self.z0_neg, self.seeds[:1], method.prior_chain, self.neg_from_noise)

    def posterior_chain(self, rows: Tensor, x: Tensor) -> None:
        """K1 steps in place on z_pos, from N(0, I) or an encoder's proposal; its loss may still run on start_stream."""
        chain, nz, total = self.method.posterior_chain, self.method.prior.nz, self.z_pos.numel()
        limit = chain.drift_limit if isinstance(chain, TemperedChain) else 0.0
        block, line = 128, triton.next_power_of_2(max(nz, 16))
        grid = ((total + block - 1) // block,)
        kernels.draw_start[grid](self.z_pos, self.z0_pos, self.seeds[1:], total, chain.steps, nz, block)
        if self.encoder is not None:
            self.start_from_encoder(self.encoder, rows, x)
        for k in range(chain.steps):
            if k or not self.follows_score:  # otherwise the loss has left the score of its proposal behind
                self.posterior_scores(rows)
            s = chain.size(k)
            noise = (self.seeds[1:], total, 0.5 * s * s, s * chain.noise_scale)
            shape = (chain.steps, nz, self.generator.split, line, limit > 0)
            draws = (self.z_pos, self.generator.part, self.grad_f)
            kernels.posterior_update[(self.rows,)](*draws, *noise, limit, k, *shape, num_warps=1)

    def posterior_scores(self, rows: Tensor) -> None:
        """The two parts of the score at z_pos, side by side: into generator.part and grad_f."""
        if self.method.prior.energy is not None or self.method.prior.base.root is not None:
            self.score_stream.after_main()
            with self.score_stream:
                self.prior.grad_f(self.z_pos, self.grad_f)
        self.generator.forward(self.z_pos, rows, 1 / self.generator.sigma**2)
        self.generator.backward()
        self.score_stream.join()

    # --- an encoder -----------------------------------------------------------------------------------------------

    @property
    def follows_score(self) -> bool:
        """Whether the encoder learns from the score at its proposal, so that its loss begins before the chain does."""
        return self.encoder is not None and self.encoder.objective == "reverse_kl" and "encoder" in self.optimizers

    def start_from_encoder(self, encoder: EncoderStart, rows: Tensor, x: Tensor) -> None:
        """From the noise in z_pos to the encoder's proposal, in place."""
        self.e_pos.copy_(self.z_pos)
        if not self.follows_score:
            with self.working_precision():
                self.propose(encoder(self.e_pos, x))
            return

        def score(z: Tensor) -> Tensor:  # the encoder has proposed z: the rest of its loss runs beside the chain
            with self.start_stream.main(), torch.no_grad(), torch.autocast(z.device.type, enabled=False):
                self.start_stream.join()
                self.propose(z)
                self.posterior_scores(rows)
                torch.sum(self.generator.part, 0, out=self.start_score).add_(self.grad_f).sub_(self.z_pos)
                self.start_stream.after_main()
            return self.start_score

        self.start_stream.after_main()
        with self.start_stream:
            self.learn_encoder(x, score)

    def propose(self, z: Tensor) -> None:
        self.z0_pos.copy_(z)
        self.z_pos.copy_(z)

    def learn_encoder(self, x: Tensor, score: Score) -> None:
        """Move the encoder by its loss, which may ask for the score at its proposal."""
        if self.encoder is None or "encoder" not in self.optimizers:
            return
        chain = self.method.posterior_chain
        limited = lambda z: chain.drift(score(z), 0.5 * chain.step_size**2)  # noqa: E731
        with self.working_precision():
            loss = self.encoder.loss(Draws(self.e_pos, self.z0_pos, self.z_pos, x), limited)
            set_gradients(loss, list(self.encoder.q.parameters()))
        self.move("encoder")

    @contextmanager
    def working_precision(self) -> Iterator[None]:
        """For the encoder, without autocast's cache of cast weights, which would outlive a captured update."""
        low, device = self.dtype is not torch.float32, self.z_pos.device.type
        with fastest(), torch.autocast(device, self.dtype, cache_enabled=False) if low else nullcontext():
            yield

    # --- the other networks ---------------------------------------------------------------------------------------

    def learn_energy(self) -> tuple[Tensor, Tensor]:
        """Mean f at z_pos and at z_neg, and .grad of the energy network for equation 10 and the L2 term."""
        prior = self.method.prior
        if prior.energy is None:
            return tuple(self.z_pos.new_zeros(2))
        with torch.set_grad_enabled("prior" in self.optimizers):
            f = prior.f(torch.cat([self.z_pos, self.z_neg])).view(2, -1)
        if f.requires_grad:
            slope = torch.addcmul(self.slope, f.detach(), self.method.energy_l2.to(f.dtype), value=2 / self.rows)
            params = list(prior.energy.parameters())
            for p, g in zip(params, torch.autograd.grad(f, params, slope), strict=True):
                p.grad = g
        f_pos, f_neg = f.detach().mean(1)
        return f_pos, f_neg

    def learn_prior_start(self) -> None:
        """What the prior's start learns and remembers of its draws, as u."""
        start, base = self.method.prior_start, self.method.prior.base
        if self.neg_from_noise:
            return
        draws = Draws(self.e_neg, base.whiten(self.z0_neg), base.whiten(self.z_neg))
        if isinstance(start, FlowStart) and "flow" in self.optimizers:
            set_gradients(start.loss(draws, self.method.prior.score_white), list(start.q.parameters()))
        start.observe(draws)

    def learn_generator(self, rows: Tensor) -> Tensor:
        """Move the generator by the likelihood at z_pos, and return its mean."""
        self.generator.forward(self.z_pos, rows, -1 / (self.generator.sigma**2 * self.rows))
        if "generator" not in self.optimizers:
            return self.generator.log_px()
        self.generator.backward(to_z=False)
        self.score_stream.after_main()
        self.generator.weight_gradients(self.z_pos, self.score_stream)
        log_px = self.generator.log_px()
        self.score_stream.join()
        self.move("generator")
        return log_px

    def move(self, *names: str) -> None:
        """The optimiser's step of these networks, of those that have one."""
        networks = self.method.networks()
        move(networks, [n for n in names if n in self.optimizers and n in networks], self.optimizers, self.clip)


def _no_score(z: Tensor) -> Tensor:
    raise NotImplementedError("an encoder with the objective forward_kl asks for no score")


def _follow_layout(optimizers: Optimizers) -> None:
    """Adam's moments in the memory order of their parameters, because its fused update reads them side by side."""
    for optimizer in optimizers.values():
        for p, state in optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, Tensor) and value.shape == p.shape:
                    state[key] = torch.empty_like(p).copy_(value)

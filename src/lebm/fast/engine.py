"""A learning iteration as one CUDA graph: rows in, Step out, no host in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor, nn

from lebm.config import Chains, Config
from lebm.fast import chain_kernels as kernels
from lebm.fast.image import FastGenerator, fastest
from lebm.fast.prior import FastPrior, PlainPrior, fits
from lebm.generators import ImageGenerator
from lebm.generators.image import as_floats
from lebm.learn import Step
from lebm.methods import Fresh, Proposed, Score, follow
from lebm.model import LatentEBM
from lebm.sampler import step_size, tamed

Iterate = Callable[[Tensor], Step]


class FusedStep:
    """Algorithm 1 on the kernels of this package: the same step as learn_step, in working precision and with its own noise.

    Four streams: the posterior chain and the generator's update on the main one, the prior chain and the energy's update beside it, the
    energy's score of each posterior step on a third, and on a fourth what an encoder and a fitted p_0 learn; of an encoder that follows the
    score the chain waits for the proposal, but not for the lesson. Each network moves on the stream that made its gradient, so only
    energy and flow wait for the prior chain. The ways to draw z are the reference's own, captured.
    """

    def __init__(
        self,
        model: LatentEBM,
        optimizer: torch.optim.Optimizer,
        rng: torch.Generator,
        rows: int,
        dtype: torch.dtype = torch.bfloat16,
        chains: Chains | None = None,
    ) -> None:
        assert isinstance(model.generator, ImageGenerator)
        self.model, self.optimizer, self.rng, self.rows = model, optimizer, rng, rows
        self.config: Config = model.config
        self.chains = chains or model.config.chains
        self.generator = FastGenerator(model.generator, rows, dtype)
        self.prior = FastPrior(model.prior, dtype) if fits(model.prior) else PlainPrior(model.prior, rng)  # type: ignore[arg-type]
        device = model.device
        z = lambda: torch.zeros(rows, model.config.nz, device=device)  # noqa: E731
        self.z0_neg, self.z_neg, self.z0_pos, self.z_pos, self.grad_f = z(), z(), z(), z(), z()
        self.seen = z()  # the score of an encoder's proposal
        self.e_neg, self.e_pos = z(), z()  # the noise behind the starts, where a way other than the paper's makes them
        self.fresh = {"prior": type(model.synthesis) is Fresh, "posterior": type(model.inference) is Fresh}
        self.dtype = dtype
        if not self.fresh["posterior"]:
            model.inference.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.seeds = torch.zeros(2, dtype=torch.int64, device=device)
        self.slope = torch.tensor([[-1.0], [1.0]], device=device).expand(2, rows) / rows  # of the loss in f at z_pos, at z_neg
        self.generator.make_grads()
        _follow_layout(model, optimizer)
        self.beside, self.third, self.fourth = _Stream(device), _Stream(device), _Stream(device)

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> Step:
        chains, energy = self.chains, bool(list(self.model.prior.parameters()))
        self.seeds.random_(0, 2**62, generator=self.rng)
        self.beside.after_main()
        self.third.after_main()
        with self.beside:
            self.prior.refresh(self.third)
            self.third.after(self.beside)
            self.start_prior()
            self.prior.chain(self.z_neg, self.z0_neg, self.seeds[:1], chains.prior, self.fresh["prior"])
        self.generator.refresh(self.third)
        self.third.join()
        self.posterior_chain(rows, energy or self.model.prior.fitted)
        self.fourth.after_main()
        with self.fourth:
            self.model.prior.see(self.z_pos)
            if not self.follows:
                self.learn_inference(rows, no_score)
                self.move("encoder")
        self.beside.after_main()
        with self.beside:
            f_pos, f_neg = self.energy_gradients() if energy else (self.z_pos.new_zeros(()), self.z_pos.new_zeros(()))
            self.model.learn_synthesis(self.e_neg, self.z_neg)
            self.move("prior", "flow")
        self.generator.forward(self.z_pos, rows, -1 / (self.generator.sigma**2 * self.rows))
        self.generator.backward(to_z=False)
        self.third.after_main()
        self.generator.weight_gradients(self.z_pos, self.third)
        log_px = self.generator.log_px()
        self.third.join()
        self.move("generator")
        for stream in (self.fourth, self.beside):
            stream.join()
        return Step(self.z0_neg, self.z_neg, self.z0_pos, self.z_pos, f_pos, f_neg, log_px)

    def posterior_chain(self, rows: Tensor, tilted: bool = True) -> None:
        """K1 steps in place on z_pos, from N(0, I) or from where the run's way starts; an encoder's lesson may still go on, on the fourth stream."""
        chain, total, block = self.chains.posterior, self.z_pos.numel(), 128
        k, nz, line = chain.steps, self.config.nz, triton.next_power_of_2(max(self.config.nz, 16))
        grid = ((total + block - 1) // block,)
        kernels.draw_start[grid](self.z_pos, self.z0_pos, self.seeds[1:], total, k, nz, block)
        if not self.fresh["posterior"]:
            self.start_posterior(rows, tilted)
        for step in range(k):
            if step or not self.follows:  # a lesson leaves the score of its proposal behind
                self.likelihood_and_prior(rows, tilted)
            s = step_size(chain, step)
            kernels.posterior_update[(self.rows,)](
                self.z_pos, self.generator.part, self.grad_f, self.seeds[1:], total, 0.5 * s * s, s * chain.noise, chain.bound, step,
                k, nz, self.generator.split, line, chain.bound > 0, num_warps=1,
            )  # fmt: skip

    def start_prior(self) -> None:
        if not self.fresh["prior"]:
            self.e_neg.copy_(self.model.prior.draw_base(self.rows, self.rng))
            self.z0_neg.copy_(self.model.start_prior(self.e_neg))

    def likelihood_and_prior(self, rows: Tensor, tilted: bool) -> None:
        """The two parts of the score at z_pos, side by side: generator.part and grad_f."""
        if tilted:
            self.third.after_main()
            with self.third:
                self.prior.grad_f(self.z_pos, self.grad_f)
        self.generator.forward(self.z_pos, rows, 1 / self.generator.sigma**2)
        self.generator.backward()
        self.third.join()

    def start_posterior(self, rows: Tensor, tilted: bool) -> None:
        """From the noise in z_pos to the encoder's proposal, in place."""
        self.e_pos.copy_(self.z_pos)
        if not self.follows:
            with self.working_precision():
                self.propose(self.model.inference.start(self.e_pos, as_floats(rows)))
            return

        def score(z: Tensor) -> Tensor:  # the encoder has proposed z: the rest of its lesson goes beside the chain
            with self.fourth.left(), torch.no_grad(), torch.autocast(z.device.type, enabled=False):
                self.fourth.join()
                self.propose(z)
                self.likelihood_and_prior(rows, tilted)
                torch.sum(self.generator.part, 0, out=self.seen).add_(self.grad_f).sub_(self.z_pos)
                self.fourth.after_main()
            return self.seen

        self.fourth.after_main()
        with self.fourth:
            self.learn_inference(rows, score)
            self.move("encoder")

    def propose(self, z: Tensor) -> None:
        self.z0_pos.copy_(z)
        self.z_pos.copy_(z)

    @property
    def follows(self) -> bool:
        """Whether the encoder's lesson is the score at its own proposal: it can begin before the chain does."""
        return isinstance(self.model.inference, Proposed) and self.model.inference.teach is follow

    def learn_inference(self, rows: Tensor, score: Score) -> None:
        if not self.fresh["posterior"]:
            with self.working_precision():
                self.model.inference.learn(self.e_pos, self.z_pos, tamed(score, self.chains.posterior), as_floats(rows))

    @contextmanager
    def working_precision(self) -> Iterator[None]:
        """For the encoder; without autocast's cache of cast weights, which would outlive a captured iteration."""
        half = self.dtype is not torch.float32
        with fastest(), torch.autocast(self.z_pos.device.type, dtype=self.dtype, cache_enabled=False) if half else nullcontext():
            yield

    def energy_gradients(self) -> tuple[Tensor, Tensor]:
        """.grad of the energy network for f_neg - f_pos (equation 10) and the L2 term, where there is one."""
        with torch.enable_grad():
            f = self.model.prior.f(torch.cat([self.z_pos, self.z_neg])).view(2, -1)
            slope = self.slope
            if self.config.learning.l2:
                slope = slope + 2 * self.config.learning.l2 / self.rows * f.detach()
            params = list(self.model.prior.parameters())
            for p, g in zip(params, torch.autograd.grad(f, params, slope), strict=True):
                p.grad = g
        f_pos, f_neg = f.detach().mean(1)
        return f_pos, f_neg

    def move(self, *names: str) -> None:
        """The optimiser's step of these networks alone, of those that the model has."""
        groups = self.optimizer.param_groups
        mine = [g for g in groups if g["name"] in names]
        if self.config.learning.clip:
            for group in mine:
                nn.utils.clip_grad_norm_(group["params"], self.config.learning.clip)
        self.optimizer.param_groups = mine
        try:
            self.optimizer.step()
        finally:
            self.optimizer.param_groups = groups


def no_score(z: Tensor) -> Tensor:
    raise NotImplementedError("an encoder that imitates asks for no score")


def _follow_layout(model: LatentEBM, optimizer: torch.optim.Optimizer) -> None:
    """Adam's moments in the memory order of their parameters: the fused update walks them side by side."""
    for p in model.parameters():
        for k, v in optimizer.state.get(p, {}).items():
            if v.shape == p.shape:
                optimizer.state[p][k] = torch.empty_like(p).copy_(v)


class _Stream:
    """A CUDA stream to run beside the main one; on a CPU (the interpreter) it is nothing at all. Of one that was sent nothing since it
    was last waited for there is nothing to wait for, and a graph that is being captured does not know it."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._sent = False
        self._inside: Any = None
        self._main: Any = None

    def after_main(self) -> None:
        self._sent = True
        if self.stream:
            self.stream.wait_stream(torch.cuda.current_stream())

    def after(self, other: _Stream) -> None:
        self._sent = True
        if self.stream and other.stream:
            self.stream.wait_stream(other.stream)

    def join(self) -> None:
        if self.stream and self._sent:
            torch.cuda.current_stream().wait_stream(self.stream)
        self._sent = False

    def __enter__(self) -> None:
        if self.stream:
            self._main, self._inside = torch.cuda.current_stream(), torch.cuda.stream(self.stream)
            self._inside.__enter__()

    def left(self) -> AbstractContextManager[Any]:
        """Inside: for a while back on the stream that it was entered from."""
        return torch.cuda.stream(self._main) if self.stream else nullcontext()

    def __exit__(self, *error: Any) -> None:
        if self._inside:
            self._inside.__exit__(*error)
            self._inside = None


class Captured:
    """Replays a captured `iterate`. Warming up would move the weights, so all state is put back before the first real step."""

    def __init__(
        self, iterate: Iterate, model: LatentEBM, optimizer: torch.optim.Optimizer, rng: torch.Generator, example: Tensor, pool: Any = None
    ) -> None:
        if rng.device.type != "cuda":  # registering another kind with a graph would end the process
            raise ValueError(f"a CUDA graph cannot draw from a generator on {rng.device}")
        self.rows = example.clone()
        self.iterate = iterate  # its buffers live as long as the graph
        before = _snapshot(model, optimizer, rng)
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    iterate(self.rows)
            torch.cuda.current_stream().wait_stream(stream)
            _put_back(before, model, optimizer, rng)
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(rng)
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
                self.step = iterate(self.rows)
        finally:  # also where it failed: the reference goes on from here
            _put_back(before, model, optimizer, rng)

    def __call__(self, rows: Tensor) -> Step:
        self.rows.copy_(rows, non_blocking=True)
        self.graph.replay()
        return self.step


def _snapshot(
    model: LatentEBM, optimizer: torch.optim.Optimizer, rng: torch.Generator
) -> tuple[list[Tensor], dict[Tensor, dict[str, Tensor]], Tensor]:
    moments = {p: {k: v.clone() for k, v in s.items()} for p, s in optimizer.state.items()}
    return [v.clone() for v in _held(model)], moments, rng.get_state()


def _held(model: LatentEBM) -> list[Tensor]:
    """Weights, and the kept chains where there are any."""
    return [p.detach() for p in model.parameters()] + list(model.buffers())


@torch.no_grad()
def _put_back(
    before: tuple[list[Tensor], dict[Tensor, dict[str, Tensor]], Tensor], model: LatentEBM, optimizer: torch.optim.Optimizer, rng: torch.Generator
) -> None:
    values, moments, state = before
    torch.cuda.synchronize()
    for p, v in zip(_held(model), values, strict=True):
        p.copy_(v)
    for key, s in optimizer.state.items():
        for k, moment in s.items():
            if key in moments:
                moment.copy_(moments[key][k])
            else:
                moment.zero_()
    rng.set_state(state)

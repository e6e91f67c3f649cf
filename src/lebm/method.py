"""What every learner of this package is, `Method`, and the one place where weights move, `update`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lebm.core.distributed import average_over_ranks
from lebm.core.errors import DataError, NotDefined
from lebm.core.progress import Progress, ignore
from lebm.core.rng import stream
from lebm.generators.base import Generator
from lebm.sampler import SamplerSpec
from lebm.start import Phase

CHUNK = 500  # rows that share one random stream: fixed, so that no result depends on a batch size


@dataclass
class Batch:
    """One batch of training rows."""

    x: Tensor  # as the generator takes it
    row: Tensor  # which training rows these are
    y: Tensor | None = None  # labels, where a method uses them


@dataclass(frozen=True)
class Check:
    """One condition of healthy learning. `test` reads a log row and returns what is wrong, with advice, or None."""

    name: str  # a warning is given once for each name
    test: Callable[[Mapping[str, Any]], str | None]
    fatal: bool = False  # whether learning stops


class Method(nn.Module):
    """A learner of p(x, z): mathematics only, with no optimiser, no file and no console.

    A new method sets `generator` and writes `networks`, `losses`, `draw` and `infer`; everything else has a default.
    """

    generator: Generator
    engine: Any = None  # a faster implementation of `sample`, where lebm.fast has installed one
    # The configuration that built this method; None if it was built from parts. The mathematics never reads it.
    config: Any = None
    last: Any = None  # what the last update made, for `scalars`
    updates: int | None = None  # learning updates behind the weights, where they come from a file
    user_generator: bool = False  # whether the generator was handed in, so that a loader must hand it in again

    # --- what a method defines -----------------------------------------------------------------------------------

    def networks(self) -> dict[str, nn.Module]:
        """Everything that gradients move, by name; each has an optimiser and a rate in the configuration."""
        raise NotDefined(self, "networks")

    def parts(self) -> dict[str, nn.Module]:
        """What a run may take over from another one, by name: the networks, and what else belongs to the learned
        model."""
        return self.networks()

    def losses(self, batch: Batch, rng: torch.Generator) -> Iterator[Phase]:
        """One learning iteration: each phase is applied before the next is computed."""
        raise NotDefined(self, "losses")

    def coefficients(self) -> dict[str, Tensor]:
        """0-d tensors that a stage's schedule sets. They are never Python floats, which a captured update would
        freeze."""
        return {}

    def observe(self) -> None:
        """After the update, inside a captured one too: running statistics, replay buffers, slow copies."""

    def between_updates(self, updates: int) -> None:
        """After so many updates, outside a captured one: what needs the host, such as fitting a base anew."""

    def scalars(self) -> dict[str, Tensor]:
        """Numbers of the last update for the log, still on the device."""
        return {}

    def checks(self) -> Sequence[Check]:
        """What healthy learning looks like for this method."""
        return ()

    def finish(self, rows: Tensor) -> None:
        """After the last update: a closed-form fit to the training rows. Calling it twice changes nothing."""

    def samplers(self) -> dict[str, SamplerSpec]:
        """How `draw` ("prior") and `infer` ("posterior") work, as data."""
        return {}

    def starts(self, target: str) -> tuple[str, ...]:
        """The names of the starts that a sampler of this target may have."""
        spec = self.samplers().get(target)
        return () if spec is None else (spec.start,)

    def draw(self, n: int, rng: torch.Generator, spec: SamplerSpec | None = None, first: int = 0) -> Tensor:
        """n draws of z from the learned prior, (n, nz); `first` is the number of the first sample."""
        raise NotDefined(self, "draw")

    def infer(
        self, x: Tensor, rng: torch.Generator, spec: SamplerSpec | None = None, shared_noise: bool = True
    ) -> Tensor:
        """z of every row of x, at most CHUNK of them. With `shared_noise` each row gets the same noise, so that its z
        does not depend on its neighbours."""
        raise NotDefined(self, "infer")

    def anomaly(self, x: Tensor, rng: torch.Generator, spec: SamplerSpec | None = None) -> Tensor:
        """One number a row, higher is stranger. By default what the generator cannot explain at the inferred z."""
        return -self.generator.log_prob(x, self.infer(x, rng, spec))

    def log_prior(self, z: Tensor) -> Tensor:
        """log p(z) up to a constant, one number a row."""
        raise NotDefined(self, "log_prior")

    def prior_score(self, z: Tensor) -> Tensor:
        """The gradient of log p(z) in z."""
        raise NotDefined(self, "prior_score")

    # --- for people: arrays in, tensors on the CPU out --------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def choose(self, target: str, start: str | None = None, steps: int | None = None) -> SamplerSpec:
        """The sampler of the "prior" or "posterior", with another start or number of steps where these are given.

        A method that draws without a chain leaves the step size of its own sampler 0; then steps are refused."""
        spec = self.samplers().get(target)
        if spec is None:
            raise NotDefined(self, "draw" if target == "prior" else "infer")
        if start is not None and start not in (names := self.starts(target)):
            raise DataError(
                f"the {target} of this model cannot start from {start!r}; its chains can start from {', '.join(names)}"
            )
        if steps is not None and steps < 0:
            raise DataError(f"the number of chain steps is {steps}; it must not be negative")
        if steps and not spec.steps and not spec.step_size:
            raise DataError(f"this model draws from its {target} without a chain; leave the steps out")
        if start not in (None, spec.start):
            if not spec.steps and steps is None:
                raise DataError(
                    f"this model draws from its {target} without chain steps; "
                    f"say how many a chain that starts from {start} shall take"
                )
            spec = replace(spec, start=start, replay_chains=0)
        return spec if steps is None else replace(spec, steps=steps)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        seed: int = 0,
        spec: SamplerSpec | None = None,
        *,
        progress: Progress = ignore,
        on_device: bool = False,
        **options: Any,
    ) -> Tensor:
        """n samples: z from the learned prior, then x. The first n of a seed are always the same. `options` go to the
        generator's `sample` (a text generator takes temperature, top_p and beam). With `on_device` they stay on the
        model's device."""
        if self.engine is not None and not options:
            x: Tensor = self.engine.sample(n, seed, spec, progress)
            return x if on_device else x.cpu()
        out = []
        for i, z in enumerate(self.sample_z(n, seed, spec, progress)):
            rng = stream(seed, f"words/{i}", self.device)
            with _evaluating(self):
                parts = self.generator.sample(z, rng, CHUNK, **options) if options else self._show(z, rng)
            out.append(parts if on_device else parts.cpu())
        return torch.cat(out)

    def _show(self, z: Tensor, rng: torch.Generator) -> Tensor:
        return self.generator.sample(z, rng, CHUNK) if self.generator.autoregressive else self.decode(z)

    @torch.no_grad()
    def sample_z(
        self, n: int, seed: int = 0, spec: SamplerSpec | None = None, progress: Progress = ignore
    ) -> Iterator[Tensor]:
        """Latent draws from the learned prior on the model's device, chunk by chunk."""
        if n < 1:
            raise DataError(f"the number of samples is {n}; it must be at least 1")
        spec = spec or self.choose("prior")
        if not spec.steps and spec.rounds(n) > 1:
            raise DataError(
                f"{n} samples were asked for, but without steps there are only the {spec.replay_chains} replayed "
                "chains as they are; give steps, or ask for fewer"
            )
        for i in range(0, n, CHUNK):
            with _evaluating(self):
                z = self.draw(CHUNK, stream(seed, f"sample/{i // CHUNK}", self.device), spec, first=i)[: n - i]
            progress(i + len(z), n)
            yield z

    @torch.no_grad()
    def decode(self, z: Tensor, batch: int = 100, **options: Any) -> Tensor:
        """g(z) on the model's device, in pieces small enough for memory. `options` go to its `decode`."""
        with _evaluating(self):
            return torch.cat([self.generator.decode(part, **options) for part in z.to(self.device).split(batch)])

    def encode(
        self,
        x: Any,
        seed: int = 0,
        spec: SamplerSpec | None = None,
        *,
        shared_noise: bool = True,
        progress: Progress = ignore,
    ) -> Tensor:
        """z inferred for every row of x, an array as a user has it."""

        def infer(rows: Tensor, i: int) -> Tensor:
            rng = stream(seed, "infer" if shared_noise else f"infer/{i // CHUNK}", self.device)
            return self.infer(rows, rng, spec, shared_noise)

        return self._each_chunk(x, infer, progress)

    def reconstruct(
        self, x: Any, seed: int = 0, spec: SamplerSpec | None = None, *, progress: Progress = ignore
    ) -> Tensor:
        """g(z) at an inferred z, for every row of x."""
        return self.decode(self.encode(x, seed, spec, progress=progress)).cpu()

    def anomaly_score(
        self, x: Any, seed: int = 0, spec: SamplerSpec | None = None, *, progress: Progress = ignore
    ) -> Tensor:
        """One number for every row of x, higher is more anomalous; it does not depend on the row's neighbours."""
        score = lambda rows, i: self.anomaly(rows, stream(seed, "infer", self.device), spec)  # noqa: E731
        return self._each_chunk(x, score, progress)

    def by_chunks(self, number: Callable[[Tensor, Tensor], Tensor], x: Any, z: Tensor) -> Tensor:
        """number(x, z) of every row, a chunk at a time on the model's device; the answer is on the CPU."""
        return self._each_chunk(x, lambda rows, i: number(rows, z[i : i + CHUNK].to(self.device)))

    @torch.no_grad()
    def _each_chunk(self, x: Any, function: Callable[[Tensor, int], Tensor], progress: Progress = ignore) -> Tensor:
        """function(rows, i) of every chunk of x, on the model's device, i being the number of its first row."""
        x, out = self.generator.as_input(x), []
        with _evaluating(self):
            for i in range(0, len(x), CHUNK):
                rows = self.generator.trim(x[i : i + CHUNK]).to(self.device)
                out.append(function(rows, i).cpu())
                progress(i + len(rows), len(x))
        return torch.cat(out)

    def nll(self, x: Any, z: Tensor) -> Tensor:
        """-log p(x|z) in nats, one number a row."""
        return -self.by_chunks(self.generator.log_prob, x, z)


def update(
    method: Method,
    batch: Batch,
    optimizers: Mapping[str, torch.optim.Optimizer],
    rng: torch.Generator,
    clip: float = 0.0,
) -> None:
    """The one place where weights move: for every method, on one GPU or on several. Networks without an optimiser stay
    as they are."""
    method.train()
    networks = method.networks()
    for names, loss in method.losses(batch, rng):
        moving = [name for name in names if name in optimizers]
        params = [p for name in moving for p in networks[name].parameters()]
        if params:
            set_gradients(loss, params)
            move(networks, moving, optimizers, clip)
    with torch.no_grad():
        method.observe()


def set_gradients(loss: Tensor, params: list[nn.Parameter]) -> None:
    """.grad of every parameter, in its memory order, as backward() would leave it: fused optimisers read both side by
    side."""
    for p, g in zip(params, torch.autograd.grad(loss, params, materialize_grads=True), strict=True):
        p.grad = g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)


def move(
    networks: Mapping[str, nn.Module],
    names: Iterable[str],
    optimizers: Mapping[str, torch.optim.Optimizer],
    clip: float,
) -> None:
    """Let the optimisers of these networks use their gradients, averaged over all processes and clipped."""
    for name in names:
        params = list(networks[name].parameters())
        average_over_ranks(params)
        if clip:
            nn.utils.clip_grad_norm_(params, clip)
        optimizers[name].step()


@contextmanager
def _evaluating(method: Method) -> Iterator[None]:
    """Inside, the networks are in evaluation mode."""
    before = method.training
    method.eval()
    try:
        yield
    finally:
        method.train(before)

"""LatentEBM: the prior p_alpha(z) standing on the generator p_beta(x|z), and what a person does with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lebm import checkpoint
from lebm.config import BASES, Config, from_dict
from lebm.errors import CheckpointError, ConfigError, DataError
from lebm.generators import GENERATORS, TextGenerator
from lebm.generators.image import as_floats, as_tensor
from lebm.methods import Fresh, Proposed, goes_on
from lebm.methods.ways import Drawing, choose, make_inference, make_synthesis
from lebm.prior import PRIORS
from lebm.rng import stream
from lebm.sampler import langevin

Progress = Callable[[int, int], None]
CHUNK = 500  # rows that share one random stream: fixed, so that no result depends on a batch size


class LatentEBM(nn.Module):
    """p(x, z) = p_alpha(z) p_beta(x|z)."""

    def __init__(self, config: Config, generator: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.step: int | None = None  # updates behind the weights, where they come from a file
        with torch.random.fork_rng(devices=[]):  # weights depend on config.seed alone and leave the global stream as it was
            torch.random.set_rng_state(stream(config.seed, "init").get_state())
            self.prior = PRIORS[config.prior.kind](config.nz, config.prior)
            self.generator = generator if generator is not None else GENERATORS[config.generator.kind](config.nz, config.generator)
            self.own_generator = generator is not None
            self.inference = make_inference(config, self.generator, self.own_generator)  # where posterior chains start
            self.synthesis = make_synthesis(config)  # where prior chains start
        for name in ("log_prob", "decode"):
            if not callable(getattr(self.generator, name, None)):
                raise ConfigError(f"the generator {type(self.generator).__name__} has no method {name}; it needs log_prob(x, z) and decode(z)")

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def networks(self) -> dict[str, nn.Module]:
        """Everything that learns, by name: learning.<name>_rate is its rate."""
        found = {"prior": self.prior, "generator": self.generator}
        for name, way in (("encoder", self.inference), ("flow", self.synthesis)):
            if isinstance(way, Proposed):
                found[name] = way.q
        return found

    def drawing(self, kind: str, by: str | None = None, steps: int | None = None) -> Drawing:
        """How z is drawn from the `prior` or `posterior`: by the run's own way and chain, or by those given."""
        way, chain = (self.synthesis, self.config.chains.prior) if kind == "prior" else (self.inference, self.config.chains.posterior)
        base = BASES[self.config.prior.base] if kind == "prior" else "N(0, I)"
        return choose(kind, getattr(self.config.draw, kind), way, chain, by, steps, base)

    def start_prior(self, e: Tensor) -> Tensor:
        """Where prior chains start, from N(0, I) noise, by the run's own way."""
        return self.prior.coloured(self.synthesis.start(self.noise(self.synthesis, e)))

    def starts(self, way: Fresh, n: int, rng: torch.Generator, first: int = 0) -> tuple[Tensor, Tensor]:
        """Outside learning: where the prior chains of samples first, first + 1, ... start, and how many chains' lengths each is to run."""
        start, rounds = goes_on(way, self.noise(way, self.prior.draw_base(n, rng)), first)
        return self.prior.coloured(start), rounds

    def noise(self, way: Fresh, e: Tensor) -> Tensor:
        """What a prior's way starts from, as u: draws of p_0, or the noise itself where a network takes it further."""
        return e if isinstance(way, Proposed) else self.prior.place_white(e)

    def learn_synthesis(self, e: Tensor, z: Tensor) -> None:
        """The prior's way learns from the end of its chain; like the chain it lives on u."""
        self.synthesis.learn(e, self.prior.white(z), self.prior.white_score)

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x, z) + log Z = f(z) + log p_0(z) + log p(x|z), a number a row (equation 1); p_0 is N(0, I) in the paper."""
        return self.prior.log_prob(z) + self.generator.log_prob(x, z)  # type: ignore[operator]

    def posterior_score(self, x: Tensor, z: Tensor) -> Tensor:
        """grad_z log p(z|x) = grad_z log p(x, z)."""
        return self.prior.score(z) + likelihood_score(self.generator, x, z)

    # --- for people: arrays in, tensors on the CPU out -------------------------------------------------------------

    def sample(self, n: int, seed: int = 0, steps: int | None = None, progress: Progress | None = None, by: str | None = None) -> Tensor:
        """n draws: z from the prior, then g(z). `by` is a way to draw z (default the run's own; the paper's is `langevin`, K0-step
        chains from p_0, which is N(0, I)); `by="langevin", steps=0` shows p_0 itself."""
        return torch.cat([self.decode(z).cpu() for z in self.sample_z(n, seed, steps, progress, by)])

    @torch.no_grad()
    def sample_z(self, n: int, seed: int = 0, steps: int | None = None, progress: Progress | None = None, by: str | None = None) -> Iterator[Tensor]:
        """Latent draws from the prior, chunk by chunk, on the model's device. The first n of a seed are always the same."""
        if n < 1:
            raise DataError(f"the number of samples is {n}; it must be at least 1")
        drawing = self.drawing("prior", by, steps)
        if not drawing.chain.steps and drawing.rounds(n) > 1:
            raise DataError(f"{n} samples were asked for, but without steps there are only the kept chains as they are; give steps, or ask for fewer")
        for i in range(0, n, CHUNK):
            rng = stream(seed, f"sample/{i // CHUNK}", self.device)
            at, rounds = self.starts(drawing.way, CHUNK, rng, i)
            z = torch.empty_like(at)
            for k in range(1, int(rounds.max()) + 1):
                at = self.prior.walk(at, drawing.chain, rng)
                z = torch.where((rounds == k)[:, None], at, z)
            z = z[: n - i]
            if progress:
                progress(i + len(z), n)
            yield z

    @torch.no_grad()
    def decode(self, z: Tensor, batch: int = 100) -> Tensor:
        """g(z) in pieces small enough for memory; of a text generator the likeliest words, one after the other."""
        return torch.cat([self.generator.decode(part) for part in z.to(self.device).split(batch)])  # type: ignore[operator]

    def sample_words(
        self,
        n: int,
        seed: int = 0,
        steps: int | None = None,
        progress: Progress | None = None,
        by: str | None = None,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
    ) -> Tensor:
        """n draws of a text model, as numbers of words: z from the prior, then each word from p(word | words before, z).

        That is a draw from p(x) at temperature 1 and top_p 1; less of either makes likelier and more similar sentences.
        """
        g = self.text()
        out = []
        for i, z in enumerate(self.sample_z(n, seed, steps, progress, by)):
            u = torch.rand(g.config.length + 1, CHUNK, generator=stream(seed, f"words/{i}", self.device), device=self.device)
            out.append(g.decode(z, u[:, : len(z)], temperature, top_p).cpu())
        return torch.cat(out)

    def text(self) -> TextGenerator:
        """The generator, where it is one of text."""
        if not isinstance(self.generator, TextGenerator):
            raise DataError(f"the generator of this model is a {type(self.generator).__name__}; only text models have words")
        return self.generator

    def images(self) -> tuple[int, int, int]:
        """The shape (c, h, w) of what the generator makes, where that is images."""
        shape = getattr(self.generator, "shape", None)
        if not isinstance(shape, list | tuple) or len(shape) != 3:
            raise DataError(
                f"the generator of this model is a {type(self.generator).__name__}, and this is for models of images; in Python, "
                "lebm.load(...) has sample, infer, reconstruct and anomaly_score for any"
            )
        channels, height, width = shape
        return channels, height, width

    @torch.no_grad()
    def infer(
        self,
        x: Any,
        seed: int = 0,
        steps: int | None = None,
        shared_noise: bool = True,
        progress: Progress | None = None,
        by: str | None = None,
    ) -> Tensor:
        """z from the posterior of every row of x, drawn `by` the run's own way or another; the paper's is `langevin`, a K1-step chain
        from N(0, I).

        With `shared_noise` (common random numbers) every row gets the same noise and so does not depend on its neighbours.
        """
        x = self.as_input(x)
        drawing = self.drawing("posterior", by, steps)
        out = []
        for i in range(0, len(x), CHUNK):
            rng = stream(seed, "infer" if shared_noise else f"infer/{i // CHUNK}", self.device)
            rows = self.trim(x[i : i + CHUNK]).to(self.device)
            e = self.prior.draw_base(1 if shared_noise else CHUNK, rng).expand(CHUNK, -1)[: len(rows)]
            start = drawing.way.start(e, rows)
            score = partial(self.posterior_score, rows)
            out.append(langevin(score, start, drawing.chain, rng, shared_noise=shared_noise, of_chunk=CHUNK).cpu())
            if progress:
                progress(i + len(rows), len(x))
        return torch.cat(out)

    def reconstruct(self, x: Any, seed: int = 0, steps: int | None = None, progress: Progress | None = None, by: str | None = None) -> Tensor:
        """g(z) at an inferred z, a row for every row of x."""
        return self.decode(self.infer(x, seed, steps, progress=progress, by=by)).cpu()

    def anomaly_score(self, x: Any, seed: int = 0, steps: int | None = None, progress: Progress | None = None, by: str | None = None) -> Tensor:
        """Minus the unnormalised log-posterior, -log p(x, z) - log Z, at an inferred z: higher is more anomalous."""
        x = self.as_input(x)
        z = self.infer(x, seed, steps, progress=progress, by=by)
        return -self.by_chunks(self.log_joint, x, z)

    def nll(self, x: Any, z: Tensor) -> Tensor:
        """-log p(x|z) in nats, a number a row."""
        return -self.by_chunks(self.generator.log_prob, x, z)  # type: ignore[arg-type]

    @torch.no_grad()
    def by_chunks(self, number: Callable[[Tensor, Tensor], Tensor], x: Any, z: Tensor) -> Tensor:
        """number(x, z) of every row, so many at a time on the model's device; the answer is on the CPU."""
        pairs = zip(self.as_input(x).split(CHUNK), z.split(CHUNK), strict=True)
        return torch.cat([number(self.trim(a).to(self.device), b.to(self.device)).cpu() for a, b in pairs])

    def trim(self, x: Tensor) -> Tensor:
        """Rows without what they have in common and no computation needs: the padding of sentences."""
        cut = getattr(self.generator, "trim", None)
        return x if cut is None else cut(x)

    def as_input(self, x: Any) -> Tensor:
        """A user's array or tensor as the generator takes it; wrong shapes and ranges are errors."""
        sentences = isinstance(x, list | tuple) and isinstance(self.generator, TextGenerator)
        if not sentences and not isinstance(x, np.ndarray | Tensor):
            raise DataError(f"the input is a {type(x).__name__}; give a numpy array or a tensor")
        if (not sentences and x.ndim == 0) or len(x) == 0:
            raise DataError("the input has no rows; give at least one")
        check = getattr(self.generator, "as_input", None)
        t: Tensor = check(x) if check else as_floats(as_tensor(x))  # as training reads stored bytes
        checked = check is not None and not self.own_generator
        if not checked and t.is_floating_point() and not bool(torch.isfinite(t).all()):
            raise DataError("the input contains NaN or infinity; remove or mend such rows")
        kind = next((p.dtype for p in self.parameters()), t.dtype)
        return t.to(kind) if t.is_floating_point() else t

    # --- files -----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, note: dict[str, Any] | None = None) -> None:
        """One safetensors file with the config inside: enough for lebm.load."""
        facts: dict[str, Any] = getattr(self.generator, "facts", dict)()
        meta = {"config": self.config.to_dict(), "own_generator": self.own_generator, **({"facts": facts} if facts else {}), **(note or {})}
        checkpoint.save_tensors(Path(path), self.state_dict(), meta)


def load(run_or_file: str | Path, device: str | torch.device = "cpu", generator: nn.Module | None = None) -> LatentEBM:
    """A model from a run folder or a .safetensors file. A run with your own generator wants it again: `generator=`."""
    tensors, meta, path = _read(Path(run_or_file))
    try:
        config = from_dict(meta["config"])
    except ConfigError as e:
        raise CheckpointError(f"{path} carries a config that this version does not understand: {e}") from None
    if meta.get("own_generator") and generator is None:
        raise CheckpointError(f"{path} was trained with a generator of your own; pass it: lebm.load({str(run_or_file)!r}, generator=...)")
    model = LatentEBM(config, generator)
    take = getattr(model.generator, "take", None)
    if take is not None:
        try:
            take(meta.get("facts", {}))
        except DataError as e:
            raise CheckpointError(f"{path} is damaged: {e}") from None
    restore(model, tensors, path)
    if meta.get("precision", "float32") != "float32":
        model.prior.settle()
    model.step = meta.get("step")
    return model.to(device).eval()


def export(run_or_file: str | Path, to: str | Path, precision: str = "float16") -> None:
    """The model alone as one small file, its weights rounded to `precision`; lebm.load reads it like any other."""
    tensors, meta, path = _read(Path(run_or_file))
    rounded = {k: t.to(getattr(torch, precision)) if t.is_floating_point() else t for k, t in tensors.items()}
    for name, t in rounded.items():
        if not bool(torch.isfinite(t.float()).all()):
            raise CheckpointError(f"{name} of {path} holds numbers that {precision} cannot; export it as float32")
    checkpoint.save_tensors(Path(to), rounded, {**meta, "precision": precision})


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], Path]:
    """Weights, what is noted beside them, and the file they lie in."""
    if path.is_dir():
        if not (path / "config.yaml").is_file():
            raise CheckpointError(f"{path} is not a run folder (it has no config.yaml); give the folder that `lebm train` made")
        if not (path / "model.safetensors").is_file():
            raise CheckpointError(f"{path} has no model.safetensors yet; let `lebm train {path} --resume` reach its first checkpoint")
        path = path / "model.safetensors"
    tensors, meta = checkpoint.load_tensors(path)
    if not isinstance(meta.get("config"), dict):
        raise CheckpointError(f"{path} carries no lebm config; it is not a model that lebm saved")
    return tensors, meta, path


def restore(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """load_state_dict with a sentence instead of a traceback."""
    mine = module.state_dict()
    if (count := "prior.updates") in mine and count not in tensors:  # a file from before p_0 counted them: it has seen enough
        tensors = {**tensors, count: torch.full_like(mine[count], 10**6)}
    wrong = [k for k in mine if k not in tensors or tensors[k].shape != mine[k].shape] + [k for k in tensors if k not in mine]
    if wrong:
        raise CheckpointError(f"{path} does not fit this model: {json.dumps(wrong[:3])} differ in name or shape")
    module.load_state_dict(tensors)


def likelihood_score(generator: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    """grad_z log p(x|z): the generator's own closed form, or autograd through its log_prob."""
    score = getattr(generator, "score", None)
    if score is not None:
        return score(x, z)
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        return torch.autograd.grad(generator.log_prob(x, z).sum(), z)[0]  # type: ignore[operator]

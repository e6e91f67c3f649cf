"""Everything that a run carries from one update to the next, and how it is written and read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lebm import __version__
from lebm.config import Config
from lebm.config.build import make_optimizers
from lebm.core.distributed import rank, world_size
from lebm.core.errors import CheckpointError
from lebm.core.rng import stream
from lebm.method import Method
from lebm.run import Run, restore, save
from lebm.training import checkpoint


def averaged_parameters(method: Method) -> dict[str, nn.Parameter]:
    """The weights that a running average covers, by name: all but the energy's, which is sampled as it is."""
    ours = {id(p) for name, net in method.networks().items() if name != "prior" for p in net.parameters()}
    return {name: p for name, p in method.named_parameters() if id(p) in ours}


@torch.no_grad()
def set_weights(method: Method, weights: Mapping[str, Tensor]) -> None:
    """Copy values into the parameters of these names."""
    parameters = dict(method.named_parameters())
    for name, value in weights.items():
        parameters[name].copy_(value)


def stream_name(name: str) -> str:
    """The name of a random stream; it differs between several processes."""
    return name if world_size() == 1 else f"{name}/rank-{rank()}"


class TrainingState:
    """What a checkpoint holds: the method, optimisers, averaged weights, random stream and number of updates."""

    def __init__(self, config: Config, method: Method, device: torch.device, capturable: bool = False) -> None:
        self.config, self.method = config, method
        self.optimizers = make_optimizers(method, config, capturable)
        self.rng = stream(config.seed, stream_name("chain"), device)
        self._weights = averaged_parameters(method) if config.training.ema else {}
        self.ema = {name: p.detach().clone() for name, p in self._weights.items()}
        self.updates, self.seconds = 0, 0.0

    # --- the average of the weights -------------------------------------------------------------------------------

    @torch.no_grad()
    def average(self) -> None:
        """One update of the running average."""
        if self.ema:
            weights: list[Tensor] = list(self._weights.values())
            torch._foreach_lerp_(list(self.ema.values()), weights, 1 - self.config.training.ema)

    @contextmanager
    def averaged(self) -> Iterator[Method]:
        """Inside, the method has the averaged weights, where there are any."""
        before = {name: p.detach().clone() for name, p in self._weights.items()}
        set_weights(self.method, self.ema)
        try:
            yield self.method
        finally:
            set_weights(self.method, before)

    # --- files ----------------------------------------------------------------------------------------------------

    def save(self, run: Run) -> None:
        """A checkpoint to go on from, and the model for use, with the averaged weights."""
        note = {"seconds": self.seconds, "lebm": __version__, "config": self.config.to_dict(), "facts": self.facts()}
        checkpoint.save(run.checkpoints, self.updates, self.tensors(), note)
        note = {"updates": self.updates, "lebm": __version__}
        save(self.method, run.model_file, note, tensors={**self.method.state_dict(), **self.ema})

    def tensors(self) -> dict[str, Tensor]:
        """Everything by name: model.*, optimizer.*, ema.*, rng.*."""
        out = {f"model.{k}": v for k, v in self.method.state_dict().items()}
        for name, p, optimizer in self._with_optimizers():
            moments = optimizer.state.get(p, {})
            out.update({f"optimizer.{name}.{k}": v for k, v in moments.items() if isinstance(v, Tensor)})
        out.update({f"ema.{name}": t for name, t in self.ema.items()})
        out["rng.chain"] = self.rng.get_state()
        return out

    def resume_from(self, run: Run) -> None:
        """Take up the newest checkpoint of the run, where there is one."""
        newest = checkpoint.load_latest(run.checkpoints)
        if newest is not None:
            self.load(*newest, run.checkpoints)

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any], path: Path) -> None:
        """Take up what a checkpoint holds; `path` is named where it does not fit."""
        restore(self.method, _part(tensors, "model."), path)
        try:
            self._load_moments(_part(tensors, "optimizer."))
            for name, t in self.ema.items():
                t.copy_(tensors[f"ema.{name}"])
            self.rng.set_state(tensors["rng.chain"])
            if state["facts"] != self.facts():
                what = "its vocabulary, or what else the generator knows of it, is another"
                raise ValueError(f"the data has changed: {what}")
            self.updates, self.seconds = int(state["updates"]), float(state["seconds"])
        except (KeyError, RuntimeError, TypeError, ValueError) as e:
            raise CheckpointError(
                f"{path} is not a checkpoint of this run ({e}); resume on the kind of device it was made on, "
                "or train again"
            ) from None

    def _load_moments(self, moments: Mapping[str, Tensor]) -> None:
        for name, p, optimizer in self._with_optimizers():
            mine = _part(moments, f"{name}.")
            if any(v.shape not in (p.shape, torch.Size()) for v in mine.values()):
                raise ValueError(f"the moments of {name} have another shape than it")
            if mine:
                count = p.device if any(optimizer.defaults.get(key) for key in ("capturable", "fused")) else "cpu"
                optimizer.state[p] = {k: v.to(count if k == "step" else p.device) for k, v in mine.items()}

    def _with_optimizers(self) -> Iterator[tuple[str, nn.Parameter, torch.optim.Optimizer]]:
        """Every parameter that has an optimiser, with its name."""
        networks, names = self.method.networks(), {p: name for name, p in self.method.named_parameters()}
        for network, optimizer in self.optimizers.items():
            for p in networks[network].parameters():
                yield names[p], p, optimizer

    def facts(self) -> str:
        """A hash of what the generator knows of the data: a run goes on with the same vocabulary, or not at all."""
        facts = self.method.generator.facts()
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest() if facts else ""


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

"""Everything a run carries from one step to the next, and how it goes to disk and back."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lebm import checkpoint
from lebm.config import Config
from lebm.errors import CheckpointError
from lebm.learn import make_optimizer
from lebm.model import LatentEBM, restore
from lebm.rng import stream
from lebm.runs import Run
from lebm.version import __version__


def averaged(model: LatentEBM) -> list[Tensor]:
    """The weights of which a run may keep an average: all but the energy's, which is sampled as it is."""
    return [p for name, net in model.networks().items() if name != "prior" for p in net.parameters()]


class TrainingState:
    """Everything a checkpoint holds: all networks, kept chains, the optimiser, the average, the chains' stream and the step."""

    def __init__(self, config: Config, model: LatentEBM, device: torch.device, capturable: bool = False) -> None:
        self.config, self.model = config, model
        self.optimizer = make_optimizer(model, config.learning, capturable)
        self.rng = stream(config.seed, "chain", device)
        self.ema = [p.detach().clone() for p in averaged(model)] if config.learning.ema else []
        self.step, self.seconds = 0, 0.0
        self._rated: int | None = None  # the epoch whose rates are set

    def set_rates(self, epoch: int) -> None:
        """All rates decay exponentially, once an epoch."""
        if epoch == self._rated:
            return
        self._rated = epoch
        le = self.config.learning
        for group in self.optimizer.param_groups:
            rate = getattr(le, f"{group['name']}_rate") * le.decay**epoch
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def tensors(self) -> dict[str, Tensor]:
        names: dict[Tensor, str] = {p: n for n, p in self.model.named_parameters()}
        out = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        for p, s in self.optimizer.state.items():
            out.update({f"optimizer.{names[p]}.{k}": v for k, v in s.items() if isinstance(v, Tensor)})
        out.update({f"ema.{i}": t for i, t in enumerate(self.ema)})
        out["rng.chain"] = self.rng.get_state()
        return out

    def load(self, tensors: dict[str, Tensor], state: dict[str, Any], path: Path) -> None:
        part = lambda prefix: {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}  # noqa: E731
        restore(self.model, part("model."), path)
        try:
            moments = part("optimizer.")
            for name, p in self.model.named_parameters():
                mine = {k.removeprefix(name + "."): v for k, v in moments.items() if k.startswith(name + ".")}
                if any(v.shape not in (p.shape, torch.Size()) for v in mine.values()):
                    raise ValueError(f"the moments of {name} have another shape than it")
                if mine:
                    self.optimizer.state[p] = {k: v.to(p.device if k != "step" or self._step_on_device() else "cpu") for k, v in mine.items()}
            for i, t in enumerate(self.ema):
                t.copy_(tensors[f"ema.{i}"])
            self.rng.set_state(tensors["rng.chain"])
            if state.get("facts", self.facts()) != self.facts():
                raise ValueError("the data has changed since: its vocabulary, or what else the generator knows of it, is another")
            self.step, self.seconds = int(state["step"]), float(state["seconds"])
        except (KeyError, RuntimeError, TypeError, ValueError) as e:
            raise CheckpointError(
                f"{path} is not a checkpoint of this run ({e}); resume on the kind of device it was made on, or train again"
            ) from None

    def _step_on_device(self) -> bool:
        return any(g.get("capturable") or g.get("fused") for g in self.optimizer.param_groups)

    def resume_from(self, run: Run) -> None:
        found = checkpoint.load_latest(run.checkpoints)
        if found is not None:
            self.load(*found, run.checkpoints)

    def save(self, run: Run) -> None:
        note = {"seconds": self.seconds, "lebm": __version__, "config": self.config.to_dict(), "facts": self.facts()}
        checkpoint.save(run.checkpoints, self.step, self.tensors(), note)
        self.exported().save(run.model_file, {"step": self.step, "lebm": __version__})

    def facts(self) -> str:
        """A hash of what the generator knows of the data: a run goes on with the same words, or not at all."""
        facts: dict[str, Any] = getattr(self.model.generator, "facts", dict)()
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest() if facts else ""

    def exported(self) -> LatentEBM:
        """The model a person uses: with the averaged networks, where there are any."""
        if not self.ema:
            return self.model
        model = copy.deepcopy(self.model)
        with torch.no_grad():
            for p, t in zip(averaged(model), self.ema, strict=True):
                p.copy_(t)
        return model

    @torch.no_grad()
    def average(self) -> None:
        """One step of the running average of the weights."""
        if self.ema:
            torch._foreach_lerp_(self.ema, averaged(self.model), 1 - self.config.learning.ema)

    @torch.no_grad()
    def largest_weight(self) -> dict[str, float]:
        """max |w| of each network; NaN where one is not finite."""
        out = {}
        for name, net in self.model.networks().items():
            tops = [p.abs().max().double() for p in net.parameters() if p.numel()]
            out[name] = float(torch.stack(tops).max()) if tops else 0.0  # max passes NaN on
        return out

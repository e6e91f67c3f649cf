"""What is in force at each update: chains, the networks that move, their rates, and the values of coefficients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from lebm.config import Config
from lebm.core.errors import ConfigError
from lebm.core.lookup import did_you_mean
from lebm.method import Method


class Stages:
    """Applies training.stages to a method and its optimisers. Call `enter`, then `prepare`, before every update."""

    def __init__(self, config: Config, method: Method, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self.config, self.method, self.optimizers = config, method, optimizers
        self.current = config  # the configuration in force
        self.moving = dict(optimizers)  # the optimisers of the networks that move now
        self._passed: int | None = None  # how many stages are over
        self._epoch: int | None = None  # the epoch whose rates are set
        self._plain = {name: float(t) for name, t in method.coefficients().items()}
        self._values = dict(self._plain)  # what the coefficients are now
        for i, stage in enumerate(config.training.stages):
            for name in (n for n in stage.coefficients if n not in self._plain):
                hint, valid = did_you_mean(name, self._plain), ", ".join(self._plain) or "none"
                what = f"names {name!r}{hint}; the method {config.method.kind} has {valid}"
                raise ConfigError(f"training.stages[{i}].coefficients {what}")

    def enter(self, updates: int) -> bool:
        """Take up the stage that applies after so many updates; returns whether it differs from the one before."""
        passed = sum(stage.until <= updates for stage in self.config.training.stages)
        if passed == self._passed:
            return False
        self._passed, self._epoch, self.current = passed, None, self.config.at(updates)
        stage = self.config.stage_at(updates)
        names = self.optimizers if stage is None or stage.networks is None else stage.networks
        self.moving = {name: self.optimizers[name] for name in names}
        for p in self.method.parameters():
            p.grad = None
        self._values = self._at(updates)
        self._apply(self.current, self._values)
        return True

    def prepare(self, updates: int, epoch: int) -> None:
        """Set rates and coefficients for the next update, where they have changed."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._set_rates(epoch)
        values = self._at(updates)
        self._fill({name: value for name, value in values.items() if value != self._values[name]})
        self._values = values

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Inside, chains and coefficients are those of the plain configuration, as a loaded model has them."""
        self._apply(self.config, self._plain)
        try:
            yield
        finally:
            self._apply(self.current, self._values)

    def leave(self) -> None:
        """When learning has ended: chains and coefficients of the plain configuration."""
        self._apply(self.config, self._plain)

    def _apply(self, config: Config, values: Mapping[str, float]) -> None:
        config.method.apply(self.method)
        self._fill(values)

    def _at(self, updates: int) -> dict[str, float]:
        """The value of every coefficient after so many updates."""
        stage = self.config.stage_at(updates)
        begin = max((s.until for s in self.config.training.stages if s.until <= updates), default=0)
        moved = stage.coefficients if stage else {}
        return self._plain | {name: s.at(updates - begin) for name, s in moved.items()}

    @torch.no_grad()
    def _fill(self, values: Mapping[str, float]) -> None:
        coefficients = self.method.coefficients() if values else {}
        for name, value in values.items():
            coefficients[name].fill_(value)

    def _set_rates(self, epoch: int) -> None:
        """All rates decay exponentially, once an epoch."""
        for name, optimizer in self.optimizers.items():
            rate = self.current.optimizers[name].rate * self.current.training.decay**epoch
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

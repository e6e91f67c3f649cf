"""Sections that no method or generator changes: data, optimisers, training with its stages, anomaly scores."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lebm.config.files import expand, flatten
from lebm.core.section import LIST, NUMBER, WHOLE, Name, Number, Section, Switch, Whole

Positive = Annotated[int, Field(ge=1), WHOLE]
Updates = Annotated[int, Field(ge=0, le=10**12, description="Learning updates."), WHOLE]
Beta = Annotated[float, Field(ge=0, lt=1), NUMBER]


class DataConfig(Section):
    """Which rows are learned."""

    name: Name = Field("digits", description="The data set.")
    path: Name | None = Field(None, description="images: a folder, .npy or .npz file. text: a text file.")
    limit: Positive | None = Field(None, description="Take only the first so many training rows.")
    flip: Switch = Field(False, description="Mirror a training image every other time.")
    shift: Whole = Field(0, ge=0, le=63, description="Move a training image by up to so many pixels; 0 is off.")
    test_fraction: Number = Field(0.1, gt=0, lt=1, description="For data without an official test split.")
    held_out: Annotated[int, Field(ge=0), WHOLE] | None = Field(
        None, description="Rows with this label are anomalies: never trained on, all of them in the test split."
    )
    labels: Literal["dataset", "clusters"] = Field(
        "dataset",
        description="dataset: the labels that come with the data; clusters: of clusters found without them.",
    )


class OptimizerConfig(Section):
    """The optimiser of one network. The default rate depends on the network."""

    kind: Literal["adam", "adamw", "sgd"] = "adam"
    rate: Number = Field(1e-4, ge=0, le=1e9, description="Learning rate.")
    betas: Annotated[tuple[Beta, Beta], Field(description="Of adam and adamw."), LIST] = (0.5, 0.999)
    weight_decay: Number = Field(0.0, ge=0, le=1e6)


class Schedule(Section):
    """A coefficient that moves linearly from `start` to `end` over the first updates of a stage; a number is a
    constant."""

    start: Number
    end: Number
    over: Updates = 0

    @model_validator(mode="before")
    @classmethod
    def _constant(cls, value: Any) -> Any:
        return {"start": value, "end": value} if isinstance(value, int | float | str) else value

    def at(self, updates: int) -> float:
        """The value after so many updates of the stage."""
        share = min(1.0, updates / self.over) if self.over else 1.0
        return self.start + (self.end - self.start) * share


class Stage(Section):
    """A part of learning with settings of its own, while fewer than `until` updates have been made."""

    until: Annotated[int, Field(ge=1, le=10**12, description="Updates from the beginning of the run."), WHOLE]
    set: dict[str, Any] = Field({}, description="Chains, rates, decay and clip by dotted key.")
    networks: Annotated[tuple[Name, ...], LIST] | None = Field(None, description="The networks that move; null: all.")
    coefficients: dict[str, Schedule] = Field({}, description="Numbers of the method by name.")

    @model_validator(mode="before")
    @classmethod
    def _dotted(cls, values: Any) -> Any:
        """`set` may be nested or dotted; it is kept with dotted keys."""
        if isinstance(values, dict) and isinstance(values.get("set"), dict):
            return values | {"set": flatten(expand(values["set"]))}
        return values


class TrainingConfig(Section):
    """How long and how a method learns."""

    updates: Updates = 70_000
    batch: Whole = Field(100, ge=1, le=10**6, description="Rows of an update.")
    log_every: Positive = 50
    checkpoint_every: Positive = 1000
    decay: Number = Field(1.0, gt=0, le=1, description="All rates are multiplied by this once an epoch.")
    clip: Number = Field(0.0, ge=0, description="Largest gradient norm of each network; 0 is off.")
    ema: Number = Field(0.0, ge=0, lt=1, description="Decay of the average of all networks but the prior; 0 is off.")
    start_from: Name | None = Field(None, description="A run folder or model file whose weights this run starts with.")
    stages: Annotated[
        tuple[Stage, ...], Field(description="After the last one the plain configuration applies."), LIST
    ] = ()


class AnomalyConfig(Section):
    """How strange rows are scored, and over how many last epochs a published number is averaged."""

    score: Literal["joint", "chains", "error", "likelihood", "prior", "combined"] = "joint"
    epochs: Positive = 10

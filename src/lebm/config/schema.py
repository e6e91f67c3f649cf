"""The whole configuration, its conditions across sections, and its JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, model_validator

from lebm.config.files import expand, merge
from lebm.config.generators import GENERATORS, ImageConfig
from lebm.config.messages import sentence
from lebm.config.methods import METHODS, LatentEBMConfig
from lebm.config.sections import AnomalyConfig, DataConfig, OptimizerConfig, Stage, TrainingConfig
from lebm.core.errors import ConfigError
from lebm.core.lookup import did_you_mean, named
from lebm.core.section import Name, Rule, Section, Whole, any_of, show

STAGE_KEYS = r"method\.\w+_chain\.\w+|optimizers\.\w+\.rate|training\.clip"  # what a stage may set

if TYPE_CHECKING:
    AnyGenerator = Any
    AnyMethod = Any
else:
    AnyGenerator, AnyMethod = (any_of([named(place) for place in places]) for places in (GENERATORS, METHODS))

# The networks of all methods: an optimiser of another method's network may be inherited from a preset.
NETWORKS = list(dict.fromkeys(network for place in METHODS for network in named(place).DEFAULT_RATES))


class Config(Section):
    """Everything about a run. It is saved in the run folder and is enough to run it again."""

    name: Name = Field("digits/paper", description="Runs go to runs/NAME.")
    based_on: Name | None = Field(
        None, description="The preset that this was made from, kept to say what differs from it."
    )
    seed: Whole = Field(1, ge=0, le=2**63 - 1)
    nz: Whole = Field(100, ge=1, le=4096, description="Coordinates of z.")
    engine: Literal["auto", "reference"] = Field(
        "auto", description="auto takes the fastest engine that this machine has."
    )
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    data: DataConfig = DataConfig()
    generator: AnyGenerator = ImageConfig()
    method: AnyMethod = LatentEBMConfig()
    optimizers: dict[str, OptimizerConfig] = Field({}, description="One for each network, by its name.")
    training: TrainingConfig = TrainingConfig()
    anomaly: AnomalyConfig = AnomalyConfig()

    @model_validator(mode="wrap")
    @classmethod
    def _in_words(cls, values: Any, read: ValidatorFunctionWrapHandler) -> Config:
        try:
            config: Config = read(values)
        except ValidationError as e:
            first = e.errors(include_url=False, include_context=False)[0]
            raise ConfigError(sentence(Config.model_json_schema(), first)) from None
        config._fill_optimizers()
        check(config.rules())
        return config

    @property
    def image(self) -> ImageConfig:
        """The generator's section where it makes images, for code that knows nothing else."""
        if not isinstance(self.generator, ImageConfig):
            raise ConfigError(f"generator.kind is {self.generator.kind}; this works for image generators only")
        return self.generator

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_dict()))

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    def with_values(self, **values: Any) -> Config:
        """A copy with dotted keys replaced: config.with_values(**{"training.updates": 10})."""
        return Config.model_validate(merge(self.to_dict(), expand(values)))

    def stage_at(self, update: int) -> Stage | None:
        """The stage that applies when so many updates have been made."""
        return next((stage for stage in self.training.stages if update < stage.until), None)

    def at(self, update: int) -> Config:
        """The configuration in force when so many updates have been made, without its stages."""
        stage = self.stage_at(update)
        return self._during(stage) if stage else self

    def _during(self, stage: Stage) -> Config:
        return self.with_values(**stage.set, **{"training.stages": []})

    def _fill_optimizers(self) -> None:
        """Every network that the method has gets an optimiser, with the network's default rate."""
        rates, filled = self.method.DEFAULT_RATES, {}
        for name in self.optimizers:
            if name not in NETWORKS:
                keys = ", ".join(f"optimizers.{n}" for n in rates)
                raise ConfigError(f"unknown key optimizers.{name[:60]}{did_you_mean(name, rates)}; valid here: {keys}")
        for name, rate in rates.items():
            if name in self.optimizers or name in self.method.networks():
                optimizer = self.optimizers.get(name, OptimizerConfig())
                known = "rate" in optimizer.model_fields_set
                filled[name] = optimizer if known else optimizer.model_copy(update={"rate": rate})
        object.__setattr__(self, "optimizers", filled)

    def rules(self) -> Iterator[Rule]:
        image, only = self.generator.MODALITY == "image", f"where generator.kind is {self.generator.kind}: only images"
        plain = bool(self.name.strip()) and self.name.isprintable() and not {"..", "/"} & set(Path(self.name).parts)
        yield plain, "name", self.name, "must be a name such as svhn/paper, with no .. in it"
        yield image or not self.data.flip, "data.flip", self.data.flip, f"must be false {only} can be mirrored"
        yield image or not self.data.shift, "data.shift", self.data.shift, f"must be 0 {only} can be moved"
        yield from self.method.rules(self)
        networks, last = self.method.networks(), 0
        for i, stage in enumerate(self.training.stages):
            here = f"training.stages[{i}]"
            yield stage.until > last, f"{here}.until", stage.until, f"must be above {last}: stages follow each other"
            last = stage.until
            for key in stage.set:
                what = "must be a key of a chain, a rate such as optimizers.prior.rate, or training.clip"
                what += "; a coefficient of the method goes under coefficients" * key.startswith("method.")
                yield bool(re.fullmatch(STAGE_KEYS, key)), f"a key of {here}.set", key, what
            yield from self._coefficient_rules(stage, here)
            for name in stage.networks or ():
                what = f"must be one of {', '.join(networks)}{did_you_mean(name, networks)}"
                yield name in networks, f"a name in {here}.networks", name, what
            try:
                self._during(stage)
            except ConfigError as e:
                raise ConfigError(f"{here}.set: {e}") from None

    def _coefficient_rules(self, stage: Stage, here: str) -> Iterator[Rule]:
        limits = self.method.COEFFICIENTS
        for name, schedule in stage.coefficients.items() if limits else ():
            key, valid = f"{here}.coefficients.{name}", ", ".join(limits)
            yield (
                name in limits,
                f"a name in {here}.coefficients",
                name,
                f"must be one of {valid}{did_you_mean(name, limits)}",
            )
            low, high = limits[name]
            for value in (schedule.start, schedule.end):
                yield low <= value <= high, key, value, f"must be between {low:g} and {high:g}"


def check(rules: Iterable[Rule], during: str = "") -> None:
    """Raise the first rule that does not hold."""
    for holds, key, value, what in rules:
        if not holds:
            raise ConfigError(f"{during}{key} is {show(value)}; it {what}")


def check_learning(config: Config) -> None:
    """Raise where a run cannot begin to learn. One that has learned with other settings may still be read, and go
    on."""
    for stage in config.training.stages:
        check(config._during(stage).method.learning_rules(), f"until update {stage.until}, ")
    check(config.method.learning_rules())


def json_schema() -> dict[str, Any]:
    """A JSON schema of configuration files, for editors."""
    schema = Config.model_json_schema()
    schema["properties"]["optimizers"]["propertyNames"] = {"enum": NETWORKS}
    schema["properties"]["preset"] = {"type": "string", "description": "The preset that this file stands on."}
    schema["properties"]["name"]["type"] = ["string", "number"]
    schema["$defs"]["Schedule"] = {"anyOf": [{"type": "number"}, schema["$defs"]["Schedule"]]}
    schema["patternProperties"] = {r"^\w+\.": {}}  # dotted keys, such as training.updates
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_any_kind(schema)}


def _any_kind(node: Any) -> Any:
    """A file that stands on a preset may leave `kind` out, so that a section fits several kinds: any of them will
    do."""
    if isinstance(node, list):
        return [_any_kind(n) for n in node]
    if not isinstance(node, dict):
        return node
    return {"anyOf" if k == "oneOf" else k: _any_kind(v) for k, v in node.items()}


def _kinds(values: Mapping[str, Any]) -> dict[str, Any]:
    """The kinds alone: a section of another kind replaces one whose kind nobody wrote down."""
    inner = {k: _kinds(v) for k, v in values.items() if isinstance(v, Mapping) and k != "optimizers"}
    kind = {"kind": values["kind"]} if "kind" in values else {}
    return kind | {k: v for k, v in inner.items() if v}


KINDS = _kinds(Config().to_dict())

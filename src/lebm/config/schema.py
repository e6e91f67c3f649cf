"""The whole configuration, its conditions across sections, and its JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, model_validator

from lebm.config.files import expand, merge
from lebm.config.generators import AnyGenerator, ImageConfig
from lebm.config.messages import sentence
from lebm.config.methods import METHODS, AnyMethod, LatentEBMConfig
from lebm.config.sections import AnomalyConfig, DataConfig, Name, OptimizerConfig, Stage, TrainingConfig
from lebm.core.errors import ConfigError
from lebm.core.lookup import did_you_mean
from lebm.core.section import WHOLE, Rule, Section, show

STAGE_KEYS = r"method\.\w+_chain\.\w+|optimizers\.\w+\.rate|training\.(decay|clip)"  # what a stage may set


class Config(Section):
    """Everything about a run. It is saved in the run folder and is enough to run it again."""

    name: Annotated[Name, Field(description="Runs go to runs/NAME.")] = "digits/paper"
    based_on: Annotated[
        Name | None, Field(description="The preset that this was made from, kept to say what differs from it.")
    ] = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), WHOLE] = 1
    nz: Annotated[int, Field(ge=1, le=4096, description="Coordinates of z."), WHOLE] = 100
    engine: Annotated[
        Literal["auto", "reference"], Field(description="auto takes the fastest engine that this machine has.")
    ] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    data: DataConfig = DataConfig()
    generator: AnyGenerator = ImageConfig()
    method: AnyMethod = LatentEBMConfig()
    optimizers: dict[str, OptimizerConfig] = Field(
        default_factory=dict, description="One for each network, by its name."
    )
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
        config._check_stages()
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
        rates, given = self.method.DEFAULT_RATES, self.optimizers
        others = {
            name for method in METHODS for name in method.DEFAULT_RATES
        }  # inherited from a preset of another method
        for name in given:
            if name not in others:
                keys = ", ".join(f"optimizers.{n}" for n in rates)
                raise ConfigError(f"unknown key optimizers.{name[:60]}{did_you_mean(name, rates)}; valid here: {keys}")
        filled = {}
        for name in (n for n in rates if n in given or n in self.method.networks()):
            optimizer = given.get(name, OptimizerConfig())
            known = "rate" in optimizer.model_fields_set
            filled[name] = optimizer if known else optimizer.model_copy(update={"rate": rates[name]})
        object.__setattr__(self, "optimizers", filled)

    def rules(self) -> list[Rule]:
        kind, data, name = self.generator.kind, self.data, self.name
        image = kind == "image"
        plain = bool(name.strip()) and not {"..", "/"} & set(Path(name).parts)
        return [
            (plain, "name", name, "must be a name such as svhn/paper, with no .. in it"),
            (image or not data.flip, "data.flip", data.flip,
             f"must be false where generator.kind is {kind}: only images can be mirrored"),
            (image or not data.shift, "data.shift", data.shift,
             f"must be 0 where generator.kind is {kind}: only images can be moved"),
            *self.method.rules(self),
        ]  # fmt: skip

    def _check_stages(self) -> None:
        networks, last = self.method.networks(), 0
        for i, stage in enumerate(self.training.stages):
            here = f"training.stages[{i}]"
            check([(stage.until > last, f"{here}.until", stage.until,
                    f"must be above {last}: stages follow each other")])  # fmt: skip
            last = stage.until
            for key in stage.set:
                check(
                    [
                        (
                            bool(re.fullmatch(STAGE_KEYS, key)),
                            f"a key of {here}.set",
                            key,
                            # Fmt: skip.
                            "must be a key of a chain, a rate (optimizers.prior.rate), training.decay or training.clip",
                        )
                    ]
                )
            for name in stage.networks or ():
                check([(name in networks, f"a name in {here}.networks", name,
                        f"must be one of {', '.join(networks)}{did_you_mean(name, networks)}")])  # fmt: skip
            try:
                self._during(stage)
            except ConfigError as e:
                raise ConfigError(f"{here}.set: {e}") from None


def check(rules: Iterable[Rule]) -> None:
    """Raise the first rule that does not hold."""
    for holds, key, value, what in rules:
        if not holds:
            raise ConfigError(f"{key} is {show(value)}; it {what}")


def check_learning(config: Config) -> None:
    """Raise where a run cannot begin to learn. One that has learned with other settings may still be read, and go
    on."""
    for stage in config.training.stages:
        check(
            (h, f"until update {stage.until}, {key}", v, w)
            for h, key, v, w in config._during(stage).method.learning_rules()
        )
    check(config.method.learning_rules())


def json_schema() -> dict[str, Any]:
    """A JSON schema of configuration files, for editors."""
    schema = Config.model_json_schema()
    names = [name for method in METHODS for name in method.DEFAULT_RATES]
    schema["properties"]["optimizers"]["propertyNames"] = {"enum": list(dict.fromkeys(names))}
    schema["properties"]["preset"] = {"type": "string", "description": "The preset that this file stands on."}
    schema["$defs"]["Schedule"] = {"anyOf": [{"type": "number"}, schema["$defs"]["Schedule"]]}
    return schema

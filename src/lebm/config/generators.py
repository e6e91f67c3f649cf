"""Sections of the generators, one for each kind, and GENERATORS. A further generator is a file with a Generator and its
section, and a line there."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from lebm.core.errors import ConfigError
from lebm.core.image_sizes import LARGEST_SIDE, doublings, hidden_layers
from lebm.core.section import LIST, NUMBER, WHOLE, GeneratorConfig, Number, Whole, show

GENERATORS = (  # the sections, imported with the schema; the first is the default
    "config.generators:ImageConfig",
    "config.generators:TextConfig",
    "config.generators:TableConfig",
)

Sigma = Annotated[float, Field(ge=1e-6, le=1e6, description="Standard deviation of x around g(z)."), NUMBER]
Units = Annotated[int, Field(ge=1, le=65536), WHOLE]
Multiple = Annotated[int, Field(ge=1, le=4096), WHOLE]


class ImageConfig(GeneratorConfig):
    """Images: transposed convolutions from z, and a Gaussian around their output."""

    MAKES: ClassVar = "generators:ImageGenerator"
    MODALITY: ClassVar = "image"
    SIZE_KEY: ClassVar = "ngf"

    kind: Literal["image"] = "image"
    size: Whole = Field(32, ge=2, le=LARGEST_SIDE, description="Pixels a side: base times a power of two.")
    channels: Annotated[Literal[1, 3], Field(description="1 is grey, 3 is colour."), WHOLE] = 3
    ngf: Whole = Field(64, ge=1, le=4096, description="Unit of the channel numbers.")
    base: Whole = Field(4, ge=1, le=16, description="Side of the first feature map.")
    widths: Annotated[tuple[Multiple, ...], LIST] | None = Field(
        None, description="Channels of the hidden layers in units of ngf; null: the paper's pattern."
    )
    last: Literal["up", "same"] = Field(
        "up", description="Output layer: up doubles the side (4x4), same keeps it (3x3)."
    )
    leak: Number = Field(0.2, ge=0, lt=1, description="Slope of the leaky ReLU below 0.")
    sigma: Sigma = 0.3

    @model_validator(mode="after")
    def _fits(self) -> ImageConfig:
        if doublings(self.size, self.base) is None:
            raise ConfigError(
                f"generator.size is {self.size}; it must be generator.base ({self.base}) times a power of two "
                f"(at least twice it), and at most {LARGEST_SIDE}"
            )
        layers = hidden_layers(self.size, self.base, self.last)
        if self.widths is not None and len(self.widths) != layers:
            raise ConfigError(
                f"generator.widths is {show(list(self.widths))}; it must be a list of {layers} positive whole numbers, "
                "one for each hidden layer, or null"
            )
        return self


class TextConfig(GeneratorConfig):
    """Sentences: a one-layer LSTM over words that reads z at every input and in its first state."""

    MAKES: ClassVar = "generators:TextGenerator"
    MODALITY: ClassVar = "text"
    SIZE_KEY: ClassVar = "hidden"

    kind: Literal["text"] = "text"
    vocabulary: Whole = Field(
        10_003, ge=5, le=10**6, description="Most words, with <pad>, <s>, </s> and <unk>; others become <unk>."
    )
    length: Whole = Field(200, ge=1, le=10**4, description="Most words of a sentence; the rest is cut off.")
    embedding: Units = 128
    hidden: Units = 512
    dropout: Number = Field(
        0.0, ge=0, lt=1, description="Share of the units of embeddings and states set to 0 while learning."
    )
    word_dropout: Number = Field(
        0.0, ge=0, lt=1, description="Share of the words read that become <unk> while learning."
    )


class TableConfig(GeneratorConfig):
    """Rows of numbers: a fully connected network from z to the mean of every column."""

    MAKES: ClassVar = "generators:TableGenerator"
    MODALITY: ClassVar = "table"

    kind: Literal["table"] = "table"
    columns: Whole = Field(2, ge=1, le=10**6)
    width: Units = 64
    depth: Whole = Field(2, ge=0, le=64, description="Hidden layers.")
    sigma: Sigma | None = Field(None, description="Of all columns; null: one a column, which is learned.")

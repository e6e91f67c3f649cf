"""Sections of the generators, one for each kind. A further kind is a file with a Generator and its section, and a name
in AnyGenerator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from lebm.core.errors import ConfigError
from lebm.core.image_sizes import LARGEST_SIDE, doublings, hidden_layers
from lebm.core.section import LIST, NUMBER, WHOLE, GeneratorConfig, default_kind, show

if TYPE_CHECKING:
    from lebm.generators import ImageGenerator, TableGenerator, TextGenerator

Sigma = Annotated[float, Field(ge=1e-6, le=1e6, description="Standard deviation of x around g(z)."), NUMBER]
Share = Annotated[float, Field(ge=0, lt=1), NUMBER]
Units = Annotated[int, Field(ge=1, le=65536), WHOLE]
Multiple = Annotated[int, Field(ge=1, le=4096), WHOLE]


class ImageConfig(GeneratorConfig):
    """Images: transposed convolutions from z, and a Gaussian around their output."""

    SIZE_KEY: ClassVar = "ngf"

    kind: Literal["image"] = "image"
    size: Annotated[
        int, Field(ge=2, le=LARGEST_SIDE, description="Pixels a side: base times a power of two."), WHOLE
    ] = 32
    channels: Annotated[Literal[1, 3], Field(description="1 is grey, 3 is colour."), WHOLE] = 3
    ngf: Annotated[int, Field(ge=1, le=4096, description="Unit of the channel numbers."), WHOLE] = 64
    base: Annotated[int, Field(ge=1, le=16, description="Side of the first feature map."), WHOLE] = 4
    widths: Annotated[
        Annotated[tuple[Multiple, ...], LIST] | None,
        Field(description="Channels of the hidden layers in units of ngf; null: the paper's pattern."),
    ] = None
    last: Annotated[
        Literal["up", "same"], Field(description="Output layer: up doubles the side (4x4), same keeps it (3x3).")
    ] = "up"
    leak: Annotated[float, Field(ge=0, lt=1, description="Slope of the leaky ReLU below 0."), NUMBER] = 0.2
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

    def build(self, nz: int) -> ImageGenerator:
        from lebm.generators import ImageGenerator

        return ImageGenerator(
            nz, self.size, self.channels, self.ngf, self.base, self.widths, self.last, self.leak, self.sigma
        )


class TextConfig(GeneratorConfig):
    """Sentences: a one-layer LSTM over words that reads z at every input and in its first state."""

    SIZE_KEY: ClassVar = "hidden"

    kind: Literal["text"] = "text"
    vocabulary: Annotated[
        int,
        Field(ge=5, le=10**6, description="Most words, with <pad>, <s>, </s> and <unk>; others become <unk>."),
        WHOLE,
    ] = 10_003
    length: Annotated[
        int, Field(ge=1, le=10**4, description="Most words of a sentence; the rest is cut off."), WHOLE
    ] = 200
    embedding: Units = 128
    hidden: Units = 512
    dropout: Annotated[
        Share, Field(description="Share of the units of embeddings and states set to 0 while learning.")
    ] = 0.0
    word_dropout: Annotated[Share, Field(description="Share of the words read that become <unk> while learning.")] = 0.0

    def build(self, nz: int) -> TextGenerator:
        from lebm.generators import TextGenerator

        shape = (self.vocabulary, self.length, self.embedding, self.hidden)
        return TextGenerator(nz, *shape, self.dropout, self.word_dropout)


class TableConfig(GeneratorConfig):
    """Rows of numbers: a fully connected network from z to the mean of every column."""

    kind: Literal["table"] = "table"
    columns: Annotated[int, Field(ge=1, le=10**6), WHOLE] = 2
    width: Units = 64
    depth: Annotated[int, Field(ge=0, le=64, description="Hidden layers."), WHOLE] = 2
    sigma: Annotated[Sigma | None, Field(description="Of all columns; null: one a column, which is learned.")] = None

    def build(self, nz: int) -> TableGenerator:
        from lebm.generators import TableGenerator

        return TableGenerator(nz, self.columns, self.width, self.depth, self.sigma)


AnyGenerator = Annotated[ImageConfig | TextConfig | TableConfig, Field(discriminator="kind"), default_kind("image")]

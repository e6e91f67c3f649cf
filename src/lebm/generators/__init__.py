"""Generators p_beta(x|z) by kind. A new kind is one file with a Generator and one line below."""

from lebm.generators.base import Generator, WrappedGenerator, as_generator
from lebm.generators.images import ImageGenerator
from lebm.generators.table import TableGenerator
from lebm.generators.text import TextGenerator

GENERATORS: dict[str, type[Generator]] = {"image": ImageGenerator, "text": TextGenerator, "table": TableGenerator}

__all__ = [
    "GENERATORS",
    "Generator",
    "ImageGenerator",
    "TableGenerator",
    "TextGenerator",
    "WrappedGenerator",
    "as_generator",
]

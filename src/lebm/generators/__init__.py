"""Generators p_beta(x|z) by kind. A new kind is one file with a Generator and its section of the configuration."""

from lebm.generators.base import Generator, WrappedGenerator, as_generator
from lebm.generators.images import ImageGenerator
from lebm.generators.table import TableGenerator
from lebm.generators.text import TextGenerator

__all__ = ["Generator", "ImageGenerator", "TableGenerator", "TextGenerator", "WrappedGenerator", "as_generator"]

"""p_beta(x|z). A generator has `log_prob(x, z)` and `decode(z)`.

`score(x, z)` and `as_input(x)` are optional, and so are `facts()` and `take(facts)`: what it must know of the data to read and
show rows (a vocabulary, the names of columns), as plain JSON. Data sets give it (Splits.facts) and models carry it.
"""

from collections.abc import Callable

from torch import nn

from lebm.generators.image import ImageGenerator
from lebm.generators.table import TableGenerator
from lebm.generators.text import TextGenerator

GENERATORS: dict[str, Callable[..., nn.Module]] = {"image": ImageGenerator, "text": TextGenerator, "table": TableGenerator}

__all__ = ["GENERATORS", "ImageGenerator", "TableGenerator", "TextGenerator"]

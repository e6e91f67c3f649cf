"""p_beta(x|z). A generator has `log_prob(x, z)` and `decode(z)`; `score(x, z)` and `as_input(x)` are optional."""

from lebm.generators.image import ImageGenerator

GENERATORS = {"image": ImageGenerator}

__all__ = ["GENERATORS", "ImageGenerator"]

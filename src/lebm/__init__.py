"""lebm: the latent space energy-based prior model. A small energy network tilts the prior of a generator.

Names are imported when they are first used, so that `import lebm` costs little more than the parts a program needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from lebm.config.build import build
    from lebm.detect.detector import Detector
    from lebm.generators.base import Generator
    from lebm.latent_ebm import LatentEBM
    from lebm.method import Method
    from lebm.prior import EnergyPrior
    from lebm.run import load, save
    from lebm.sampler import Chain, SamplerSpec, langevin
    from lebm.show.pictures import save_images
    from lebm.training.train import train

# Each public name and the module that defines it.
_PLACES = {
    "Chain": "lebm.sampler",
    "Detector": "lebm.detect.detector",
    "EnergyPrior": "lebm.prior",
    "Generator": "lebm.generators.base",
    "LatentEBM": "lebm.latent_ebm",
    "Method": "lebm.method",
    "SamplerSpec": "lebm.sampler",
    "build": "lebm.config.build",
    "langevin": "lebm.sampler",
    "load": "lebm.run",
    "save": "lebm.run",
    "save_images": "lebm.show.pictures",
    "train": "lebm.training.train",
}

__all__ = [
    "Chain",
    "Detector",
    "EnergyPrior",
    "Generator",
    "LatentEBM",
    "Method",
    "SamplerSpec",
    "__version__",
    "build",
    "langevin",
    "load",
    "save",
    "save_images",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'lebm' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__

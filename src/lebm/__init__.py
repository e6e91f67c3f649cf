"""lebm: the latent space energy-based prior model. A small energy network tilts the Gaussian prior of a generator."""

from lebm.config import Chain, Config
from lebm.detector import Detector
from lebm.model import LatentEBM, load
from lebm.sampler import langevin
from lebm.training import train
from lebm.version import __version__

__all__ = ["Chain", "Config", "Detector", "LatentEBM", "__version__", "langevin", "load", "train"]

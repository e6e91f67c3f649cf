"""The features behind the FID: the 2015-12-05 Inception-v3 up to its last pooling, loaded as TorchScript and never
rewritten.

Images are resized as pytorch-fid does: bilinear to 299x299, half-pixel centres, no antialiasing, on floats in [0, 1],
then scaled to [-1, 1]. Other conventions move a FID by tenths.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lebm.core.errors import DataError
from lebm.data.download import INCEPTION_FILE as FILE
from lebm.data.download import INCEPTION_SHA256 as SHA256

SIDE = 299
RESIZE = "bilinear to 299x299, align_corners=False, no antialias, on [0, 1], then 2x - 1"


class Features(Protocol):
    """Images as uint8 (n, c, h, w) -> features (n, d). Statistics are cached under `name`."""

    @property
    def name(self) -> str: ...
    @property
    def precision(self) -> str: ...
    def __call__(self, pixels: Tensor) -> Tensor: ...


class Inception:
    """pool3 features, 2048 an image, in float32; on CUDA convolutions run in TF32 where PyTorch allows it (its
    default).
    """

    name = f"inception-2015-12-05 sha256:{SHA256}; {RESIZE}"

    def __init__(self, network: torch.nn.Module, device: torch.device) -> None:
        self.network, self.device = network, device
        # No feature depends on its neighbours: this is a matter of speed. On a CPU large maps cost more than they save.
        self.batch = 250 if device.type == "cuda" else min(50, 2 * torch.get_num_threads())

    @property
    def precision(self) -> str:
        return float32_precision(self.device)

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        return torch.cat([self.network(prepare(part.to(self.device))) for part in pixels.split(self.batch)])


def float32_precision(device: torch.device) -> str:
    """How a float32 network computes on this device."""
    return "float32, convolutions in TF32" if device.type == "cuda" and torch.backends.cudnn.allow_tf32 else "float32"


def load(root: Path | None, device: torch.device) -> Inception:
    """The feature network of the data folder."""
    if root is None:
        raise DataError(
            "FID needs the Inception network and no data folder is given; set LEBM_DATA or --data-dir, where "
            f"`lebm fetch inception` puts {FILE}"
        )
    return load_file(root / FILE, device)


def load_file(path: Path, device: torch.device | str = "cpu") -> Inception:
    """The network, after its sha256 was checked: TorchScript is a program, and another network would give another
    number.
    """
    if not path.is_file():
        raise DataError(
            f"FID needs the Inception network, which is not at {path}; run `lebm fetch inception`, or put it there"
        )
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256:
        raise DataError(
            f"{path} is not the 2015-12-05 Inception network (its sha256 is {digest[:16]}…, not {SHA256[:16]}…); "
            "run `lebm fetch inception`"
        )
    device = torch.device(device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch\.jit\.load.* is deprecated", category=DeprecationWarning)
        network = torch.jit.load(io.BytesIO(content), map_location=device)  # the bytes that were checked
    return Inception(network.eval(), device)


def prepare(pixels: Tensor) -> Tensor:
    """uint8 (n, c, h, w) -> float32 (n, 3, 299, 299) in [-1, 1]; grey is repeated."""
    if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[1] not in (1, 3):
        raise DataError(
            f"features are taken of uint8 images (n, 1 or 3, height, width); got {pixels.dtype} {tuple(pixels.shape)}"
        )
    x = pixels.to(torch.float32) / 255
    x = F.interpolate(x, size=(SIDE, SIDE), mode="bilinear", align_corners=False, antialias=False)
    return x.mul_(2).sub_(1).expand(-1, 3, -1, -1)

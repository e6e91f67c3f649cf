"""Numbers of others, as printed in their sources: what the tables of lebm.tables set ours beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """Rows of Table 1: data set -> (MSE, FID) as printed in the source, "-" where it says nothing."""

    method: str
    source: str
    numbers: Mapping[str, tuple[str, str]]


PAPER = "[Pang et al. 2020](https://arxiv.org/abs/2006.08205)"
COLUMNS = {"svhn": "SVHN", "cifar10": "CIFAR-10", "celeba64": "CelebA 64x64"}


def _row(method: str, source: str, svhn: tuple[str, str], cifar10: tuple[str, str], celeba64: tuple[str, str]) -> Published:
    return Published(method, source, {"svhn": svhn, "cifar10": cifar10, "celeba64": celeba64})


BASELINES = (
    _row("VAE", PAPER, ("0.019", "46.78"), ("0.057", "106.37"), ("0.021", "65.75")),
    _row("two-stage VAE", PAPER, ("0.019", "42.81"), ("0.056", "72.90"), ("0.021", "44.40")),
    _row("RAE", PAPER, ("0.014", "40.02"), ("0.027", "74.16"), ("0.018", "40.95")),
    _row("short-run inference, five layers", PAPER, ("0.011", "35.23"), ("-", "-"), ("0.015", "47.95")),
)
TABLE_1 = (
    _row("the paper", PAPER, ("0.008", "29.44"), ("0.020", "70.15"), ("0.013", "37.87")),
    _row("multi-stage density ratios", "Xiao and Han 2022", ("0.004", "26.19"), ("-", "65.01"), ("0.009", "35.38")),
    _row("joint prior on a ladder generator", "Cui, Wu and Han 2023", ("0.008", "24.16"), ("-", "63.42"), ("0.004", "32.15")),
    _row("diffusion-amortised chains", "Yu et al. 2023", ("0.002", "18.76"), ("0.015", "57.72"), ("0.005", "30.83")),
)
ANOMALY_DIGITS = ("1", "4", "5", "7", "9")
ANOMALY = (  # AUPRC with each digit as the anomaly, as printed in the source
    ("VAE", PAPER, (".063", ".337", ".325", ".148", ".104")),
    ("MEG", PAPER, (".281", ".401", ".402", ".290", ".342")),
    ("BiGAN-sigma", PAPER, (".287", ".443", ".514", ".347", ".307")),
    ("the paper", PAPER, (".336", ".630", ".619", ".463", ".413")),
    ("multi-stage density ratios", "Xiao and Han 2022", (".531", ".729", ".742", ".620", ".499")),
    ("diffusion-amortised chains", "Yu et al. 2023", (".684", ".911", ".939", ".801", ".705")),
    ("joint prior on a ladder generator", "Cui, Wu and Han 2023", (".722", ".949", ".980", ".941", ".935")),
)
PAPER_UPDATES = 70_000  # "about"
TEXT_COLUMNS = {"snli": "SNLI", "ptb": "PTB", "yahoo": "Yahoo"}
TABLE_2 = (  # FPPL / RPPL / NLL, in the order of TEXT_COLUMNS
    ("real text", "23.53 / - / -", "100.36 / - / -", "60.04 / - / -"),
    ("SA-VAE", "39.03 / 46.43 / 33.56", "147.92 / 210.02 / 101.28", "128.19 / 148.57 / 326.70"),
    ("FB-VAE", "39.19 / 43.47 / 28.82", "145.32 / 204.11 / 92.89", "123.22 / 141.14 / 319.96"),
    ("ARAE", "44.30 / 82.20 / 28.14", "165.23 / 232.93 / 91.31", "158.37 / 216.77 / 320.09"),
    ("the paper", "27.81 / 31.96 / 28.90", "107.45 / 181.54 / 91.35", "80.91 / 118.08 / 321.18"),
)
PAPER_TEXT = {"snli": 100_000, "ptb": 42_068, "yahoo": 100_000}  # training sentences behind the published numbers
ABLATIONS = (("learned prior", "29.44"), ("N(0, I), the same generator", "43.39"), ("K0 = 80", "28.32"), ("K1 = 60", "26.13"), ("ngf = 128", "26.95"))
KNOWN_FIDS = {("cifar10:train", "cifar10:test"): "3.15"}  # what FID implementations agree on

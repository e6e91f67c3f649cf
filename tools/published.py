"""Numbers of others, as printed in their sources; the tables set ours beside them."""

from __future__ import annotations

PAPER = "[Pang et al. 2020](https://arxiv.org/abs/2006.08205)"
XIAO, CUI, YU = "Xiao and Han 2022", "Cui, Wu and Han 2023", "Yu et al. 2023"
PAPER_UPDATES = 70_000  # the paper says "about"

COLUMNS = {"svhn": "SVHN", "cifar10": "CIFAR-10", "celeba64": "CelebA 64x64"}
BASELINES = (  # method, source, MSE / FID in the order of COLUMNS; "-" where the source says nothing
    ("VAE", PAPER, ("0.019 / 46.78", "0.057 / 106.37", "0.021 / 65.75")),
    ("two-stage VAE", PAPER, ("0.019 / 42.81", "0.056 / 72.90", "0.021 / 44.40")),
    ("RAE", PAPER, ("0.014 / 40.02", "0.027 / 74.16", "0.018 / 40.95")),
    ("short-run inference, five layers", PAPER, ("0.011 / 35.23", "- / -", "0.015 / 47.95")),
)
TABLE_1 = (
    ("the paper", PAPER, ("0.008 / 29.44", "0.020 / 70.15", "0.013 / 37.87")),
    ("multi-stage density ratios", XIAO, ("0.004 / 26.19", "- / 65.01", "0.009 / 35.38")),
    ("joint prior on a ladder generator", CUI, ("0.008 / 24.16", "- / 63.42", "0.004 / 32.15")),
    ("diffusion-amortised chains", YU, ("0.002 / 18.76", "0.015 / 57.72", "0.005 / 30.83")),
)

ANOMALY_DIGITS = ("1", "4", "5", "7", "9")
ANOMALY_BASELINES = (  # AUPRC with each digit as the anomaly
    ("VAE", PAPER, (".063", ".337", ".325", ".148", ".104")),
    ("MEG", PAPER, (".281", ".401", ".402", ".290", ".342")),
    ("BiGAN-sigma", PAPER, (".287", ".443", ".514", ".347", ".307")),
)
ANOMALY = (
    ("the paper", PAPER, (".336", ".630", ".619", ".463", ".413")),
    ("multi-stage density ratios", XIAO, (".531", ".729", ".742", ".620", ".499")),
    ("diffusion-amortised chains", YU, (".684", ".911", ".939", ".801", ".705")),
    ("joint prior on a ladder generator", CUI, (".722", ".949", ".980", ".941", ".935")),
)

TEXT_COLUMNS = {"snli": "SNLI", "ptb": "PTB", "yahoo": "Yahoo"}
TABLE_2 = (  # FPPL / RPPL / NLL in the order of TEXT_COLUMNS
    ("real text", ("23.53 / - / -", "100.36 / - / -", "60.04 / - / -")),
    ("SA-VAE", ("39.03 / 46.43 / 33.56", "147.92 / 210.02 / 101.28", "128.19 / 148.57 / 326.70")),
    ("FB-VAE", ("39.19 / 43.47 / 28.82", "145.32 / 204.11 / 92.89", "123.22 / 141.14 / 319.96")),
    ("ARAE", ("44.30 / 82.20 / 28.14", "165.23 / 232.93 / 91.31", "158.37 / 216.77 / 320.09")),
    ("the paper", ("27.81 / 31.96 / 28.90", "107.45 / 181.54 / 91.35", "80.91 / 118.08 / 321.18")),
)
PAPER_SENTENCES = {"snli": 100_000, "ptb": 42_068, "yahoo": 100_000}  # training sentences behind these numbers

ABLATIONS = (
    ("learned prior", "29.44"), ("N(0, I), the same generator", "43.39"), ("K0 = 80", "28.32"), ("K1 = 60", "26.13"),
    ("ngf = 128", "26.95"),
)  # fmt: skip
KNOWN_FIDS = {("cifar10:train", "cifar10:test"): "3.15"}  # on which FID implementations agree

"""Anomaly scores by name: a method and rows in, one number a row out; higher is more anomalous.

Every row meets the same noise (common random numbers), so a score is a function of its row alone: neighbours and order
do not matter beyond the rounding of a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lebm.core.errors import DataError
from lebm.core.progress import Progress, ignore
from lebm.core.rng import stream
from lebm.extensions.encoder_start import EncoderStart
from lebm.extensions.mixture import OnlineMixture, cholesky
from lebm.method import CHUNK, Method

Score = Callable[[Method, Tensor, int], Tensor]
CHAINS = 5  # posterior draws that `chains` averages over
PARTICLES = 20  # of the importance-weighted estimate
AT_MEAN = ("error", "prior", "combined")  # scores that judge a row at one z: where there is an encoder, at its mean
FOLDS = 5  # parts of the fitted rows, each scored by the others


def joint(method: Method, x: Tensor, seed: int) -> Tensor:
    """-log p(x, z) - log Z at one draw of the posterior: the paper's decision function, or the method's own."""
    return method.anomaly_score(x, seed)


def chains(method: Method, x: Tensor, seed: int) -> Tensor:
    """The same, averaged over several posterior draws."""
    return torch.stack([method.anomaly_score(x, CHAINS * seed + i) for i in range(CHAINS)]).mean(0)


def error(method: Method, x: Tensor, seed: int) -> Tensor:
    """What the generator cannot explain: -log p(x|z) at the inferred z."""
    return method.nll(x, infer(method, x, seed))


def prior(method: Method, x: Tensor, seed: int) -> Tensor:
    """How far the inferred z lies from what was learned: -log p(z), up to a constant."""
    return -method.by_chunks(lambda _, z: method.log_prior(z), x, infer(method, x, seed))


def likelihood(method: Method, x: Tensor, seed: int) -> Tensor:
    """-log p(x) - log Z by importance weights; log Z is one number for all rows and orders nothing."""
    from lebm.measure.likelihood import LogZ, log_likelihood

    return -log_likelihood(method, x, LogZ(0.0, 0.0, 0.0, 0, 0), particles=PARTICLES, seed=seed).values


SCORES: dict[str, Score] = {"joint": joint, "chains": chains, "error": error, "likelihood": likelihood, "prior": prior}


def encoder(method: Method) -> nn.Module | None:
    """The encoder from which the method's posterior chains start, where there is one."""
    start = getattr(method, "posterior_start", None)
    return start.q if isinstance(start, EncoderStart) else None


@torch.no_grad()
def infer(method: Method, x: Tensor, seed: int) -> Tensor:
    """The z at which a row is judged: the encoder's mean, or a draw of the posterior where there is no encoder.

    An encoder has only ever seen normal rows and gives others a z that does not fit them; a long chain fits any row.
    """
    q, generator = encoder(method), method.generator
    if q is None:
        return method.encode(x, seed)
    rows = generator.as_input(x).split(CHUNK)
    return torch.cat([q(generator.trim(part).to(method.device))[0].cpu() for part in rows])


def log_deviance(method: Method, x: Tensor, z: Tensor) -> Tensor:
    """log of 2 (log p(g(z)|z) - log p(x|z)): of a Gaussian generator the log of the squared residual in units of sigma,
    which a Gaussian can describe."""
    generator = method.generator
    best = generator.log_prob(generator.decode(z), z)
    return (2 * (best - generator.log_prob(x, z)).clamp(min=0) + 1e-12).log()


class Scorer:
    """A score by name for one method. `combined` must first be fitted to normal rows: fit(rows).

    `combined` is -log of a density, fitted to normal rows, of where their z lies and how badly it explains them. So a
    misfit counts by what is usual for such a z, and a z by how often normal rows have it.
    """

    def __init__(self, method: Method, name: str | None = None, seed: int = 0) -> None:
        self.method, self.name, self.seed = method, name or method.config.anomaly.score, seed
        if self.name not in (*SCORES, "combined"):
            raise DataError(f"no score is called {self.name!r}; there are {', '.join(SCORES)} and combined")
        self.density: Density | None = None

    @property
    def at_mean(self) -> bool:
        """Whether rows are judged at the encoder's mean, not at a draw of z."""
        return self.name in AT_MEAN and encoder(self.method) is not None

    def statistics(self, x: Tensor) -> Tensor:
        """(rows, nz + 1): the inferred z, and the misfit there."""
        z = infer(self.method, x, self.seed)
        misfit = self.method.by_chunks(lambda rows, z: log_deviance(self.method, rows, z), x, z)
        return torch.cat([z.double(), misfit.double()[:, None]], 1)

    def fit(self, normal: Tensor) -> Scorer:
        """Fit what the score needs to know of normal rows: nothing but for `combined`."""
        if self.name == "combined":
            self.density = self._density(self.statistics(normal))
        return self

    def _density(self, statistics: Tensor) -> Density:
        return Density.fit(statistics.to(self.method.device), self.seed).cpu()

    def fit_scores(self, normal: Tensor) -> Tensor:
        """Fit, and score these rows as new rows like them would be: `combined` by densities that have not seen them."""
        if self.name != "combined":
            return self(normal)
        seen = self.statistics(normal)
        self.density = self._density(seen)
        out = -self.density.log_prob(seen)
        fold = torch.randperm(len(seen), generator=stream(self.seed, "folds")) % FOLDS
        for i in range(FOLDS if len(seen) >= 2 * FOLDS else 0):
            out[fold == i] = -self._density(seen[fold != i]).log_prob(seen[fold == i])
        return out

    def __call__(self, x: Tensor, progress: Progress = ignore) -> Tensor:
        """The score of every row, in float64."""
        if self.name == "combined" and self.density is None:
            raise DataError("the score combined is fitted to normal rows first; give it some")
        out = []
        for rows in x.split(5 * CHUNK):
            if self.density is not None:
                out.append(-self.density.log_prob(self.statistics(rows)))
            else:
                out.append(SCORES[self.name](self.method, rows, self.seed).double())
            progress(sum(map(len, out)), len(x))
        return torch.cat(out)


# --- the density of what normal rows give -----------------------------------------------------------------------------

COMPONENTS = 100  # Gaussians at most
ROWS_EACH = 40  # rows that stand behind each: few rows allow few Gaussians
COMMON_ROWS = 1  # rows a column with the covariance that all have in common, which each Gaussian counts besides its own
LLOYD, EM = 10, 30  # rounds of k-means, then of expectation maximisation
RIDGE = 1e-3  # added to every variance, where all columns have variance one: no Gaussian shrinks to a point
PIECE = {"cpu": 100, "cuda": 5000}  # rows at a time; on a CPU what a piece makes must fit into its cache


class Density(nn.Module):
    """p(rows), as a mixture of Gaussians with full covariances over standardised columns, in float64.

    The mixture itself is the one of `extensions/mixture.py`. scikit-learn's cannot use a GPU, where the experiment fits
    50,000 rows after each of several epochs, and cannot draw covariances towards a common one, which few rows need.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, components: int, columns: int) -> None:
        super().__init__()
        self.mixture = OnlineMixture(components, columns)
        self.register_buffer("shift", torch.zeros(columns))
        self.register_buffer("scale", torch.ones(columns))
        self.double()

    @classmethod
    @torch.no_grad()
    def fit(cls, rows: Tensor, seed: int = 0, components: int = COMPONENTS) -> Density:
        """The density of `rows`, (n, columns), on their device."""
        x = rows.double()
        k = max(1, min(components, len(x) // ROWS_EACH))
        density = cls(k, x.shape[1]).to(x.device)
        spread = x.std(0, correction=0)
        density.shift, density.scale = x.mean(0), torch.where(spread > 0, spread, 1.0)
        x = (x - density.shift) / density.scale
        centres, variance = _k_means(x, k, seed)
        root = variance.sqrt().clamp(min=RIDGE).diag().expand(k, -1, -1)
        density.mixture.set(torch.full_like(centres[:, 0], 1 / k), centres, root)
        for _ in range(EM if k > 1 else 1):
            _maximise(density.mixture, x)
        return density

    @torch.no_grad()
    def log_prob(self, rows: Tensor) -> Tensor:
        """The log density of every row."""
        x = (rows.to(self.shift) - self.shift) / self.scale
        return torch.cat([self.mixture.log_prob(piece) for piece in _pieces(x)]) - self.scale.log().sum()


def _pieces(x: Tensor) -> tuple[Tensor, ...]:
    return x.split(PIECE.get(x.device.type, 1000))


def _k_means(x: Tensor, k: int, seed: int) -> tuple[Tensor, Tensor]:
    """Centres after a few of Lloyd's rounds from random rows, and the variance of every column around them."""
    centres = x[torch.randperm(len(x), generator=stream(seed, "mixture"))[:k].to(x.device)]
    for _ in range(LLOYD):
        nearest = torch.cat([torch.cdist(piece, centres).argmin(1) for piece in _pieces(x)])
        variance = (x - centres[nearest]).square().mean(0)
        count = torch.bincount(nearest, minlength=k)[:, None]
        sums = torch.zeros_like(centres).index_add_(0, nearest, x)
        centres = torch.where(count > 0, sums / count.clamp(min=1), centres)
    return centres, variance


def _maximise(mixture: OnlineMixture, x: Tensor) -> None:
    """One round of expectation maximisation: the mixture observes all rows, then moves to what it observed."""
    observed = 0
    for piece in _pieces(x):
        observed += len(piece)
        mixture.observe(piece, piece, len(piece) / observed)
    share = mixture.share.clamp(min=1e-12)
    centres = mixture.first / share[:, None]
    spread = mixture.second / share[:, None, None] - centres[:, :, None] * centres[:, None]
    common = torch.einsum("k,kij->ij", share, spread)
    weight = (share * len(x) / (share * len(x) + COMMON_ROWS * x.shape[1]))[:, None, None]
    roots, good = cholesky(weight * spread + (1 - weight) * common, RIDGE)
    mixture.set(share / share.sum(), centres, roots, good)

"""Scores by name: model and rows in, a number a row out; higher is more anomalous.

Every row meets the same noise (common random numbers), so a score is a function of its row alone: neighbours and order do not matter
beyond the rounding of a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lebm.anomaly.density import Mixture
from lebm.errors import DataError
from lebm.likelihood import LogZ, log_likelihood
from lebm.methods import Proposed
from lebm.model import CHUNK, LatentEBM
from lebm.rng import stream

Progress = Callable[[int, int], None]
Score = Callable[[LatentEBM, Tensor, int], Tensor]
CHAINS = 5  # posterior draws that `chains` averages over
PARTICLES = 20  # of the importance-weighted estimate
AT_MEAN = ("error", "prior", "combined")  # scores that judge a row at infer(): where there is an encoder, at its mean
FOLDS = 5  # parts of the fitted rows, each scored by the others


def joint(model: LatentEBM, x: Tensor, seed: int) -> Tensor:
    """-log p(x, z) - log Z at one draw of the posterior: the paper's decision function."""
    return model.anomaly_score(x, seed)


def chains(model: LatentEBM, x: Tensor, seed: int) -> Tensor:
    """The same, averaged over several posterior draws."""
    return torch.stack([model.anomaly_score(x, CHAINS * seed + i) for i in range(CHAINS)]).mean(0)


def error(model: LatentEBM, x: Tensor, seed: int) -> Tensor:
    """What the generator cannot explain: -log p(x|z) at the inferred z."""
    return model.nll(x, infer(model, x, seed))


def prior(model: LatentEBM, x: Tensor, seed: int) -> Tensor:
    """How far the inferred z lies from what was learned: -log p_alpha(z) - log Z."""
    return -model.by_chunks(lambda _, z: model.prior.log_prob(z), x, infer(model, x, seed))


def likelihood(model: LatentEBM, x: Tensor, seed: int) -> Tensor:
    """-log p(x) - log Z by importance weights; log Z is one number for all rows and orders nothing."""
    return -log_likelihood(model, x, LogZ(0.0, 0.0, 0.0, 0, 0), particles=PARTICLES, seed=seed).values


@torch.no_grad()
def infer(model: LatentEBM, x: Tensor, seed: int) -> Tensor:
    """The z at which a row is judged: the encoder's mean, or a draw of the run's own way where there is no encoder.

    An encoder has only ever seen normal rows and finds for others a z that does not fit them; a long chain fits whatever it is given.
    """
    if not isinstance(model.inference, Proposed):
        return model.infer(x, seed)
    x = model.as_input(x)
    return torch.cat([model.inference.q(model.trim(rows).to(model.device))[0].cpu() for rows in x.split(CHUNK)])


def misfit(model: LatentEBM, x: Tensor, z: Tensor) -> Tensor:
    """log of the squared residual in units of sigma: what the generator leaves unexplained, on a scale that a Gaussian can describe."""
    sigma = getattr(model.generator, "sigma", None)
    if sigma is None:  # no Gaussian generator
        return -model.generator.log_prob(x, z)  # type: ignore[operator]
    return (((x - model.generator.decode(z)) / sigma).square().flatten(1).sum(1) + 1e-12).log()  # type: ignore[operator]


SCORES: dict[str, Score] = {"joint": joint, "chains": chains, "error": error, "likelihood": likelihood, "prior": prior}


class Scorer:
    """A score by name for one model. `combined` must first see normal rows: fit(rows).

    `combined` is -log of a density, fitted to normal rows, of where their z lies and how badly it explains them: a mixture of
    Gaussians. So a misfit counts by what is usual for such a z, and a z by how often normal rows have it.
    """

    def __init__(self, model: LatentEBM, name: str | None = None, seed: int = 0) -> None:
        self.model, self.name, self.seed = model, name or model.config.anomaly.score, seed
        if self.name not in (*SCORES, "combined"):
            raise DataError(f"no score is called {self.name!r}; there are {', '.join(SCORES)} and combined")
        self.mixture: Mixture | None = None

    def statistics(self, x: Tensor) -> Tensor:
        """(rows, nz + 1): the inferred z, and the misfit there."""
        z = infer(self.model, x, self.seed)
        rest = self.model.by_chunks(lambda rows, z: misfit(self.model, rows, z), x, z)
        return torch.cat([z.double(), rest.double()[:, None]], 1)

    @property
    def at_mean(self) -> bool:
        """Whether rows are judged at the encoder's mean, not at a draw of z."""
        return self.name in AT_MEAN and isinstance(self.model.inference, Proposed)

    def fit(self, normal: Tensor) -> Scorer:
        if self.name == "combined":
            self.mixture = self._density(self.statistics(normal))
        return self

    def _density(self, statistics: Tensor) -> Mixture:
        return Mixture.fit(statistics.to(self.model.device), self.seed).to(torch.device("cpu"))

    def fit_scores(self, normal: Tensor) -> Tensor:
        """Fit, and the scores of these rows as new rows like them would get: of `combined`, each by a density that has not seen it."""
        if self.name != "combined":
            return self(normal)
        seen = self.statistics(normal)
        self.mixture = self._density(seen)
        if len(normal) < 2 * FOLDS:
            return -self.mixture.log_prob(seen)
        fold = torch.randperm(len(seen), generator=stream(self.seed, "folds")) % FOLDS
        out = torch.empty(len(seen), dtype=torch.float64)
        for i in range(FOLDS):
            out[fold == i] = -self._density(seen[fold != i]).log_prob(seen[fold == i])
        return out

    def __call__(self, x: Tensor, progress: Progress | None = None) -> Tensor:
        if self.name == "combined" and self.mixture is None:
            raise DataError("the score combined is fitted to normal rows first; give it some")
        out = []
        for rows in x.split(5 * CHUNK):
            one = SCORES[self.name](self.model, rows, self.seed).double() if self.mixture is None else -self.mixture.log_prob(self.statistics(rows))
            out.append(one)
            if progress:
                progress(sum(map(len, out)), len(x))
        return torch.cat(out)

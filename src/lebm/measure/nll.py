"""-log p(x|z) of test sentences at an inferred z, how much z says about them, and an estimate of -log p(x)."""

from __future__ import annotations

from collections.abc import Iterator

from lebm.core.words import lengths
from lebm.health import shared_variance
from lebm.measure.likelihood import estimate
from lebm.measure.metric import Evaluation, Metric, Number, Numbers
from lebm.measure.perplexity import real_sentences

ESTIMATED, WORDS = 100, 2500  # test sentences behind nll_estimate, and words in them, where the caller names no number


def measure(ev: Evaluation) -> Iterator[Numbers]:
    """The estimate takes longer and comes second. Nats a sentence."""
    method, (x, what) = ev.method, real_sentences(ev)
    x, spec = x[: ev.limit], ev.spec("posterior")
    draws = []
    for i in (0, 1):  # two independent draws: the second is for the count of active units
        with ev.reporter.progress("inferring once more" if i else "inferring") as update:
            draws.append(method.encode(x, ev.seed + 1000 * i, spec, shared_noise=False, progress=update))
    which = "the first" if ev.limit else "all"
    ev.protocol.update(sentences=f"{which} {len(x)} {what}", sampler=spec.to_dict())
    reconstruction = float(method.nll(x, draws[0]).double().mean())
    shared = shared_variance(draws[0].double(), draws[1].double())
    yield {"nll_reconstruction": reconstruction, "active_units": None, "z_information": None, **shared}
    few = ev.limit or max(1, min(ESTIMATED, int((lengths(x).cumsum(0) <= WORDS).sum())))
    px = estimate(ev, x[:few])
    yield {"nll_estimate": -px.mean, "nll_estimate_error": px.error}


NLL = Metric(
    "nll", "Negative log likelihood", True,
    "-log p(x|z) of test sentences at an inferred z, an estimate of -log p(x), and what z says about a sentence.",
    "posterior", measure=measure, modalities=("text",), gives=(
        Number("nll_reconstruction", "NLL, reconstruction", True,
               "-log p(x|z) in nats a test sentence, at an inferred z.", "posterior"),
        Number("nll_estimate", "NLL, an estimate", True,
               "-log p(x) in nats a test sentence, by importance sampling; no bound."),
        Number("active_units", "Active units of z", None, "Coordinates whose posterior mean varies with the sentence."),
        Number("z_information", "Information in z", None, "Nats about a sentence, were everything Gaussian."),
    ),
)  # fmt: skip

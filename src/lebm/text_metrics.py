"""The metrics of a text model (the paper's Table 2), each a function of an evaluation: forward and reverse perplexity, and the likelihood.

Two language models are the judges: one that learned from the real training sentences, kept on disk since every run on that text shares it,
and one that learns from as many sentences of the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lebm import checkpoint, health
from lebm.errors import CheckpointError, DataError
from lebm.evaluation import Evaluation, Metric, Numbers
from lebm.generators.text import TextGenerator
from lebm.likelihood import log_likelihood, log_z, proposal_in_words
from lebm.methods.ways import Drawing
from lebm.metrics.language_model import LanguageModel, Recipe, fit
from lebm.statistics import content_hash
from lebm.words import PAD, lengths

RECIPE = Recipe()
SEED = 0  # of the language models: a judge does not change with the samples
ESTIMATED, WORDS = 100, 2500  # test sentences behind nll_estimate, and words in them, where the caller names no number
SHOWN = 20  # sentences in the report


def real_ppl(ev: Evaluation) -> Numbers:
    """The perplexity of real test sentences under a language model of real training sentences: the calibration of the judge."""
    judge, how = _judge(ev)
    x, what = _real(ev)
    ev.protocol.update(sentences=f"all {len(x)} {what}", language_model=how)
    return {"real_ppl": judge.perplexity(x)}


def fppl(ev: Evaluation) -> Numbers:
    """Forward: the perplexity of the run's sentences under a language model of real sentences. With it, that of real ones, and how many
    of the run's are copies."""
    real = real_ppl(ev)
    judge, how = _judge(ev)
    x = generated(ev)
    ev.protocol.update(sentences=_sampled(ev, x), language_model=how, real=ev.protocol["sentences"])
    return {"fppl": judge.perplexity(x), "copied": copied(x, ev.splits.train), **real}


def copied(x: Tensor, train: Tensor) -> float:
    """The share of sentences that stand word for word in the training text: a low forward perplexity may come from memory."""
    known = {tuple(row[row != PAD].tolist()) for row in train}
    return sum(tuple(row[row != PAD].tolist()) in known for row in x) / len(x)


def fppl_gaussian(ev: Evaluation) -> Numbers:
    """The same with z from p_0 itself (N(0, I), unless the run fitted another), through the same generator: what the learned prior buys."""
    judge, how = _judge(ev)
    base = ev.model.drawing("prior", "langevin", 0)
    x = generated(ev, base)
    ev.protocol.update(sentences=_sampled(ev, x, base), language_model=how)
    return {"fppl_gaussian": judge.perplexity(x)}


def rppl(ev: Evaluation) -> Numbers:
    """Reverse: the perplexity of real test sentences under a language model of the run's sentences."""
    x, (real, what) = generated(ev), _real(ev)
    valid = ev.splits.validation
    with ev.bar("a language model of the run's sentences") as update:
        judge, history = fit(x, valid, _size(ev), RECIPE, SEED, ev.model.device, update)
    ev.protocol.update(sentences=_sampled(ev, x), real=f"all {len(real)} {what}", language_model=_recipe(history, valid))
    return {"rppl": judge.perplexity(real)}


def nll(ev: Evaluation) -> Iterator[Numbers]:
    """-log p(x|z) at an inferred z and how much z tells; then, which takes longer, an estimate of -log p(x). Nats a sentence."""
    model, (x, what) = ev.model, _real(ev)
    x = x[: ev.limit]
    drawing = ev.drawing("posterior")
    draws = []
    for again in (0, 1):  # two independent draws: the second is for the count of active units
        with ev.bar("inferring" if not again else "inferring once more") as update:
            seed, steps = ev.seed + 1000 * again, drawing.chain.steps
            draws.append(model.infer(x, seed, steps, shared_noise=False, progress=update, by=drawing.by))
    ev.protocol.update(
        sentences=f"{'the first' if ev.limit else 'all'} {len(x)} {what}", **drawing.protocol(), chain=dataclasses.asdict(drawing.chain)
    )
    reconstruction = float(model.nll(x, draws[0]).double().mean())
    told = health.shared_variance(draws[0].double(), draws[1].double())
    yield {"nll_reconstruction": reconstruction, "active_units": None, "z_information": None, **told}
    with ev.bar("annealing for log Z") as update:
        z = log_z(model.prior, seed=ev.seed, progress=update)
    rows = x[: ev.limit or max(1, min(ESTIMATED, int((lengths(x).cumsum(0) <= WORDS).sum())))]
    with ev.bar("weighing posterior samples") as update:
        found = log_likelihood(model, rows, z, seed=ev.seed, progress=update)
    ev.protocol.update(
        proposal=proposal_in_words(model),
        estimate=f"the first {len(rows)} of them; annealed importance sampling, biased low in log Z: an estimate, no bound",
        temperatures=[z.temperatures, found.temperatures],
        walkers=[z.chains, found.particles],
        effective_walkers=[round(z.ess, 1), round(float(found.ess.median()), 1)],
    )
    yield {"nll_estimate": -found.mean, "nll_estimate_error": found.error}


METRICS: dict[str, Metric] = {
    "fppl": fppl,
    "rppl": rppl,
    "nll": nll,
    "real_ppl": real_ppl,
    "fppl_gaussian": fppl_gaussian,
}


# --- sentences --------------------------------------------------------------------------------------------------------


def generated(ev: Evaluation, drawing: Drawing | None = None) -> Tensor:
    """As many sentences of the run as its training split has: ancestral sampling at temperature 1. Drawn once for all metrics."""
    n, drawing = ev.samples or len(ev.splits.train), drawing or ev.drawing("prior")
    key = (n, ev.seed, drawing.chain.steps, drawing.by)
    if key not in ev.kept:
        with ev.bar("sampling sentences") as update:
            ev.kept[key] = ev.model.sample_words(n, ev.seed, drawing.chain.steps, update, drawing.by)
    found: Tensor = ev.kept[key]
    return found


def _sampled(ev: Evaluation, x: Tensor, drawing: Drawing | None = None) -> dict[str, Any]:
    g = ev.model.text()
    cut = int((lengths(x) == g.config.length + 1).sum())
    return {
        "generated": len(x),
        "how": "each word drawn from the model, temperature 1",
        **(drawing or ev.drawing("prior")).protocol(len(x)),
        "cut_at_generator_length": cut,
        "mean_words": round(float(lengths(x).double().mean()) - 1, 2),
        "vocabulary": g.size,
    }


def _real(ev: Evaluation) -> tuple[Tensor, str]:
    if ev.split != "validation":
        return ev.test, "test sentences"
    if ev.splits.validation is None:
        raise DataError(f"{ev.model.config.data.name} has no validation sentences; evaluate on another split")
    return ev.splits.validation, "validation sentences"


def _size(ev: Evaluation) -> int:
    return ev.model.text().size


# --- the judge of real text -------------------------------------------------------------------------------------------


def _judge(ev: Evaluation) -> tuple[LanguageModel, dict[str, Any]]:
    """The language model of the real training sentences, read if it was made before."""
    if "judge" not in ev.kept:
        ev.kept["judge"] = _read_judge(ev) or _make_judge(ev)
    return ev.kept["judge"]


def _path(ev: Evaluation) -> Any:
    if ev.cache is None:
        return None
    valid = "" if ev.splits.validation is None else content_hash(ev.splits.validation)
    key = [ev.content or content_hash(ev.splits.train), valid, ev.model.text().words().words, dataclasses.asdict(RECIPE), SEED]
    return ev.cache / f"language-model-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.safetensors"


def _read_judge(ev: Evaluation) -> tuple[LanguageModel, dict[str, Any]] | None:
    path = _path(ev)
    if path is None or not path.is_file():
        return None
    with contextlib.suppress(CheckpointError, OSError, RuntimeError, KeyError, TypeError):  # a damaged one is made again
        tensors, meta = checkpoint.load_tensors(path)
        model = LanguageModel(_size(ev), RECIPE)
        model.load_state_dict(tensors)
        return model.to(ev.model.device).eval().requires_grad_(False), dict(meta["how"])
    return None


def _make_judge(ev: Evaluation) -> tuple[LanguageModel, dict[str, Any]]:
    valid = ev.splits.validation
    with ev.bar("a language model of real sentences") as update:
        model, history = fit(ev.splits.train, valid, _size(ev), RECIPE, SEED, ev.model.device, update)
    how = _recipe(history, valid)
    path = _path(ev)
    with contextlib.suppress(OSError):  # a read-only or full disk costs time at the next evaluation, nothing else
        if path is not None:
            checkpoint.save_tensors(path, model.state_dict(), {"kind": "language model", "how": how})
    return model, how


def _recipe(history: list[float], valid: Tensor | None) -> dict[str, Any]:
    stop = "no validation text" if valid is None else f"best of {len(history)} epochs on {len(valid)} real validation sentences"
    return {**dataclasses.asdict(RECIPE), "seed": SEED, "stopped": stop, "validation_ppl": round(min(history), 3) if history else None}


# --- for the report ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def shown(ev: Evaluation) -> dict[str, Any]:
    """Sentences of the learned prior, of p_0, and test sentences beside their reconstructions."""
    model = ev.model
    g: TextGenerator = model.text()
    x = _real(ev)[0][:SHOWN]
    prior, posterior = ev.drawing("prior"), ev.drawing("posterior")
    z = model.infer(x, ev.seed, posterior.chain.steps, by=posterior.by)
    return {
        "samples": g.to_text(model.sample_words(SHOWN, ev.seed, prior.chain.steps, by=prior.by)),
        "samples_gaussian": g.to_text(model.sample_words(SHOWN, ev.seed, 0, by="langevin")),
        "drawn": {"samples": prior.protocol(SHOWN), "reconstructions": posterior.protocol()},
        "reconstructions": [list(p) for p in zip(g.to_text(x), g.to_text(model.decode(z)), strict=True)],
    }

"""Forward and reverse perplexity (the paper's Table 2): is what the model says like real text, and is real text like
it?

Two language models are the judges: one that learned from the real training sentences, cached on disk since every run on
that text shares it, and one that learns from as many sentences of the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from lebm.core.errors import CheckpointError, DataError
from lebm.core.tensors import load_tensors, save_tensors
from lebm.core.words import PAD, lengths
from lebm.measure.language_model import LanguageModel, Recipe, fit
from lebm.measure.metric import Evaluation, Metric, Number, Numbers, computed_by
from lebm.measure.statistics import content_hash
from lebm.sampler import SamplerSpec

RECIPE = Recipe()
SEED = 0  # of the language models: a judge does not change with the samples


def real_ppl(ev: Evaluation) -> Numbers:
    """The perplexity of real test sentences under the judge of real text calibrates it."""
    judge, recipe = _judge(ev)
    x, what = real_sentences(ev)
    ev.protocol.update(sentences=f"all {len(x)} {what}", language_model=recipe)
    return {"real_ppl": judge.perplexity(x)}


def fppl(ev: Evaluation) -> Numbers:
    """Forward perplexity; with it, that of real sentences, and how many of the run's are copies."""
    real = real_ppl(ev)
    judge, recipe = _judge(ev)
    x = generated(ev, ev.spec("prior"))
    ev.protocol.update(real=ev.protocol["sentences"], sentences=_described(ev, x), language_model=recipe)
    return {"fppl": judge.perplexity(x), "copied": copied(x, ev.splits.train), **real}


def fppl_gaussian(ev: Evaluation) -> Numbers:
    """What the learned prior buys: the same with z from p_0 itself."""
    judge, recipe = _judge(ev)
    x = generated(ev, ev.method.choose("prior", "noise", 0))
    ev.protocol.update(sentences=_described(ev, x), language_model=recipe)
    return {"fppl_gaussian": judge.perplexity(x)}


def rppl(ev: Evaluation) -> Numbers:
    """Reverse perplexity, that of real test sentences under a language model of the run's sentences."""
    x, (real, what) = generated(ev, ev.spec("prior")), real_sentences(ev)
    valid = ev.splits.validation
    with ev.reporter.progress("a language model of the run's sentences") as update:
        judge, history = fit(x, valid, _size(ev), RECIPE, SEED, ev.method.device, update)
    recipe = _recipe(history, valid)
    ev.protocol.update(sentences=_described(ev, x), real=f"all {len(real)} {what}", language_model=recipe)
    return {"rppl": judge.perplexity(real)}


def copied(x: Tensor, train: Tensor) -> float:
    """The share of sentences that stand word for word in the training text: a low forward perplexity may come from
    memory.
    """
    known = {tuple(row[row != PAD].tolist()) for row in train}
    return sum(tuple(row[row != PAD].tolist()) in known for row in x) / len(x)


# --- sentences --------------------------------------------------------------------------------------------------------


def generated(ev: Evaluation, spec: SamplerSpec) -> Tensor:
    """As many sentences of the run as its training split has: ancestral sampling at temperature 1. Drawn once for all
    metrics.
    """
    n = ev.samples or len(ev.splits.train)
    key = (n, ev.seed, spec.start, spec.steps)
    ev.protocol.update(samples=n, sampler=spec.to_dict(), **computed_by(ev.method))
    if key not in ev.shared:
        with ev.reporter.progress("sampling sentences") as update:
            ev.shared[key] = ev.method.sample(n, ev.seed, spec, progress=update)
    x: Tensor = ev.shared[key]
    return x


def real_sentences(ev: Evaluation) -> tuple[Tensor, str]:
    if ev.split != "validation":
        return ev.test, "test sentences"
    if ev.splits.validation is None:
        raise DataError("this text has no validation sentences; evaluate on another split")
    return ev.splits.validation, "validation sentences"


def _described(ev: Evaluation, x: Tensor) -> dict[str, Any]:
    generator: Any = ev.method.generator
    return {
        "generated": len(x),
        "words": "each drawn from the model, temperature 1",
        "cut_at_generator_length": int((lengths(x) == generator.length + 1).sum()),
        "mean_words": round(float(lengths(x).double().mean()) - 1, 2),
        "vocabulary": generator.size,
    }


def _size(ev: Evaluation) -> int:
    generator: Any = ev.method.generator
    return int(generator.size)


# --- the judge of real text -------------------------------------------------------------------------------------------


def _judge(ev: Evaluation) -> tuple[LanguageModel, dict[str, Any]]:
    """The language model of the real training sentences, read if it was made before."""
    if "judge" not in ev.shared:
        ev.shared["judge"] = _read_judge(ev) or _make_judge(ev)
    judge: tuple[LanguageModel, dict[str, Any]] = ev.shared["judge"]
    return judge


def _path(ev: Evaluation) -> Path | None:
    if ev.cache_folder is None:
        return None
    valid = "" if ev.splits.validation is None else content_hash(ev.splits.validation)
    train, words = ev.train_sha256 or content_hash(ev.splits.train), ev.method.generator.facts()
    key = json.dumps([train, valid, words, dataclasses.asdict(RECIPE), SEED])
    return ev.cache_folder / f"language-model-{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"


def _read_judge(ev: Evaluation) -> tuple[LanguageModel, dict[str, Any]] | None:
    path = _path(ev)
    if path is None or not path.is_file():
        return None
    with contextlib.suppress(
        CheckpointError, OSError, RuntimeError, KeyError, TypeError
    ):  # a damaged one is made again
        tensors, meta = load_tensors(path)
        model = LanguageModel(_size(ev), RECIPE)
        model.load_state_dict(tensors)
        return model.to(ev.method.device).eval().requires_grad_(False), dict(meta["recipe"])
    return None


def _make_judge(ev: Evaluation) -> tuple[LanguageModel, dict[str, Any]]:
    valid, path = ev.splits.validation, _path(ev)
    with ev.reporter.progress("a language model of real sentences") as update:
        model, history = fit(ev.splits.train, valid, _size(ev), RECIPE, SEED, ev.method.device, update)
    recipe = _recipe(history, valid)
    with contextlib.suppress(OSError):  # a read-only or full disk costs time at the next evaluation, nothing else
        if path is not None:
            save_tensors(path, model.state_dict(), {"kind": "language model", "recipe": recipe})
    return model, recipe


def _recipe(history: list[float], valid: Tensor | None) -> dict[str, Any]:
    n = 0 if valid is None else len(valid)
    stop = f"best of {len(history)} epochs on {n} real validation sentences" if n else "no validation text"
    best = round(min(history), 3) if history else None
    return {**dataclasses.asdict(RECIPE), "seed": SEED, "stopped": stop, "validation_ppl": best}


REAL = Number("real_ppl", "Perplexity of real sentences", None,
              "Perplexity of real test sentences under the language model that judges FPPL.")  # fmt: skip
COPIED = Number("copied", "Copied sentences", None,
                "Share of the model's sentences that stand word for word in the training text.")  # fmt: skip
ABOUT = "Perplexity of the model's sentences under a language model of real ones."
REAL_PPL = Metric(REAL.name, REAL.title, None, REAL.about, measure=real_ppl, modalities=("text",))
FPPL = Metric("fppl", "FPPL", True, ABOUT, "prior", measure=fppl, modalities=("text",),
              gives=(Number("fppl", "FPPL", True, ABOUT, "prior"), COPIED, REAL))  # fmt: skip
FPPL_GAUSSIAN = Metric(
    "fppl_gaussian", "FPPL from p₀", True, "The FPPL with z from the base p₀ itself, through the same generator.",
    measure=fppl_gaussian, modalities=("text",),
)  # fmt: skip
RPPL = Metric(
    "rppl", "RPPL", True, "Perplexity of real sentences under a language model of the model's sentences.", "prior",
    measure=rppl, modalities=("text",),
)  # fmt: skip

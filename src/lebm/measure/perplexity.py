"""Forward and reverse perplexity (the paper's Table 2): is what the model says like real text, and is real text like
it?

Two language models are the judges: one that learned from the real training sentences, cached on disk since every run on
that text shares it, and one that learns from as many sentences of the run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from lebm.core.errors import DataError
from lebm.core.tensors import load_tensors, save_tensors
from lebm.core.words import PAD, lengths
from lebm.measure.language_model import LanguageModel, Recipe, fit
from lebm.measure.metric import Evaluation, Metric, Number, Numbers, computed_by
from lebm.measure.statistics import cached, content_hash
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
    ev.protocol["real"] = ev.protocol["sentences"]
    x = generated(ev, ev.spec("prior"))
    return {"fppl": _judge(ev)[0].perplexity(x), "copied": copied(x, ev.splits.train), **real}


def fppl_gaussian(ev: Evaluation) -> Numbers:
    """What the learned prior buys: the same with z from p_0 itself."""
    judge, ev.protocol["language_model"] = _judge(ev)
    return {"fppl_gaussian": judge.perplexity(generated(ev, ev.base()))}


def rppl(ev: Evaluation) -> Numbers:
    """Reverse perplexity, that of real test sentences under a language model of the run's sentences."""
    x, (real, what) = generated(ev, ev.spec("prior")), real_sentences(ev)
    judge, recipe = _learn(ev, x, "the run's sentences")
    ev.protocol.update(real=f"all {len(real)} {what}", language_model=recipe)
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
    n, generator = ev.samples or len(ev.splits.train), _generator(ev)
    key = (n, ev.seed, spec.start, spec.steps)
    if key not in ev.shared:
        with ev.reporter.progress("sampling sentences") as update:
            ev.shared[key] = ev.method.sample(n, ev.seed, spec, progress=update)
    x: Tensor = ev.shared[key]
    ev.protocol.update(samples=n, sampler=spec.to_dict(), **computed_by(ev.method))
    ev.protocol["sentences"] = {
        "generated": len(x),
        "words": "each drawn from the model, temperature 1",
        "cut_at_generator_length": int((lengths(x) == generator.length + 1).sum()),
        "mean_words": round(float(lengths(x).double().mean()) - 1, 2),
        "vocabulary": generator.size,
    }
    return x


def real_sentences(ev: Evaluation) -> tuple[Tensor, str]:
    if ev.split != "validation":
        return ev.test, "test sentences"
    if ev.splits.validation is None:
        raise DataError("this text has no validation sentences; evaluate on another split")
    return ev.splits.validation, "validation sentences"


def _generator(ev: Evaluation) -> Any:
    return ev.method.generator


# --- the judge of real text -------------------------------------------------------------------------------------------


Judge = tuple[LanguageModel, dict[str, Any]]  # and how it learned


def _judge(ev: Evaluation) -> Judge:
    """The language model of the real training sentences, read if it was made before."""
    if "judge" not in ev.shared:

        def read(path: Path) -> Judge:
            tensors, meta = load_tensors(path)
            model = LanguageModel(_generator(ev).size, RECIPE)
            model.load_state_dict(tensors)
            return model.to(ev.method.device).eval().requires_grad_(False), dict(meta["recipe"])

        def write(path: Path, judge: Judge) -> None:
            save_tensors(path, judge[0].state_dict(), {"kind": "language model", "recipe": judge[1]})

        ev.shared["judge"] = cached(_path(ev), read, lambda: _learn(ev, ev.splits.train, "real sentences"), write)
    judge: Judge = ev.shared["judge"]
    return judge


def _path(ev: Evaluation) -> Path | None:
    valid = "" if ev.splits.validation is None else content_hash(ev.splits.validation)
    key = json.dumps([ev.train_sha256, valid, ev.method.generator.facts(), dataclasses.asdict(RECIPE), SEED])
    name = f"language-model-{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"
    return ev.cache_folder and ev.cache_folder / name


def _learn(ev: Evaluation, rows: Tensor, what: str) -> Judge:
    valid, size = ev.splits.validation, _generator(ev).size
    with ev.reporter.progress(f"a language model of {what}") as update:
        model, history = fit(rows, valid, size, RECIPE, SEED, ev.method.device, update)
    stop = "no validation text"
    if valid is not None and len(valid):
        stop = f"best of {len(history)} epochs on {len(valid)} real validation sentences"
    best = round(min(history), 3) if history else None
    return model, {**dataclasses.asdict(RECIPE), "seed": SEED, "stopped": stop, "validation_ppl": best}


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

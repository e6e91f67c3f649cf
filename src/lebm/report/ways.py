"""How z came about, in the words of the page: of the run, of each picture, of each number."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from lebm.methods.ways import ALONE, steps_in_words
from lebm.report.folder import Folder

STARTS = {
    "amortised": "an encoder infers z without a chain",
    "flow": "a flow draws z from the prior without a chain",
    "persistent": "prior chains go on from update to update",
}


def model_sentence(folder: Folder) -> str:
    own = [folder.setting("draw.posterior"), *([] if is_gaussian(folder) else [folder.setting("draw.prior")])]
    chains = not any(way in ALONE for way in own)
    if is_gaussian(folder):
        how = f"learned by maximum likelihood{' with short Langevin chains' if chains else ''}: the ablation."
        return f"A generator p<sub>β</sub>(x|z) on the prior {folder.base}, {how}"
    return (
        f"A latent space energy-based prior: p<sub>α</sub>(z) ∝ exp(f<sub>α</sub>(z)) {folder.base.replace('(', '(z; ')} stands on a generator p<sub>β</sub>(x|z), "
        f"and {'short Langevin chains teach both' if chains else 'both are learned'} by maximum likelihood.{ways_sentence(folder)}"
    )


def ways_sentence(folder: Folder) -> str:
    """What the run does otherwise than the paper."""
    posterior, prior = folder.setting("draw.posterior"), folder.setting("draw.prior")
    said = [
        "an encoder proposes where posterior chains start" if posterior == "warm" else STARTS.get(str(posterior)),
        "a flow proposes where prior chains start" if prior == "warm" else STARTS.get(str(prior)),
    ]
    words = " and ".join(w for w in said if w)
    return f" Here {words}." if words else ""


def is_gaussian(folder: Folder) -> bool:
    return folder.setting("prior.kind") == "gaussian"


def sampled(drawn: Mapping[str, Any]) -> str:
    """How the z of samples came about, as noted with them: ", a chain from N(0, I), 60 steps"."""
    if not drawn:
        return ""
    return f", {escape(str(drawn.get('z')))}{'' if drawn.get('by') in ALONE else f', {_steps(drawn)}'}"


def inferred(drawn: Mapping[str, Any]) -> str:
    """How the z of reconstructions came about, as noted with them."""
    words = {
        "amortised": "the encoder finds z",
        "warm": f"the encoder proposes z, a chain of {_steps(drawn)} refines it",
        "langevin": f"a posterior chain of {_steps(drawn)} finds z",
    }
    return words.get(str(drawn.get("by")), "z is inferred")


def _steps(drawn: Mapping[str, Any]) -> str:
    return escape(steps_in_words(drawn.get("chain_steps")))


def other_way(folder: Folder, metric: str, drawn: Mapping[str, Any]) -> str:
    """Beside a picture: by which way its number was measured, where the picture was drawn by another."""
    by = folder.measured_by(metric)
    return f", z by {escape(by)}" if by and drawn and by != drawn.get("by") else ""


def way_of(folder: Folder, metric: str) -> str:
    """In the table of numbers: the way of a metric, where the run or the metric has another than the paper's."""
    by, own = folder.measured_by(metric), (folder.setting("draw.posterior"), folder.setting("draw.prior"))
    unlike = by != "langevin" or any(way not in (None, "langevin") for way in own)
    return f"; z by {escape(by)}" if by and unlike and not metric.endswith("_gaussian") else ""

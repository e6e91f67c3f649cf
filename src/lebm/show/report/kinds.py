"""What a run's configuration says of its method and its rows, so that a page shows only what applies to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from lebm import modalities
from lebm.config.generators import GENERATORS
from lebm.config.methods import METHODS
from lebm.core.errors import UserError
from lebm.core.lookup import named
from lebm.core.section import Section
from lebm.modalities import Modality

PAPERS = "latent-ebm"  # the kind of a method that names none


def has_energy(config: Mapping[str, Any]) -> bool:
    """Whether the method learns an energy for its prior. One that this version does not know has none."""
    values = _values(config, "method")
    if values.get("kind", PAPERS) == PAPERS:
        return values.get("energy", ...) is not None
    with suppress(UserError, ValueError, AttributeError):  # a section that does not hold says nothing
        return "prior" in _class(METHODS, values).model_validate(values).networks()  # type: ignore[union-attr]
    return False


def modality(config: Mapping[str, Any]) -> Modality:
    """The kind of rows that the generator makes; of an unknown generator, neither images nor text nor tables."""
    section = _class(GENERATORS, _values(config, "generator"))
    return modalities.of(getattr(section, "MODALITY", "other"))


def _values(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    values = config.get(name)
    return values if isinstance(values, dict) else {}


def _class(places: Sequence[str], values: Mapping[str, Any]) -> type[Section] | None:
    """The class of the section of this kind, by default the first; None where the kind is unknown."""
    classes = {section.model_fields["kind"].default: section for section in map(named, places)}
    return classes.get(values.get("kind", next(iter(classes))))

"""Suggestions for mistyped names, and objects that are imported when they are first needed."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


def did_you_mean(given: str, valid: Iterable[Any]) -> str:
    """ " (did you mean x?)" where a valid name is close to the given one, otherwise an empty string."""
    close = difflib.get_close_matches(given, [str(v) for v in valid], n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def named(place: str) -> Any:
    """What a registry calls "module:Name": the object of that name in that module of this package, imported now."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"lebm.{module}"), name)

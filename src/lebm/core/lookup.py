"""Suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def did_you_mean(given: str, valid: Iterable[Any]) -> str:
    """ " (did you mean x?)" where a valid name is close to the given one, otherwise an empty string."""
    close = difflib.get_close_matches(given, [str(v) for v in valid], n=1)
    return f" (did you mean {close[0]}?)" if close else ""

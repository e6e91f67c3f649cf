"""Pages from templates by Jinja, which escapes every value, so that no text from a file becomes markup."""

from __future__ import annotations

import base64
import math
import shlex
from functools import cache
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment() -> Environment:
    """The templates of the report and the explorer, by their path in this folder."""
    import jinja2

    loader = jinja2.PackageLoader("lebm.show", "")
    env = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    env.filters.update(show=show, short=short, duration=duration, quote=shlex.quote)
    return env


def render(name: str, /, **values: Any) -> str:
    """A template filled with these values; safe to stand in another one."""
    from markupsafe import Markup

    return Markup(environment().get_template(name).render(**values))


def show(value: Any) -> str:
    """A value from a file as text; numbers in a readable length."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return short(value)
    return ", ".join(map(show, value)) if isinstance(value, list | tuple) else str(value)


def short(value: float) -> str:
    """Four figures: 0.0203, 1.812, 64.57, 12,345."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:.4g}" if abs(value) < 1e-3 else f"{value:.{digits}f}".rstrip("0").rstrip(".")


def duration(seconds: Any) -> str | None:
    """97 s, 10 min, 2 h 5 min; None where it is no time."""
    if not is_number(seconds) or seconds < 0:
        return None
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def data_uri(data: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"

"""Sections of the configuration: the base classes, and how single values are read from YAML and the command line.

They lie below all other rooms, so that a method or a generator may have its section in its own file.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict

from lebm.core.lookup import named

Rule = tuple[bool, str, Any, str]  # whether it holds, the dotted key, its value, and what the value must be


class Section(BaseModel):
    """A part of the configuration: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    MAKES: ClassVar[str]  # the class that `build` makes an object of, as "module:Class"

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """An object of MAKES with the values of all keys; PyTorch is imported with it, and not before."""
        return named(self.MAKES)(*args, **kwargs, **self.model_dump(exclude={"kind"}))


class GeneratorConfig(Section):
    """The section of a generator. A subclass has a `kind: Literal["NAME"] = "NAME"` and its other keys.

    `build(nz)` makes the generator, with initial weights from the global random state."""

    MODALITY: ClassVar[str] = "other"  # of its rows: image, text, table or other; an image has keys size and channels
    SIZE_KEY: ClassVar[str] = "width"  # the key that rules how large the network is


class MethodConfig(Section):
    """The section of a method. A subclass has a `kind: Literal["NAME"] = "NAME"` and its other keys."""

    DEFAULT_RATES: ClassVar[dict[str, float]]  # every network that the method can have, and its default rate
    SIZE_KEYS: ClassVar[dict[str, str]] = {}  # for some of these networks, the key that rules how large it is
    # The sections that must agree before a part is taken over from another run, besides its shapes.
    SECTIONS: ClassVar[dict[str, tuple[str, ...]]] = {}
    # The least and the largest value of every coefficient that a stage may set; empty: they are not checked here.
    COEFFICIENTS: ClassVar[dict[str, tuple[float, float]]] = {}

    @abstractmethod
    def networks(self) -> tuple[str, ...]:
        """The networks that this configuration has, in the order of DEFAULT_RATES."""

    @abstractmethod
    def build(self, nz: int, make_generator: Callable[[], Any]) -> Any:
        """The method, with initial weights from the global random state; `make_generator()` makes its generator."""

    def apply(self, method: Any) -> None:
        """Set on the method what a stage may change, such as its chains. Rates are set on the optimisers."""

    def rules(self, config: Any) -> Iterable[Rule]:
        """Conditions across sections, checked whenever a configuration is read."""
        return ()

    def learning_rules(self) -> Iterable[Rule]:
        """Conditions checked only when learning begins."""
        return ()


def _number(value: Any) -> float:
    """YAML 1.1 reads 2e-5 as text; NaN and infinity are never meant."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _whole(value: Any) -> int:
    """1e4 is a whole number too; true is not."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _number(value)
    if not number.is_integer():
        raise ValueError("not a whole number")
    return int(number)


def _text(value: Any) -> Any:
    """A name such as 2024 is text, though YAML reads a number."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _list(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise ValueError("not a list")
    return value


# Each stands last in an `Annotated[...]`, after the limits, so that the JSON schema knows the limits.
NUMBER, WHOLE, TEXT, LIST = (BeforeValidator(f) for f in (_number, _whole, _text, _list))
# The types of keys, whose limits are in their `Field(default, ge=..., le=...)`.
Number = Annotated[float, NUMBER]
Whole = Annotated[int, WHOLE]
Name = Annotated[str, TEXT]
Switch = Annotated[bool, Strict()]  # true or false, and nothing that resembles them


def default_kind(kind: str) -> BeforeValidator:
    """A section that names no kind is of this one."""
    return BeforeValidator(lambda values: {"kind": kind} | values if isinstance(values, dict) else values)


def any_of(sections: Sequence[type[Section]]) -> Any:
    """The type of a section of one of several kinds, by default of the first; one class alone is no union."""
    if len(sections) == 1:
        return sections[0]
    kind = default_kind(sections[0].model_fields["kind"].default)
    return Annotated[Union[tuple(sections)], Field(discriminator="kind"), kind]  # noqa: UP007


def show(value: Any) -> str:
    """A value inside a sentence, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."

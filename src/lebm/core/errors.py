"""The errors that a person reads as one sentence."""

from __future__ import annotations


class UserError(Exception):
    """A mistake that the user can mend: what was wrong, with which value, and what to do. Exit code 2."""

    exit_code = 2


class ConfigError(UserError):
    """An unknown key, a wrong type or a value out of its limits in the configuration."""


class DataError(UserError):
    """Data that is missing, unreadable or of the wrong shape or range."""


class CheckpointError(UserError):
    """A run folder or weight file that is missing, damaged, foreign or unsafe."""


class NotDefined(UserError):
    """A verb that a method does not have: `NotDefined(method, "infer")`. The method is an object or its name."""

    def __init__(self, method: object, verb: str) -> None:
        self.method, self.verb = method if isinstance(method, str) else type(method).__name__, verb
        super().__init__(
            f"the method {self.method} does not define {verb!r}; leave out what needs it, or use another method"
        )


class Diverged(Exception):
    """Learning left the region of finite, sane numbers. Exit code 3."""

    exit_code = 3


class Interrupted(Exception):
    """A signal stopped the run, after it was saved. Exit code 128 + the signal's number."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum


def one_line(text: object) -> str:
    """The message of a foreign file or library, made fit to stand inside a sentence on a terminal."""
    line = " ".join(str(text).split()) or type(text).__name__
    return "".join(c if c.isprintable() else "?" for c in line[:200])

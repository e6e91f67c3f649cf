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


# What a person calls the verbs of a method, where the verb alone would not say it.
VERBS = {
    "draw": "prior to draw z from (draw)",
    "infer": "inference of z from x (infer)",
    "log_prior": "density of its prior (log_prior)",
    "prior_score": "gradient of its prior's density (prior_score)",
}


class NotDefined(UserError):
    """Something that a method does not have: `NotDefined(method, "infer")`, or in words for what is not one of its
    verbs. The method is an object or its name."""

    def __init__(self, method: object, verb: str) -> None:
        self.method, self.verb = method if isinstance(method, str) else type(method).__name__, verb
        subject = self.method if isinstance(method, str) else f"the method {self.method}"
        super().__init__(f"{subject} has no {VERBS.get(verb, verb)}, which this needs")


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

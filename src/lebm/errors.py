"""The errors a person sees as one sentence. A leaf: every module may import it."""


class UserError(Exception):
    """The user's mistake: what was wrong, with which value, and what to do. Exit code 2."""

    exit_code = 2


class ConfigError(UserError):
    """A key, type or value of the configuration that cannot be."""


class DataError(UserError):
    """Data that is missing, unreadable or of the wrong shape or range."""


class CheckpointError(UserError):
    """A run folder or weight file that is missing, damaged, foreign or unsafe."""


class Diverged(Exception):
    """Learning left the region of finite, sane numbers. Exit code 3."""

    exit_code = 3


class Interrupted(Exception):
    """Stopped by a signal after saving. Exit code 128 + signal."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum

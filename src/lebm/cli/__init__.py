"""The command line. Commands are small functions; nothing imports this package."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer

from lebm import __version__
from lebm.cli import inside, learn, lists, use
from lebm.cli.common import app, say
from lebm.core.errors import Diverged, Interrupted, UserError

__all__ = ["app", "inside", "learn", "lists", "main", "use"]  # the modules put their commands into app


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        print(f"lebm {__version__}")
        raise typer.Exit


STOPPED, STOPPED_AT_ONCE = 130, "stopped at once; a run goes on from its last checkpoint with --resume"


def main() -> None:
    sys.exit(_run())


def _run() -> int:
    """Every way a command can end, as an exit code; a user's mistake is one sentence, not a traceback."""
    try:
        code = app(standalone_mode=False) or 0
        sys.stdout.flush()
        if code == STOPPED:  # typer turns a KeyboardInterrupt into this code
            say(STOPPED_AT_ONCE)
        return code
    except (UserError, Diverged, Interrupted) as e:
        say(f"error: {e}" if isinstance(e, UserError) else str(e))
        return e.exit_code
    except KeyboardInterrupt:
        say(STOPPED_AT_ONCE)
        return STOPPED
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MemoryError, RuntimeError) as e:
        if not _out_of_memory(e):
            raise
        say("error: there is not enough memory; lower training.batch or generator.ngf, or give fewer images at a time")
        return 2
    except OSError as e:
        advice = "check the path and its permissions"
        if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            advice = "free some space, then try again (a run goes on with --resume)"
        say(f"error: {e.strerror or e}{f' ({e.filename})' if e.filename else ''}; {advice}")
        return 2
    except Exception as e:
        if not hasattr(e, "show"):  # typer's usage errors show themselves
            raise
        e.show()
        return getattr(e, "exit_code", 2)


def _out_of_memory(e: Exception) -> bool:
    """Whether Python or torch ran out of memory. Only a program that has imported torch can raise its errors."""
    torch = sys.modules.get("torch")
    of_torch = torch is not None and isinstance(e, torch.OutOfMemoryError)
    return isinstance(e, MemoryError) or of_torch or "allocate memory" in str(e)

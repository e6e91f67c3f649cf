"""The page that a person opens: a run folder in, one self-contained report.html out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lebm.core.files import write_atomic
from lebm.measure.neighbours import COPIES, in_words
from lebm.show import charts
from lebm.show.report import comparison, inside, svg
from lebm.show.report.folder import Folder, number_of, worded
from lebm.show.templates import environment, render

__all__ = ["SECTIONS", "compare", "write"]

# The page in its order: template and macro. Adding a part is a macro of a Folder, empty where there is nothing to show,
# and its name here.
SECTIONS = (
    *(("run", name) for name in ("header", "summary", "samples", "reconstructions")),
    *(("inside", name) for name in ("chains", "diagnostics", "interpolation", "neighbours")),
    *(("run", name) for name in ("curves", "warnings", "config", "again")),
)
# What the macros call.
NAMES = {"draw": svg.draw, "charts": charts, "inside": inside, "copying": in_words, "COPIES": COPIES, "worded": worded}
NAMES["number_of"] = number_of


def write(run: str | Path, to: Path | None = None) -> Path:
    """Write RUN/report.html from what the folder holds; parts that are missing are left out with a note."""
    folder = Folder(Path(run))
    body = "\n".join(_section(template, name, folder) for template, name in SECTIONS)
    return _write(to or folder.run.path / "report.html", f"{folder.name} · lebm", body)


def compare(runs: Sequence[str | Path], to: Path) -> Path:
    """One page with several runs side by side."""
    return _write(to, f"{len(runs)} runs · lebm", comparison.body([Folder(Path(run)) for run in runs]))


def _section(template: str, name: str, folder: Folder) -> str:
    """A part of analysis.json in another form than this version writes is no reason to show no page."""
    from jinja2 import UndefinedError

    module = environment().get_template(f"report/{template}.html").make_module(NAMES)
    try:
        return str(getattr(module, name)(folder))
    except (UndefinedError, KeyError, TypeError, ValueError, IndexError, AttributeError):
        if template != "inside":
            raise
        return render("report/unreadable.html", name=name)


def _write(path: Path, title: str, body: str) -> Path:
    from markupsafe import Markup

    write_atomic(path, render("report/page.html", title=title, body=Markup(body)))
    return path

"""The page a person opens: a run folder in, one self-contained report.html out."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from lebm import checkpoint
from lebm.report import comparison, inside, sections
from lebm.report.folder import SENTENCES, Folder, read

__all__ = ["SECTIONS", "SENTENCES", "compare", "write"]

# The page in its order. Adding a part is a function Folder -> HTML (empty: nothing to show) and a line here.
SECTIONS: tuple[Callable[[Folder], str], ...] = (
    sections.header,
    sections.summary,
    sections.samples,
    sections.reconstructions,
    inside.chains,
    inside.diagnostics,
    inside.interpolation,
    inside.neighbours,
    sections.curves,
    sections.warnings,
    sections.config,
    sections.again,
)


def write(run: str | Path, to: Path | None = None) -> Path:
    """Build RUN/report.html from what the folder holds; parts that are missing are left out with a note."""
    folder = read(Path(run))
    body = "\n".join(part for part in (_safely(section, folder) for section in SECTIONS) if part)
    return _page(to or folder.path / "report.html", f"{folder.experiment} · lebm", body)


def compare(runs: Sequence[str | Path], to: Path) -> Path:
    """One page with several runs side by side."""
    folders = [read(Path(run)) for run in runs]
    return _page(to, f"{len(folders)} runs · lebm", comparison.body(folders))


def _safely(section: Callable[[Folder], str], folder: Folder) -> str:
    """A part of analysis.json in another form than this version writes is no reason to show no page."""
    try:
        return section(folder)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        if section.__module__ != inside.__name__:
            raise
        return sections.note(f"analysis.json holds no {section.__name__} that this version can show; <code>lebm report RUN</code> makes them anew.")


def _page(path: Path, title: str, body: str) -> Path:
    page = Template(_package_text("page.html")).substitute(
        title=html.escape(title), style=_package_text("style.css"), script=_package_text("page.js"), body=body
    )
    checkpoint.write_atomic(path, page)
    return path


def _package_text(name: str) -> str:
    return (resources.files("lebm.report") / name).read_text(encoding="utf-8")

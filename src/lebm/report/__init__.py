"""The page a person opens: a run folder in, one self-contained report.html out."""

from __future__ import annotations

import html
from importlib import resources
from pathlib import Path
from string import Template

from lebm import checkpoint
from lebm.report import sections
from lebm.report.folder import read

# The page in its order. Adding a part is a function Folder -> HTML (empty: nothing to show) and a line here.
SECTIONS = (
    sections.header,
    sections.summary,
    sections.samples,
    sections.reconstructions,
    sections.energy,
    sections.curves,
    sections.warnings,
    sections.config,
    sections.again,
)


def write(run: str | Path) -> Path:
    """Build RUN/report.html from what the folder holds; parts that are missing are left out with a note."""
    folder = read(Path(run))
    page = Template(_package_text("page.html")).substitute(
        title=html.escape(f"{folder.experiment} · lebm"),
        style=_package_text("style.css"),
        body="\n".join(part for part in (section(folder) for section in SECTIONS) if part),
    )
    path = folder.path / "report.html"
    checkpoint.write_atomic(path, page)
    return path


def _package_text(name: str) -> str:
    return (resources.files("lebm.report") / name).read_text(encoding="utf-8")

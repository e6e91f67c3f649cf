"""What the templates need of analysis.json besides its numbers: charts of the diagnostics, verdicts in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lebm.measure.neighbours import COPIES, in_words
from lebm.show import charts
from lebm.show.charts import Chart, Series
from lebm.show.report import svg
from lebm.show.report.folder import sampler_of
from lebm.show.templates import short


def energy_chart(profile: Mapping[str, Any], trained: int, name: str = "") -> str:
    return svg.lines(charts.energy(profile, trained, name=name))


def diagnostic_charts(d: Mapping[str, Any], base: str) -> list[str]:
    """Of the part "diagnostics": energies, autocorrelation, f and z of prior, posterior and base."""
    f, v, t, rho = d["f"], d["view"], d["tilt"], d["autocorrelation"]
    kinds = {"base": (base, 3), "posterior": ("posterior", 0), "prior": ("prior", 1)}
    middles = [(a + b) / 2 for a, b in zip(f["edges"], f["edges"][1:], strict=False)]
    bars = [
        Series(f"{name}, mean {short(f[k]['mean'])}", middles, f[k]["density"], c) for k, (name, c) in kinds.items()
    ]
    dots = [Series(name, [p[0] for p in v[k]], [p[1] for p in v[k]], c) for k, (name, c) in kinds.items()]
    first, second = v["explained"]
    title = f"Energy of {d['chain']['chains']} chains, followed far beyond K₀"
    correlation = Chart(
        "Autocorrelation of f", [Series("", range(len(rho)), rho)], "lag in Langevin steps", "ρ", zero=True
    )
    panels = [
        svg.lines(charts.energy(d["profile"], d["chain"]["trained"], title)),
        svg.lines(correlation),
        svg.lines(Chart("Distribution of f", bars, "f(z), in nats", "density")),
        svg.scatter("z, seen from its two strongest directions", dots, f"first component ({first:.0%} of variance)",
                    f"second ({second:.0%})"),
    ]  # fmt: skip
    for key, what in {"mean": "mean", "spread": "standard deviation"}.items():
        group = [Series("coordinate of z", t[f"posterior_{key}"], t[f"prior_{key}"], 2)]
        what = f"Tilt: {what} of each coordinate of z"
        panels.append(svg.scatter(what, group, "posterior", "prior", diagonal=True))
    return panels


def worded(part: Mapping[str, Any]) -> str:
    """How the z of a part were drawn; empty where it does not say."""
    spec = sampler_of(part)
    return spec.in_words() if spec else ""


def copying(part: Mapping[str, Any]) -> tuple[str, bool]:
    """Whether samples may be copies, and whether that is good news."""
    return in_words(part), part["nearer_than_test"] <= COPIES


def player_data(part: Mapping[str, Any]) -> str:
    """Steps and energies for the page's script: numbers, whatever the file holds."""
    return json.dumps({"steps": [int(k) for k in part["steps"]], "energy": part["shown"]})

"""The charts of the part "diagnostics" of analysis.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lebm.show import charts
from lebm.show.charts import Chart, Series
from lebm.show.templates import short


def diagnostics(d: Mapping[str, Any], base: str) -> list[Chart]:
    """Energies, autocorrelation, f and z of prior, posterior and base."""
    f, v, t, rho = d["f"], d["view"], d["tilt"], d["autocorrelation"]
    kinds = {"base": (base, 3), "posterior": ("posterior", 0), "prior": ("prior", 1)}
    middles = [(a + b) / 2 for a, b in zip(f["edges"], f["edges"][1:], strict=False)]
    bars = [
        Series(f"{name}, mean {short(f[k]['mean'])}", middles, f[k]["density"], c) for k, (name, c) in kinds.items()
    ]
    dots = [Series(name, [p[0] for p in v[k]], [p[1] for p in v[k]], c) for k, (name, c) in kinds.items()]
    view = "z, seen from its two strongest directions"
    first, second = f"first component ({v['explained'][0]:.0%} of variance)", f"second ({v['explained'][1]:.0%})"
    title, lags = f"Energy of {d['chain']['chains']} chains, followed far beyond K₀", range(len(rho))
    panels = [
        charts.energy(d["profile"], d["chain"]["trained"], title),
        Chart("Autocorrelation of f", [Series("", lags, rho)], "lag in Langevin steps", "ρ", zero=True),
        Chart("Distribution of f", bars, "f(z), in nats", "density"),
        Chart(view, dots, first, second, dots=True),
    ]
    for key, what in {"mean": "mean", "spread": "standard deviation"}.items():
        group = [Series("coordinate of z", t[f"posterior_{key}"], t[f"prior_{key}"], 2)]
        words = f"Tilt: {what} of each coordinate of z"
        panels.append(Chart(words, group, "posterior", "prior", dots=True, diagonal=True))
    return panels

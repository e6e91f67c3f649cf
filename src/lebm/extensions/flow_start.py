"""Prior chains that start from a normalising flow's draws, the synthesis network of the paper's appendix."""

from __future__ import annotations

from typing import ClassVar

from lebm.extensions.proposals import LearnedStart
from lebm.health import COLLAPSED
from lebm.start import Rule

NARROW = 0.2  # a flow so much narrower than the posterior has lost most of it


class FlowStart(LearnedStart):
    name = "flow"
    rules: ClassVar[dict[str, Rule]] = {
        "flow_collapsed": (
            lambda m, r: r.judged and r["q_spread_neg"] < max(COLLAPSED, NARROW * r["z_spread_pos"]),
            "the flow has collapsed: its z spread by {q_spread_neg:.2g}, those of the posterior by {z_spread_pos:.2g}; "
            "lower optimizers.prior.rate, raise optimizers.flow.rate or method.prior_chain.steps, or start the prior's "
            "chains from replay",
        ),
    }

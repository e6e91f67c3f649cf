"""Prior chains that start from a normalising flow's draws, the synthesis network of the paper's appendix."""

from __future__ import annotations

from lebm.extensions.proposals import LearnedStart


class FlowStart(LearnedStart):
    name = "flow"

"""What every value of a configuration must be, and how large its networks may be."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lebm.config.sections import (
    Chain,
    Generator,
    Rule,
    TextGenerator,
    default_widths,
    hidden_layers,
)
from lebm.errors import ConfigError

if TYPE_CHECKING:
    from lebm.config import Config

MAX_WEIGHTS = 10**9  # in each network; the paper's largest has 5e7


def check_values(c: Config) -> None:
    g, le, tr = c.generator, c.learning, c.training
    for rule in g.rules():  # before their size is asked for
        _check(*rule)
    size, ruler = g.weights(c.nz)
    rules: list[Rule] = [
        (bool(c.experiment.strip()) and not {"..", "/"} & set(Path(c.experiment).parts), "experiment", c.experiment, "must be a name, with no .. in it"),
        (0 <= c.seed < 2**63, "seed", c.seed, "must be between 0 and 2^63 - 1"),
        (1 <= c.nz <= 4096, "nz", c.nz, "must be between 1 and 4096"),
        (c.data.limit is None or c.data.limit >= 1, "data.limit", c.data.limit, "must be at least 1"),
        (not c.data.flip or g.kind == "image", "data.flip", c.data.flip, f"must be false where generator.kind is {g.kind}: only images can be mirrored"),
        (0 <= c.data.shift < 64, "data.shift", c.data.shift, "must be between 0 (off) and 63 pixels"),
        (not c.data.shift or g.kind == "image", "data.shift", c.data.shift, f"must be 0 where generator.kind is {g.kind}: only images can be moved"),
        (0 < c.data.test_fraction < 1, "data.test_fraction", c.data.test_fraction, "must lie between 0 and 1"),
        (c.data.held_out is None or c.data.held_out >= 0, "data.held_out", c.data.held_out, "must be a label, 0 or above"),
        (1 <= c.prior.width <= 65536, "prior.width", c.prior.width, "must be between 1 and 65536"),
        (1 <= c.prior.depth <= 64, "prior.depth", c.prior.depth, "must be between 1 and 64"),
        (1 <= c.prior.parts <= 1000, "prior.parts", c.prior.parts, "must be between 1 and 1000"),
        (1 <= c.prior.memory <= 10**6, "prior.memory", c.prior.memory, "must be between 1 and 1,000,000 updates"),
        (_mixture_numbers(c) <= MAX_WEIGHTS, "prior.parts", c.prior.parts, f"makes a mixture of {_mixture_numbers(c):.1e} numbers; {MAX_WEIGHTS:.0e} is the most"),
        (0 <= c.prior.leak < 1, "prior.leak", c.prior.leak, "must be at least 0 and below 1"),
        (_prior_weights(c) <= MAX_WEIGHTS, "prior.width", c.prior.width, f"makes a network of {_prior_weights(c):.1e} weights; {MAX_WEIGHTS:.0e} is the most"),
        (size <= MAX_WEIGHTS, f"generator.{ruler}", getattr(g, ruler), f"makes a network of {size:.1e} weights; {MAX_WEIGHTS:.0e} is the most"),
        *_chain_rules("chains.prior", c.chains.prior),
        *_chain_rules("chains.posterior", c.chains.posterior),
        (c.prior.kind == "energy" or c.draw.prior == "langevin", "draw.prior", c.draw.prior, "must be langevin where prior.kind is gaussian: N(0, I) is drawn exactly"),
        (1 <= c.draw.chains <= 10**7 and c.draw.chains * c.nz <= MAX_WEIGHTS, "draw.chains", c.draw.chains, "must be between 1 and 10,000,000"),
        (c.draw.prior != "persistent" or c.draw.chains >= tr.batch, "draw.chains", c.draw.chains, f"must be at least training.batch ({tr.batch})"),
        (c.draw.refresh == 0 or 1e-9 <= c.draw.refresh <= 0.5, "draw.refresh", c.draw.refresh, "must be 0 (never) or between 1e-9 and 0.5 (every other visit)"),
        (1 <= c.encoder.width <= 4096, "encoder.width", c.encoder.width, "must be between 1 and 4096"),
        (0 <= c.encoder.depth <= 64, "encoder.depth", c.encoder.depth, "must be between 0 and 64"),
        (c.draw.posterior != "warm" or c.prior.base == "standard" or c.encoder.teach == "follow", "encoder.teach", c.encoder.teach, "must be follow where draw.posterior is warm and prior.base not standard: imitating its own refined z over a p_0 that follows them, the encoder would let z grow without end"),
        (0 <= c.draw.alone <= 10**12, "draw.alone", c.draw.alone, "must be between 0 and 10^12 updates"),
        (not c.draw.alone or c.draw.posterior == "warm", "draw.alone", c.draw.alone, f"must be 0 where draw.posterior is {c.draw.posterior}: only warm has an encoder that a chain joins later"),
        (not c.draw.alone or c.encoder.teach == "follow", "encoder.teach", c.encoder.teach, "must be follow where draw.alone is above 0: alone, an encoder has no refined z to imitate"),
        (1 <= c.flow.layers <= 64, "flow.layers", c.flow.layers, "must be between 1 and 64"),
        (1 <= c.flow.width <= 4096, "flow.width", c.flow.width, "must be between 1 and 4096"),
        (2 <= c.flow.bins <= 64, "flow.bins", c.flow.bins, "must be between 2 and 64"),
        (_encoder_weights(c) <= MAX_WEIGHTS, "encoder.width", c.encoder.width, f"makes a network of {_encoder_weights(c):.1e} weights; {MAX_WEIGHTS:.0e} is the most"),
        (_flow_weights(c) <= MAX_WEIGHTS, "flow.width", c.flow.width, f"makes a network of {_flow_weights(c):.1e} weights; {MAX_WEIGHTS:.0e} is the most"),
        (0 <= le.encoder_rate <= 1e9, "learning.encoder_rate", le.encoder_rate, "must be between 0 and 1e9"),
        (0 <= le.flow_rate <= 1e9, "learning.flow_rate", le.flow_rate, "must be between 0 and 1e9"),
        (0 <= le.prior_rate <= 1e9, "learning.prior_rate", le.prior_rate, "must be between 0 and 1e9"),
        (0 <= le.generator_rate <= 1e9, "learning.generator_rate", le.generator_rate, "must be between 0 and 1e9"),
        (all(0 <= b < 1 for b in le.betas), "learning.betas", le.betas, "must both be at least 0 and below 1"),
        (0 < le.decay <= 1, "learning.decay", le.decay, "must be above 0 and at most 1"),
        (le.clip >= 0, "learning.clip", le.clip, "must not be negative (0 is off)"),
        (0 <= le.l2 <= 1e6, "learning.l2", le.l2, "must be between 0 (off) and 1e6"),
        (0 <= le.ema < 1, "learning.ema", le.ema, "must be at least 0 (off) and below 1"),
        (0 <= tr.steps <= 10**12, "training.steps", tr.steps, "must be between 0 and 10^12"),
        (1 <= tr.batch <= 10**6, "training.batch", tr.batch, "must be between 1 and 1,000,000"),
        (tr.log_every >= 1, "training.log_every", tr.log_every, "must be at least 1"),
        (c.anomaly.epochs >= 1, "anomaly.epochs", c.anomaly.epochs, "must be at least 1"),
        (tr.checkpoint_every >= 1, "training.checkpoint_every", tr.checkpoint_every, "must be at least 1"),
    ]  # fmt: skip
    for rule in rules:
        _check(*rule)


def check_learning(c: Config) -> None:
    """What a run must have that begins to learn. One that has learned without may still be read, and go on."""
    rules: list[Rule] = [
        (c.draw.posterior == "amortised" or c.chains.posterior.steps > 0, "chains.posterior.steps", c.chains.posterior.steps, f"must be above 0 where draw.posterior is {c.draw.posterior}: only amortised draws z without a chain (the paper's takes 20 steps)"),
        (c.prior.kind != "energy" or c.draw.prior == "flow" or c.chains.prior.steps > 0, "chains.prior.steps", c.chains.prior.steps, f"must be above 0 where prior.kind is energy and draw.prior {c.draw.prior}: only a flow's draws know the energy without a chain (the paper's takes 60 steps)"),
    ]  # fmt: skip
    for rule in rules:
        _check(*rule)


def _check(ok: bool, key: str, value: Any, what: str) -> None:
    if not ok:
        raise ConfigError(f"{key} is {show(value)}; it {what}")


def _chain_rules(key: str, chain: Chain) -> list[Rule]:
    first = chain.first_steps
    return [
        (0 <= chain.steps <= 10**9, f"{key}.steps", chain.steps, "must be between 0 and 1,000,000,000"),
        (0 < chain.step_size <= 1000, f"{key}.step_size", chain.step_size, "must be above 0 and at most 1000"),
        (
            len(first) <= 1000 and all(0 < s <= 1000 for s in first),
            f"{key}.first_steps",
            list(first),
            "must list at most 1000 step sizes, each above 0 and at most 1000",
        ),
        (chain.bound >= 0, f"{key}.bound", chain.bound, "must not be negative (0 is off)"),
        (0 <= chain.noise <= 1, f"{key}.noise", chain.noise, "must be between 0 (none) and 1 (Langevin's)"),
    ]


def _mixture_numbers(c: Config) -> int:
    """Three matrices a Gaussian (lebm.mixture)."""
    return 3 * c.prior.parts * c.nz**2 if c.prior.base == "mixture" else 0


def _prior_weights(c: Config) -> int:
    return c.prior.width * (c.nz + c.prior.width * (c.prior.depth - 1))


def _encoder_weights(c: Config) -> int:
    """About how many the encoder of lebm.methods.encoder has, where one is asked for."""
    g, width = c.generator, c.encoder.width
    if not c.draw.encoder:
        return 0
    if isinstance(g, Generator):
        widths = [w * width for w in g.widths or default_widths(hidden_layers(g))]
        return 16 * (widths[0] ** 2 + sum(a * b for a, b in itertools.pairwise([*widths, g.channels]))) + 2 * c.nz * widths[0] * min(g.base, 7) ** 2
    if isinstance(g, TextGenerator):
        return g.vocabulary * g.embedding + 6 * width * (g.embedding + width) + 4 * width * c.nz
    return (g.columns + 2 * c.nz + width * c.encoder.depth) * width


def _flow_weights(c: Config) -> int:
    """The same of lebm.methods.flow."""
    if not c.draw.flow:
        return 0
    return c.flow.layers * c.flow.width * (c.nz + c.flow.width + c.nz * (3 * c.flow.bins - 1))


def show(value: Any) -> str:
    """A value inside a sentence, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."

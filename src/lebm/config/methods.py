"""The section of LatentEBM and of its parts, and METHODS. A further method is a file with a Method and its section, and
a line there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from lebm.core.errors import ConfigError
from lebm.core.section import LIST, NUMBER, WHOLE, MethodConfig, Number, Rule, Section, Whole, default_kind

if TYPE_CHECKING:
    from lebm.config.schema import Config
    from lebm.generators import Generator
    from lebm.sampler import Chain

METHODS = (  # the sections, imported with the schema; the first is the default
    "config.methods:LatentEBMConfig",
)

MAX_NUMBERS = 10**9  # of a replay buffer or a mixture; a small file must not be able to ask for all memory

Width = Annotated[int, Field(ge=1, le=4096), WHOLE]
Steps = Annotated[int, Field(ge=0, le=10**9, description="Langevin steps; 0 takes the start as it is."), WHOLE]
StepSize = Annotated[float, Field(gt=0, le=1000, description="s in z <- z + (s^2/2) grad log pi(z) + s e."), NUMBER]
Memory = Annotated[
    int,
    Field(ge=1, le=10**6, description="How many updates back the base looks; early in a run, half of those made."),
    WHOLE,
]
Objective = Annotated[
    Literal["reverse_kl", "forward_kl"],
    Field(description="reverse_kl minimises KL(start || target); forward_kl fits the start to where the chain ended."),
]


class EnergyConfig(Section):
    """f(z): a fully connected network from z to one number."""

    width: Whole = Field(200, ge=1, le=65536)
    depth: Whole = Field(2, ge=1, le=64, description="Hidden layers.")
    activation: Literal["leaky_relu", "gelu", "silu", "tanh"] = "leaky_relu"
    leak: Number = Field(0.2, ge=0, lt=1, description="Slope of the leaky ReLU below 0.")
    l2: Number = Field(0.0, ge=0, le=1e6, description="Weight of mean f(z_pos)^2 + mean f(z_neg)^2; 0 is off.")

    def build(self, nz: int) -> Any:
        from lebm.prior import EnergyNetwork

        return EnergyNetwork(nz, self.width, self.depth, self.activation, self.leak)


class ChainConfig(Section):
    """A Langevin chain (equation 9 of the paper), and what may temper it."""

    steps: Steps = 20
    step_size: StepSize = 0.1
    first_steps: Annotated[
        tuple[StepSize, ...], Field(max_length=1000, description="s of the first steps, where it is another."), LIST
    ] = ()
    noise: Number = Field(1.0, ge=0, le=1, description="Scales e; below 1 a chain climbs more than it samples.")
    drift_limit: Number = Field(
        0.0, ge=0, description="Largest root mean square of (s^2/2) grad over the coordinates of z; 0 is off."
    )

    def build(self) -> Chain:
        """The paper's chain, or a tempered one where more is asked for."""
        from lebm.extensions.tempered_chain import TemperedChain
        from lebm.sampler import Chain

        if not self.first_steps and self.noise == 1 and not self.drift_limit:
            return Chain(self.steps, self.step_size)
        return TemperedChain(self.steps, self.step_size, self.first_steps, self.noise, self.drift_limit)


class PriorChainConfig(ChainConfig):
    """The chain that draws z from the prior."""

    steps: Steps = 60
    step_size: StepSize = 0.4


class FlowShape(Section):
    """Size of a flow of rational-quadratic splines in coupling layers."""

    layers: Whole = Field(4, ge=1, le=64)
    width: Width = 128
    bins: Whole = Field(8, ge=2, le=64, description="Pieces of each spline.")

    def flow(self, nz: int, key: str) -> Any:
        """A flow cannot be made on the meta device, so its size is estimated before it is made."""
        import torch

        from lebm.extensions.flows import SplineFlow

        count = self.layers * self.width * (nz + self.width + nz * (3 * self.bins - 1))
        if count > MAX_NUMBERS:
            raise ConfigError(f"{key}.width makes a flow of {count:.1e} weights; {MAX_NUMBERS:.0e} is the most")
        with torch.device("cpu"):
            return SplineFlow(nz, self.layers, self.width, self.bins)


class StandardBase(Section):
    """N(0, I), as in the paper."""

    MAKES: ClassVar = "prior:StandardNormal"

    kind: Literal["standard"] = "standard"


class WhitenedBase(Section):
    """A Gaussian with the mean and covariance of recent posterior draws."""

    MAKES: ClassVar = "extensions.bases:WhitenedGaussian"

    kind: Literal["whitened"] = "whitened"
    memory: Memory = 1000


class MixtureBase(Section):
    """A mixture of Gaussians fitted to recent posterior draws."""

    MAKES: ClassVar = "extensions.bases:MixtureBase"

    kind: Literal["mixture"] = "mixture"
    components: Whole = Field(10, ge=1, le=1000)
    memory: Memory = 1000


class FlowBase(FlowShape):
    """A flow learned by gradient."""

    kind: Literal["flow"] = "flow"

    def build(self, nz: int) -> Any:
        from lebm.extensions.bases import FlowBase

        return FlowBase(nz, self.flow(nz, "method.base"))


class NoiseStart(Section):
    """The chain starts from noise, as in the paper."""

    kind: Literal["noise"] = "noise"

    def build(self, nz: int, generator: Generator) -> Any:
        from lebm.start import Start

        return Start()


class EncoderStart(Section):
    """The chain starts from an encoder's Gaussian around its z of x."""

    kind: Literal["encoder"] = "encoder"
    objective: Objective = "reverse_kl"
    width: Width = Field(64, description="Channels of an image encoder's first map; units of a text or flat encoder.")
    depth: Whole = Field(2, ge=0, le=64, description="Hidden layers of a flat encoder; 0 is linear.")

    def build(self, nz: int, generator: Generator) -> Any:
        from lebm.extensions.encoder_start import EncoderStart, GaussianEncoder

        return EncoderStart(GaussianEncoder(generator.make_encoder(nz, self.width, self.depth), nz), self.objective)


class FlowStart(FlowShape):
    """The chain starts from a flow."""

    kind: Literal["flow"] = "flow"
    objective: Objective = "reverse_kl"

    def build(self, nz: int, generator: Generator) -> Any:
        from lebm.extensions.flow_start import FlowStart

        return FlowStart(self.flow(nz, "method.prior_start"), self.objective)


class ReplayStart(Section):
    """The chain goes on from where an earlier one ended."""

    kind: Literal["replay"] = "replay"
    chains: Whole = Field(10_000, ge=1, le=10**7, description="Chains that are remembered.")
    refresh: Number = Field(
        0.01, ge=0, le=0.5, description="Chance that a visited chain starts anew from noise; 0 is never."
    )

    def build(self, nz: int, generator: Generator) -> Any:
        from lebm.extensions.replay_start import ReplayStart

        return ReplayStart(self.chains, nz, self.refresh)


AnyBase = Annotated[
    StandardBase | WhitenedBase | MixtureBase | FlowBase, Field(discriminator="kind"), default_kind("standard")
]
AnyPriorStart = Annotated[NoiseStart | FlowStart | ReplayStart, Field(discriminator="kind"), default_kind("noise")]
AnyPosteriorStart = Annotated[NoiseStart | EncoderStart, Field(discriminator="kind"), default_kind("noise")]


class LatentEBMConfig(MethodConfig):
    """The latent space energy-based prior model: p(z) is proportional to exp(f(z)) p_0(z)."""

    DEFAULT_RATES: ClassVar = {"prior": 2e-5, "generator": 1e-4, "encoder": 1e-4, "flow": 1e-3, "base": 1e-4}
    SIZE_KEYS: ClassVar = {"prior": "method.energy.width", "encoder": "method.posterior_start.width"}
    COEFFICIENTS: ClassVar = {"energy_l2": (0.0, 1e6)}
    SECTIONS: ClassVar = {  # energy and flow live on the coordinates of their base
        "base": ("method.base",),
        "prior": ("method.base", "method.energy"),
        "flow": ("method.base", "method.energy", "method.prior_start"),
        "encoder": ("method.posterior_start",),
    }

    kind: Literal["latent-ebm"] = "latent-ebm"
    energy: EnergyConfig | None = Field(EnergyConfig(), description="null: f = 0, the prior is its base.")
    base: Annotated[AnyBase, Field(description="p_0, which the energy tilts.")] = StandardBase()
    prior_chain: PriorChainConfig = PriorChainConfig()
    posterior_chain: ChainConfig = ChainConfig()
    prior_start: AnyPriorStart = NoiseStart()
    posterior_start: AnyPosteriorStart = NoiseStart()

    @model_validator(mode="after")
    def _without_energy(self) -> LatentEBMConfig:
        """Without an energy the base is drawn exactly: a chain would only add its error."""
        if self.energy is None and "steps" not in self.prior_chain.model_fields_set:
            object.__setattr__(self, "prior_chain", self.prior_chain.model_copy(update={"steps": 0}))
        return self

    def build(self, nz: int, make_generator: Callable[[], Generator]) -> Any:
        """The order in which networks take their initial weights is part of the reference: prior, generator, encoder,
        flow."""
        from lebm.latent_ebm import LatentEBM
        from lebm.prior import EnergyPrior

        f, l2 = (self.energy.build(nz), self.energy.l2) if self.energy else (None, 0.0)
        prior = EnergyPrior(self.base.build(nz), f)
        generator = make_generator()
        posterior_start = self.posterior_start.build(nz, generator)
        prior_start = self.prior_start.build(nz, generator)
        chains = self.prior_chain.build(), self.posterior_chain.build()
        return LatentEBM(prior, generator, *chains, prior_start, posterior_start, l2)

    def apply(self, method: Any) -> None:
        method.prior_chain, method.posterior_chain = self.prior_chain.build(), self.posterior_chain.build()

    def networks(self) -> tuple[str, ...]:
        present = {
            "prior": self.energy is not None,
            "generator": True,
            "encoder": self.posterior_start.kind == "encoder",
            "flow": self.prior_start.kind == "flow",
            "base": self.base.kind == "flow",
        }
        return tuple(name for name, there in present.items() if there)

    def rules(self, config: Config) -> Iterator[Rule]:
        steps, start, encoder = self.prior_chain.steps, self.prior_start, self.posterior_start
        exact = "where method.energy is null: the base is drawn exactly"
        none = self.energy is None
        yield not none or steps == 0, "method.prior_chain.steps", steps, f"must be 0 {exact}"
        yield not none or start.kind == "noise", "method.prior_start.kind", start.kind, f"must be noise {exact}"
        if isinstance(self.base, MixtureBase):
            key, count = "method.base.components", 3 * self.base.components * config.nz**2  # three matrices a component
            what = f"makes a mixture of {count:.1e} numbers; {MAX_NUMBERS:.0e} is the most"
            yield count <= MAX_NUMBERS, key, self.base.components, what
        if isinstance(start, ReplayStart):
            key, batch, count = "method.prior_start.chains", config.training.batch, start.chains * config.nz
            yield start.chains >= batch, key, start.chains, f"must be at least training.batch ({batch})"
            what = f"makes a buffer of {count:.1e} numbers; {MAX_NUMBERS:.0e} is the most"
            yield count <= MAX_NUMBERS, key, start.chains, what
            what = "must be 0 (never) or between 1e-9 and 0.5 (every other visit)"
            yield start.refresh == 0 or start.refresh >= 1e-9, "method.prior_start.refresh", start.refresh, what
        if isinstance(encoder, EncoderStart):
            what = (
                f"must be reverse_kl where method.base.kind is {self.base.kind}: an encoder that imitates refined z, "
                "over a base that follows them, would let z grow without end"
            )
            bounded = encoder.objective == "reverse_kl" or self.base.kind == "standard"
            yield bounded, "method.posterior_start.objective", encoder.objective, what

    def learning_rules(self) -> Iterator[Rule]:
        """A chain without steps needs a start that learns from the score."""
        chains: list[tuple[str, ChainConfig, Any]] = [("posterior", self.posterior_chain, self.posterior_start)]
        if self.energy is not None:
            chains.append(("prior", self.prior_chain, self.prior_start))
        for which, chain, start in chains:
            objective, papers = getattr(start, "objective", None), type(chain)().steps
            given = f"kind is {start.kind}" if objective is None else f"objective is {objective}"
            what = (
                f"must be above 0 where method.{which}_start.{given}: only a start with the objective reverse_kl "
                f"learns without a chain (the paper's takes {papers} steps)"
            )
            yield chain.steps > 0 or objective == "reverse_kl", f"method.{which}_chain.steps", 0, what

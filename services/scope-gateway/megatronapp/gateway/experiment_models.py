"""The REST API's values of experiments on a model that generates. Log-probabilities and divergences are in nats; a
number that is none (NaN) is null."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from megatronapp.core.generation import MAX_SEED
from megatronapp.core.scope.intervention import MAX_INTERVENTIONS, MAX_VECTOR, Intervention
from megatronapp.gateway.models import Model

TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=1 << 16)]
PromptText = Annotated[str, Field(min_length=1, max_length=1 << 18)]
PromptValue = PromptText | TokenIds
Site = Annotated[str, Field(min_length=1, max_length=128)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Reason = Annotated[str, Field(max_length=500, description="why, kept in the audit; needed where a pass is changed")]
Selection = Annotated[str, Field(max_length=256)]
Floats = list[float | None]


class ScopeIntervention(Model):
    """What is done to a forward pass: core's `Intervention`. Selections are ranges ("10:20", "0,3"); empty: all."""

    place: Literal["storage", "calculation", "system"] = "calculation"
    site: str = Field(default="", max_length=128)
    kind: str = Field(max_length=32, description="zero, mean, steer, scale, noise1, … (docs/scope.md#perturbation)")
    coefficient: float = Field(default=0.0, allow_inf_nan=False)
    layers: Selection = ""
    heads: Selection = ""
    tokens: Selection = ""
    channels: Selection = ""
    steps: Selection = ""
    rows: Selection = ""
    bits: str = Field(default="", max_length=16)
    with_heads: Selection = ""
    redraw: bool = False
    off: bool = False
    source: str = Field(default="", max_length=128, description="the generation that kept the values")
    source_tokens: Selection = Field(default="", description="of patch: the source's tokens, as many as `tokens`")
    baseline: str = Field(default="", max_length=128)
    vector: list[float] = Field(default=[], max_length=MAX_VECTOR)

    def of_core(self) -> Intervention:
        return Intervention(**{**self.model_dump(), "vector": tuple(self.vector)})


class SurprisalRequest(Model):
    prompts: list[PromptValue] = Field(min_length=1, max_length=64)


class PromptSurprisal(Model):
    """−ln p of each token given those before it; of the first nobody knows."""

    ids: list[int]
    texts: list[str]
    nats: Floats


class CausalTraceRequest(Model):
    """Prompts of as many tokens each, such as "The Eiffel Tower is in" and "The Colosseum is in"."""

    clean: PromptValue
    corrupted: PromptValue
    answer: PromptValue = Field(description="what the clean prompt is to be followed by")
    site: Site = "resid_post"
    layers: list[Annotated[int, Field(ge=0)]] = Field(default=[], max_length=4096, description="none: all")
    by_head: bool = Field(default=False, description="heads in place of tokens, of a site that has heads")
    reason: Reason = "causal trace"


class CausalTrace(Model):
    """The answer's log-probability with one cell of the clean prompt in the corrupted one."""

    tokens: list[str]
    layers: list[int]
    clean: float
    corrupted: float
    patched: list[Floats] = Field(description="[layer][token or head]")
    effect: list[Floats] = Field(description="the same, 0: as corrupted, 1: as clean")


class ComparisonRequest(Model):
    prompt: PromptValue
    interventions: list[ScopeIntervention] = Field(min_length=1, max_length=MAX_INTERVENTIONS)
    source: PromptValue | None = Field(
        default=None, description="whose values patch, mean and steer take, where they name no generation"
    )
    baseline: PromptValue | None = Field(default=None, description="of steer: whose mean is taken away")
    free: bool = Field(default=False, description="B goes its own way; else it is given A's tokens")
    site: Site = "resid_post"
    max_new_tokens: int = Field(default=16, ge=1, le=4096)
    temperature: float = Field(default=0.0, ge=0, le=100)
    seed: Seed = 0
    intervention_seed: Seed = 0
    reason: Reason = ""


class PromptComparison(Model):
    """A prompt without (A) and with (B) interventions, as far as both have the same tokens."""

    clean_text: str
    other_text: str
    first_different_position: int | None = Field(
        description="of a token that B draws otherwise; null: none. Of given tokens: that B would have drawn otherwise"
    )
    edit_distance: int
    kl: Floats = Field(description="[token]: KL(A ‖ B) of what is predicted after it")
    log_probability_difference: Floats = Field(description="[token]: of A's next token, B − A")
    layers: list[int]
    cosine: list[Floats] = Field(description="[layer][token], of the site")
    relative_l2: list[Floats] = Field(description="[layer][token]: ‖B − A‖ ÷ ‖A‖")


class SweepRequest(Model):
    prompt: PromptValue
    intervention: ScopeIntervention
    coefficients: list[float] = Field(min_length=1, max_length=64)
    seeds: int = Field(default=1, ge=1, le=64)
    reason: Reason = ""


class SweptPoint(Model):
    """Mean KL of a token from the clean model."""

    coefficient: float
    kl: Floats = Field(description="by seed")
    mean: float
    half_width: float | None = Field(description="of the mean's 95 % interval over the seeds; null with one")


class AttributionRequest(Model):
    prompt: PromptValue
    answer: Annotated[int, Field(ge=0)] | PromptText = Field(description="an id, or a text of one token")
    against: Annotated[int, Field(ge=0)] | PromptText | None = Field(
        default=None, description="attribute the answer's lead over this one"
    )


class LogitAttribution(Model):
    """What each part adds to the logit at the prompt's end, with the final norm's scale as it is."""

    total: float
    embed: float
    heads: list[Floats] = Field(description="[layer][head]")
    biases: Floats = Field(description="[layer]: of the attention's projection")
    mlps: Floats = Field(description="[layer]")


class InputAttributionRequest(Model):
    prompt: PromptValue
    answer: PromptValue = Field(description="what is to follow the prompt; of several tokens they are summed")
    against: PromptValue | None = Field(default=None, description="attribute the answer's lead over this one")


class InputAttribution(Model):
    """Gradient × input of each token of the prompt."""

    ids: list[int]
    texts: list[str]
    values: list[float] = Field(description="[token]: d target / d x · x, with x the token's embedding")
    target: float = Field(description="the answer's log-probability, or its lead over the other answer's")

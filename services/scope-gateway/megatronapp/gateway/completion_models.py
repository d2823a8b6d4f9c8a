"""The REST API's values of text generation, as Megatron-LM's server (`PUT /api`) and OpenAI's completions have them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from megatronapp.gateway.models import Model


class Lenient(BaseModel):
    """A request that other servers take too, with more in it than is known here."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class MegatronRequest(Lenient):
    """What Megatron-LM's text-generation server takes."""

    prompts: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1, max_length=512)
    tokens_to_generate: int = Field(default=64, ge=0)
    logprobs: bool = False
    temperature: float = Field(default=1.0, gt=0, le=100)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=0.0, ge=0, le=1)
    top_p_decay: float = Field(default=0.0, ge=0, le=1)
    top_p_bound: float = Field(default=0.0, ge=0, le=1)
    add_bos: bool = Field(default=False, alias="add_BOS")
    stop_on_double_eol: bool = False
    stop_on_eol: bool = False
    prevent_newline_after_colon: bool = False
    random_seed: int | None = Field(default=None, ge=0)
    beam_width: int = Field(default=0, ge=0)
    stop_token: int | None = Field(default=None, ge=0)
    length_penalty: float = 1.0


class MegatronGeneration(Model):
    """`text` has the prompts; `scores` only of a beam search, which takes one prompt."""

    text: list[str]
    segments: list[list[str]]
    logprobs: list[list[float | None]] | None = None
    scores: list[float] | None = None


class CompletionRequest(Lenient):
    """OpenAI's completions; what is not listed is not looked at."""

    model: str = Field(default="", max_length=256)
    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int = Field(default=16, ge=0)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    n: Literal[1] = 1
    logprobs: int | None = Field(default=None, ge=0, le=100)
    echo: bool = False
    stop: str | list[str] | None = None
    seed: int | None = Field(default=None, ge=0)
    stream: bool = Field(default=False, description="chunks as they come, as server-sent events, `[DONE]` the last one")


class CompletionLogprobs(Model):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Model):
    text: str
    index: int
    finish_reason: Literal["stop", "length"]
    logprobs: CompletionLogprobs | None = None


class CompletionUsage(Model):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(Model):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage


class CompletionChunkChoice(Model):
    """What a row's text grows by; `finish_reason` in its last one."""

    text: str
    index: int
    finish_reason: Literal["stop", "length"] | None = None
    logprobs: CompletionLogprobs | None = None


class CompletionChunk(Model):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChunkChoice]

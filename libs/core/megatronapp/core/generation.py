"""What is asked of a model that generates, and what it answers: plain values, for trainer, gateway and clients alike.

A request has rows, one a prompt. Each row's tokens have positions from 0; its draws depend on the request's seed, the
row's number and the position alone, so that a row comes out as if it had been asked for alone with `seed + row`.

Probabilities are those of the model over its real vocabulary, before temperature and filters; log-probabilities are
natural logarithms. core/generation_json.py reads and writes all this as JSON.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.scope.expression import parse
from megatronapp.core.scope.intervention import MAX_INTERVENTIONS, MAX_KEPT, Intervention

Prompt = str | tuple[int, ...]
"""Text, or token ids."""
Origin = Literal["prompt", "forced", "sampled"]
RowEnd = Literal["stop", "length", "cancelled"]
RequestEnd = Literal["done", "cancelled", "refused", "failed"]

MAX_STOP_WORDS = 16
MAX_STOP_WORD_CHARACTERS = 256
MAX_STOP_TOKENS = 64
MAX_CHARACTERS_PER_TOKEN = 64
MAX_SEED = 2**53
"""Whole numbers up to here are exact in JSON everywhere."""


def _check(holds: bool, text: str) -> None:
    if not holds:
        raise UsageError(text)


# ---- asking


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is drawn. Raises UsageError for values that mean nothing."""

    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_k: int = 0
    """Draw among the k likeliest; 0: among all."""
    top_p: float = 1.0
    """Draw among the likeliest whose probabilities first sum to this."""
    top_p_decay: float = 1.0
    """A row's top_p is multiplied by this with each token that it draws."""
    top_p_bound: float = 0.0
    """It does not decay below this."""

    def __post_init__(self) -> None:
        _check(0 <= self.temperature <= 100, f"temperature {self.temperature} must be 0 to 100")
        _check(self.top_k >= 0, f"top_k {self.top_k} must be 1 or more, or 0 for all tokens")
        _check(0 < self.top_p <= 1, f"top_p {self.top_p} must be above 0, at most 1")
        _check(0 < self.top_p_decay <= 1, f"top_p_decay {self.top_p_decay} must be above 0, at most 1")
        _check(0 <= self.top_p_bound <= self.top_p, f"top_p_bound {self.top_p_bound} must be 0 to top_p")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """Raises UsageError for what no model could do; `Limits` has what depends on the model."""

    prompts: tuple[Prompt, ...]
    id: str = ""
    """What its events and controls are matched by."""
    continuations: tuple[Prompt, ...] = ()
    """Teacher forcing: what follows each prompt, as if the model had drawn it. Empty: nothing."""
    max_new_tokens: int = 64
    """Tokens that a row draws at most; 0 only scores what is given."""
    sampling: Sampling = Sampling()
    seed: int = 0
    beam_width: int = 0
    """Beam search with so many beams in place of sampling; 0: none."""
    length_penalty: float = 1.0
    """A beam's score is its log-probability divided by its length to this power."""
    stop_words: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    stop_at_end_of_document: bool = True
    add_bos: bool = False
    """Begin each prompt with the token that begins a text, unless it is there already."""
    chat: bool = False
    """Each prompt, a text, is what a user says: it is put into the tokenizer's chat template, and what follows is the
    answer."""
    no_newline_after_colon: bool = False
    prompt_log_probabilities: bool = False
    top_candidates: int = 0
    """With each token, so many likeliest ones at its place."""
    logits: bool = False
    """With each drawn, forced or scored token, the model's logits at its place."""
    reuse_prefix: bool = False
    """Take over what an earlier request has computed of the same tokens: for branches. Hooks don't see these again."""
    input_gradients: bool = False
    """Of one prompt and its continuation, which is scored, also how its log-probability follows the tokens before its
    last one: gradient × input. Nothing is drawn."""
    paused: bool = False
    """Wait for `step` or `resume` before the first step."""
    interventions: tuple[Intervention, ...] = ()
    """What is done to this request's forward passes (MegaScope)."""
    intervention_seed: int = 0
    """Of their noise."""
    keep: tuple[str, ...] = ()
    """Selectors (`layers[*].resid_post`) of values that stay on the ranks under this request's id, for interventions of
    later ones."""

    @property
    def looks_inside(self) -> bool:
        """Whether it needs MegaScope on the ranks."""
        return bool(self.interventions or self.keep)

    def __post_init__(self) -> None:
        _check(bool(self.prompts), "no prompts: give one at least")
        if self.continuations:
            same = len(self.continuations) == len(self.prompts)
            _check(same, f"{len(self.continuations)} continuations for {len(self.prompts)} prompts: give one for each")
        _check(self.max_new_tokens >= 0, f"max_new_tokens {self.max_new_tokens} must be 0 or more")
        scores = self.prompt_log_probabilities or bool(self.continuations)
        _check(bool(self.max_new_tokens) or scores, "max_new_tokens 0 needs prompt_log_probabilities or continuations")
        _check(0 <= self.seed <= MAX_SEED, f"seed {self.seed} must be 0 to {MAX_SEED}")
        _check(self.top_candidates >= 0, f"top_candidates {self.top_candidates} must be 0 or more")
        texts = all(isinstance(prompt, str) for prompt in self.prompts)
        _check(texts or not self.chat, "chat takes prompts of text, not of token ids")
        self._check_stops()
        self._check_beams()
        self._check_gradients()
        self._check_interventions()

    def _check_stops(self) -> None:
        words = self.stop_words
        _check(len(words) <= MAX_STOP_WORDS, f"{len(words)} stop words: at most {MAX_STOP_WORDS}")
        fits = all(0 < len(word) <= MAX_STOP_WORD_CHARACTERS for word in words)
        _check(fits, f"a stop word has 1 to {MAX_STOP_WORD_CHARACTERS} characters")
        tokens = self.stop_tokens
        _check(len(tokens) <= MAX_STOP_TOKENS, f"{len(tokens)} stop tokens: at most {MAX_STOP_TOKENS}")

    def _check_interventions(self) -> None:
        _check(len(self.interventions) <= MAX_INTERVENTIONS, f"at most {MAX_INTERVENTIONS} interventions")
        _check(0 <= self.intervention_seed <= MAX_SEED, f"intervention_seed must be 0 to {MAX_SEED}")
        _check(len(self.keep) <= MAX_KEPT, f"{len(self.keep)} selectors to keep: at most {MAX_KEPT}")
        _check(not (self.reuse_prefix and self.looks_inside), "interventions and keep can't reuse a prefix")
        for text in self.keep:
            try:
                bare = not parse(text).operations
            except DataError as error:
                raise UsageError(f"keep: {error}") from error
            _check(bare, f"keep {text[:80]!r}: a selector alone, such as layers[*].resid_post")

    def _check_gradients(self) -> None:
        if not self.input_gradients:
            return
        alone = len(self.prompts) == 1 and bool(self.continuations)
        _check(alone, "input_gradients are of one prompt and its continuation: give one of each")
        asked = self.max_new_tokens or self.beam_width or self.logits or self.top_candidates
        asked = asked or self.prompt_log_probabilities or self.reuse_prefix
        _check(not asked, "input_gradients come with max_new_tokens 0, without beams, logits, candidates, reuse_prefix")

    def _check_beams(self) -> None:
        _check(self.beam_width >= 0, f"beam_width {self.beam_width} must be 1 or more, or 0 for sampling")
        _check(math.isfinite(self.length_penalty), f"length_penalty {self.length_penalty} must be a number")
        if self.beam_width:
            asked = self.logits or self.prompt_log_probabilities or self.continuations or self.top_candidates
            _check(not asked, "beam search gives no logits, candidates, prompt_log_probabilities or continuations")
            _check(self.max_new_tokens > 0, "beam search needs max_new_tokens of 1 or more")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a model takes, and what its server lends."""

    vocabulary: int
    """Ids lie below this."""
    max_positions: int
    """Of a row: prompt, continuation and new tokens."""
    max_rows: int = 512
    max_candidates: int = 100
    max_beam_width: int = 64
    max_logits: int = 1 << 22
    """Values of one step, all rows together."""
    max_cached: int = 1 << 24
    """Positions of all rows together whose keys and values a request may hold."""

    def check(self, request: GenerationRequest) -> None:
        """Raises UsageError."""
        rows = len(request.prompts)
        _check(rows <= self.max_rows, f"{rows} prompts: at most {self.max_rows}")
        longest = max(map(len, request.prompts))
        most = MAX_CHARACTERS_PER_TOKEN * self.max_positions
        _check(longest <= most, f"a prompt of {longest} characters: at most {most} fit this model's positions")
        most = min(self.max_candidates, self.vocabulary)
        _check(request.top_candidates <= most, f"top_candidates {request.top_candidates} must be at most {most}")
        most = min(self.max_beam_width, self.vocabulary // 2)
        _check(request.beam_width <= most, f"beam_width {request.beam_width} must be at most {most}")
        if request.logits:
            most = self.max_logits // self.vocabulary
            _check(rows <= most, f"logits of {rows} prompts: at most {most} at a time")
        self.check_ids(request.stop_tokens, "stop token")

    def check_ids(self, ids: tuple[int, ...], what: str) -> None:
        outside = next((token for token in ids if not 0 <= token < self.vocabulary), None)
        _check(outside is None, f"{what} {outside}: ids of this model lie from 0 to {self.vocabulary - 1}")

    def check_cache(self, rows: int, positions: int) -> None:
        fits = rows * positions <= self.max_cached
        _check(fits, f"{rows} rows of {positions} tokens: the memory here takes {self.max_cached} in all")

    def check_length(self, row: int, given: int, new: int) -> None:
        """Of a row with so many given tokens, so many of them new."""
        _check(given > 0, f"prompt {row} is empty: give text, or ask for add_bos")
        if given + new > self.max_positions:
            raise UsageError(
                f"prompt {row} has {given} tokens and asks for {new} more: this model takes {self.max_positions} in all"
            )


@dataclass(frozen=True, kw_only=True)
class Control:
    """Of a request that is under way, or waits. `steps` belongs to `step`, which leaves the request paused."""

    action: Literal["pause", "resume", "step", "cancel"]
    request: str
    steps: int = 1

    def __post_init__(self) -> None:
        _check(self.steps >= 1, f"steps {self.steps} must be 1 or more")


Command = GenerationRequest | Control


def branch(request: GenerationRequest, row: int, ids: tuple[int, ...], token: int, new_id: str) -> GenerationRequest:
    """Another way on from row `row` of `request`: its tokens `ids` up to a place, then `token`. What was computed of
    `ids` is taken over, and later draws are the row's own."""
    return replace(
        request,
        id=new_id,
        prompts=((*ids, token),),
        continuations=(),
        seed=request.seed + row,
        add_bos=False,
        chat=False,
        prompt_log_probabilities=False,
        reuse_prefix=True,
    )


# ---- answering


@dataclass(frozen=True, kw_only=True)
class Candidate:
    id: int
    text: str
    log_probability: float


@dataclass(frozen=True, kw_only=True)
class Token:
    """`text` is its own: empty while bytes of a character are missing, which the token that completes it brings along.
    `delta` is what the row's text grows by: without stop tokens and stop words, nor what may be the beginning of one
    until it is known to be none."""

    row: int
    position: int
    id: int
    text: str
    delta: str = ""
    piece: str = ""
    """Of a token without text: how the vocabulary spells it."""
    origin: Origin
    log_probability: float | None = None
    """None: the first token of a row, and a prompt's that nobody scored."""
    candidates: tuple[Candidate, ...] = ()
    logits: bytes = b""
    """float32, little-endian, one value an id."""


@dataclass(frozen=True, kw_only=True)
class Beam:
    """A way on from the prompt. `log_probability` is the sum over `ids`."""

    ids: tuple[int, ...]
    text: str
    log_probability: float
    score: float
    finished: bool


@dataclass(frozen=True, kw_only=True)
class Started:
    """The first event of a request. `rows` are the prompts' tokens, unscored."""

    request: str
    rows: tuple[tuple[Token, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """One forward pass: what was drawn, forced or scored in it. Steps count from 1."""

    request: str
    step: int
    tokens: tuple[Token, ...]


@dataclass(frozen=True, kw_only=True)
class BeamsMoved:
    """The beams of a row after a step, best first."""

    request: str
    step: int
    row: int
    beams: tuple[Beam, ...]


@dataclass(frozen=True, kw_only=True)
class InputGradients:
    """Of a row, for each of its tokens but the last: d (log-probability of the continuation) / d x · x, with x the
    token's embedding as it enters the first layer (Denil et al., "Extraction of Salient Sentences from Labelled
    Documents", 2014). Nats."""

    request: str
    row: int
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class RowFinished:
    """`text` is what the row adds to its prompt: its tokens' deltas. `beams`, best first, of beam search."""

    request: str
    row: int
    reason: RowEnd
    text: str
    beams: tuple[Beam, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StateChanged:
    request: str
    state: Literal["waiting", "running", "paused"]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The last event of a request. `message` says why, where it was refused or failed."""

    request: str
    reason: RequestEnd
    message: str = ""


Event = Started | Stepped | BeamsMoved | InputGradients | RowFinished | StateChanged | Finished

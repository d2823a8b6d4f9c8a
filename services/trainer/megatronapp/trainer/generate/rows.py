"""A row of a request while it grows: what is known of its tokens, its text, and whether it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from megatronapp.core.generation import GenerationRequest, Limits, Origin, Prompt, RowEnd, Token
from megatronapp.trainer.data import Tokenizer
from megatronapp.trainer.generate.stops import TextUntilStop, end_of_row, stop_ids
from megatronapp.trainer.generate.text import GrowingText


@dataclass
class Row:
    """`ids` are the tokens known so far, the first `prompt` of them the prompt, the first `given` given."""

    number: int
    ids: list[int]
    prompt: int
    given: int
    most: int
    """Tokens that it draws at most."""
    stops: frozenset[int]
    text: GrowingText
    shown: TextUntilStop
    drawn: int = 0
    end: RowEnd | None = None
    prompt_texts: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    """The deltas so far."""

    def origin(self, position: int) -> Origin:
        return "prompt" if position < self.prompt else "forced" if position < self.given else "sampled"

    @property
    def draws(self) -> bool:
        """Whether the model is asked for its next token as soon as all known ones are computed."""
        return self.end is None and self.drawn < self.most

    def prompt_tokens(self) -> tuple[Token, ...]:
        self.prompt_texts = [self.text.add(token) for token in self.ids[: self.prompt]]
        return tuple(
            Token(
                row=self.number,
                position=position,
                id=token,
                text=text,
                piece=self.piece(token, text),
                origin="prompt",
            )
            for position, (token, text) in enumerate(zip(self.ids, self.prompt_texts, strict=False))
        )

    def piece(self, token: int, text: str) -> str:
        """Of one that adds no text."""
        return "" if text else self.text.piece(token)

    def given_token(self, position: int) -> tuple[str, str]:
        """Text and delta; asked for in order."""
        if position < self.prompt:
            return self.prompt_texts[position], ""
        text = self.text.add(self.ids[position])
        self.added.append(text)
        return text, text

    def draw(self, token: int) -> tuple[str, str]:
        """Take a drawn token; its text and delta. The row may have ended then."""
        self.ids.append(token)
        self.drawn += 1
        if token in self.stops:
            delta, text = self._rest(), self.text.add(token)
        else:
            text = self.text.add(token)
            delta = self.shown.feed(text)
        self.end = end_of_row(self.stops, token, self.shown.stopped, self.drawn, self.most)
        if self.end is not None and token not in self.stops:
            delta += self._rest()
        self.added.append(delta)
        return text, delta

    def cancel(self) -> None:
        self.end = "cancelled"
        self.added.append(self._rest())

    def _rest(self) -> str:
        """What was held back."""
        return self.shown.feed(self.text.end()) + self.shown.end()


def rows_of(request: GenerationRequest, tokenizer: Tokenizer, limits: Limits) -> list[Row]:
    """One a prompt. Raises UsageError for what this model does not take."""
    limits.check(request)
    stops = stop_ids(request, tokenizer.eod)
    rows = []
    for number, prompt in enumerate(request.prompts):
        given_ids = tuple(tokenizer.chat(prompt)) if request.chat and isinstance(prompt, str) else prompt
        ids = _ids(given_ids, tokenizer, limits, f"prompt {number}: token")
        if request.add_bos and ids[:1] != [tokenizer.bos]:
            ids.insert(0, tokenizer.bos)
        follows = request.continuations[number] if request.continuations else ()
        forced = _ids(follows, tokenizer, limits, f"continuation {number}: token")
        limits.check_length(number, len(ids), len(forced) + request.max_new_tokens)
        text, shown = GrowingText(tokenizer), TextUntilStop(request.stop_words)
        given = len(ids) + len(forced)
        rows.append(Row(number, [*ids, *forced], len(ids), given, request.max_new_tokens, stops, text, shown))
    return rows


def _ids(prompt: Prompt, tokenizer: Tokenizer, limits: Limits, what: str) -> list[int]:
    ids: Sequence[int] = tokenizer.tokenize(prompt) if isinstance(prompt, str) else prompt
    limits.check_ids(tuple(ids), what)
    return list(ids)

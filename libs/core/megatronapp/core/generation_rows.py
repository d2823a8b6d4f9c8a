"""A generation's rows, put together from its events."""

from __future__ import annotations

from dataclasses import dataclass, field

from megatronapp.core.generation import Beam, Event, InputGradients, RowFinished, Started, Stepped, Token


@dataclass
class Row:
    """`prompt` are its tokens as given, with what the model says of them where that was asked for."""

    prompt: list[Token] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    text: str = ""
    reason: str = ""
    beams: tuple[Beam, ...] = ()
    input_gradients: tuple[float, ...] = ()

    @property
    def all_tokens(self) -> list[Token]:
        return [*self.prompt, *self.tokens]


def take(rows: list[Row], event: Event) -> None:
    """What an event adds. A row that was not asked for is none."""
    match event:
        case Started(rows=prompts):
            for row, prompt in zip(rows, prompts, strict=False):
                row.prompt = list(prompt)
        case Stepped(tokens=tokens):
            for token in tokens:
                if 0 <= token.row < len(rows):
                    _add(rows[token.row], token)
        case InputGradients(row=number, values=values) if 0 <= number < len(rows):
            rows[number].input_gradients = values
        case RowFinished(row=number) if 0 <= number < len(rows):
            rows[number].text, rows[number].reason, rows[number].beams = event.text, event.reason, event.beams


def _add(row: Row, token: Token) -> None:
    """A scored token of the prompt takes the place of the same one unscored."""
    if token.origin != "prompt":
        row.tokens.append(token)
    elif 0 <= token.position < len(row.prompt):
        row.prompt[token.position] = token

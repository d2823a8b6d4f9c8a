"""What a viewer asks for, as text: a selector and operations, `layers[0:32:4].attn.probs | head(3) | last(256)`.

A tokenizer and recursive descent; nothing is ever evaluated. `str()` of a parsed expression is its canonical form,
which parses to the same.

    expression := selector ("|" operation)*
    selector   := ["model."] ["layers[" pick ("," pick)* "]."] name ("." name)*       a name may hold "*"
    pick       := "*" | number | [number] ":" [number] [":" number]
    operation  := name ["(" argument ("," argument)* ")"]                             arguments.OPERATIONS
    argument   := pick | name | name "=" (number | name) | name ("<" | ">") number
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NoReturn

from megatronapp.core.scope.arguments import MAX_INDEX, OPERATIONS, Argument, ExpressionError, build
from megatronapp.core.scope.operations import Operation, Pick, Selector, Slice

__all__ = ["Expression", "ExpressionError", "parse"]

MAX_CHARACTERS = 512
MAX_OPERATIONS = 8
MAX_PICKS = 32


@dataclass(frozen=True, slots=True)
class Expression:
    selector: Selector
    operations: tuple[Operation, ...] = ()

    def __str__(self) -> str:
        return " | ".join(map(str, (self.selector, *self.operations)))


def parse(text: str) -> Expression:
    """Raises ExpressionError, whatever the text."""
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(f"{len(text)} characters", MAX_CHARACTERS, f"at most {MAX_CHARACTERS}")
    return _Parser(text).expression()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_][\w]*)|(?P<sign>.))", re.A
)


_EXPERT = re.compile(r"\.\d+", re.A)
"""A part of a name that is a number, which the tokenizer takes for one below 1."""


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [
            _Token(match.lastgroup or "", match[match.lastgroup or 0], match.start(match.lastgroup or 0))
            for match in _TOKEN.finditer(text)
            if match.lastgroup and not match[match.lastgroup].isspace()
        ]
        self._at = 0

    def expression(self) -> Expression:
        selector = self._selector()
        operations: list[Operation] = []
        while self._accept("|"):
            if len(operations) == MAX_OPERATIONS:
                self._fail("too many operations", f"at most {MAX_OPERATIONS}")
            operations.append(self._operation())
        if self._next.kind != "end":
            self._fail(f"{self._next.text!r} is not expected", "operations follow each other with |")
        return Expression(selector, tuple(operations))

    @property
    def _next(self) -> _Token:
        return self._peek(0)

    def _peek(self, ahead: int) -> _Token:
        if self._at + ahead < len(self._tokens):
            return self._tokens[self._at + ahead]
        return _Token("end", "", len(self._text))

    def _accept(self, text: str) -> bool:
        found = self._next.kind != "end" and self._next.text == text
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self._fail(f"{text!r} is missing")

    def _fail(self, text: str, hint: str = "", position: int | None = None) -> NoReturn:
        raise ExpressionError(text, self._next.position if position is None else position, hint)

    def _selector(self) -> Selector:
        if self._next.text == "model" and self._peek(1).text == ".":
            self._at += 2
        layers: tuple[Pick, ...] = ()
        if self._next.text == "layers" and self._peek(1).text == "[":
            self._at += 2
            layers = self._picks()
            self._expect("]")
            self._expect(".")
        name = self._site_name()
        while (number := _EXPERT.fullmatch(self._next.text)) or self._accept("."):
            name += self._next.text if number else f".{self._site_name()}"
            self._at += bool(number)
        return Selector(name, layers)

    def _picks(self) -> tuple[Pick, ...]:
        picks = [self._pick()]
        while self._accept(","):
            picks.append(self._pick())
        if len(picks) > MAX_PICKS:
            self._fail(f"{len(picks)} ranges of layers", f"at most {MAX_PICKS}")
        return tuple(picks)

    def _site_name(self) -> str:
        """Letters, digits and `*`, which the tokenizer has cut apart."""
        start = end = self._next.position
        while self._next.position == end and (
            self._next.kind == "name"
            or self._next.text == "*"
            or (self._next.kind == "number" and self._next.text.isdigit())
        ):
            end += len(self._next.text)
            self._at += 1
        if end == start:
            self._fail("a site's name is missing", "such as layers[*].attn.q or logits")
        return self._text[start:end]

    def _pick(self) -> Pick:
        if self._accept("*"):
            return Slice()
        start = self._integer()
        if not self._accept(":"):
            if start is None:
                self._fail("a number or range is missing", "such as 3, 0:8 or *")
            return start
        stop = self._integer()
        stepped = self._accept(":")
        position = self._next.position
        step = self._integer() if stepped else None
        if step is not None and step < 1:
            self._fail(f"a step of {step}", "at least 1", position)
        return Slice(start, stop, step)

    def _integer(self) -> int | None:
        if self._next.kind != "number":
            return None
        if not re.fullmatch(r"-?\d{1,10}", self._next.text, re.A) or abs(int(self._next.text)) > MAX_INDEX:
            self._fail(f"{self._next.text} is not a whole number that an axis can have")
        self._at += 1
        return int(self._tokens[self._at - 1].text)

    def _operation(self) -> Operation:
        name = self._next
        if name.kind != "name":
            self._fail("an operation is missing", f"one of {', '.join(OPERATIONS)}")
        self._at += 1
        arguments: list[Argument] = []
        if self._accept("(") and not self._accept(")"):
            arguments.append(self._argument())
            while self._accept(","):
                arguments.append(self._argument())
            self._expect(")")
        return build(name.text, name.position, arguments)

    def _argument(self) -> Argument:
        token = self._next
        if token.kind == "number" and self._peek(1).text != ":":
            self._at += 1
            return Argument("number", token.position, number=_float(token))
        if token.kind != "name":
            return Argument("pick", token.position, pick=self._pick())
        self._at += 1
        if self._accept("="):
            value = self._next
            if value.kind not in ("name", "number"):
                self._fail(f"a value for {token.text} is missing")
            self._at += 1
            return Argument("pair", token.position, name=token.text, value=value.text)
        for sign in "<>":
            if self._accept(sign):
                bound = self._next
                if bound.kind != "number":
                    self._fail(f"a number after {sign} is missing")
                self._at += 1
                return Argument("condition", token.position, name=token.text, sign=sign, number=_float(bound))
        return Argument("word", token.position, name=token.text)


def _float(token: _Token) -> float:
    value = float(token.text)
    if not math.isfinite(value):
        raise ExpressionError(f"{token.text} is too large", token.position)
    return value

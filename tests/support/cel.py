"""Rules of the API server's language, CEL, evaluated: as much of it as the custom resource's rules are written in.

Numbers are whole ones, and division cuts off towards zero, as there.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

_TOKEN = re.compile(r"\s*(\d+|'[^']*'|[A-Za-z_]\w*|&&|\|\||[=!<>]=|[-+*/%<>!?:().,\[\]])")
_BINARY: list[dict[str, Callable[[Any, Any], Any]]] = [
    {
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
        "in": lambda one, some: one in some,
    },
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": lambda a, b: int(a / b), "%": lambda a, b: a - b * int(a / b)},
]
"""The loosest first; && and || are looser."""
Expression = Callable[[Mapping[str, Any]], Any]


def holds(rule: str, **names: Any) -> bool:
    """Whether an object keeps a rule. Raises ValueError for what is not of this part of CEL."""
    kept = _parsed(rule)(names)
    if not isinstance(kept, bool):
        raise ValueError(f"{rule} is {kept}, neither true nor false")
    return kept


@cache
def _parsed(rule: str) -> Expression:
    return _Parser(rule).parsed()


class _Parser:
    """Each method takes what it is called after, and gives what that is for given names."""

    def __init__(self, rule: str) -> None:
        self._left = []
        at = 0
        for token in _TOKEN.finditer(rule):
            if token.start() != at:
                break
            self._left.append(token[1])
            at = token.end()
        if rule[at:].strip():
            raise ValueError(f"not read: {rule[at:]}")
        self._left.reverse()

    def parsed(self) -> Expression:
        whole = self._choice()
        if self._left:
            raise ValueError(f"not read: {' '.join(reversed(self._left))}")
        return whole

    def _take(self, *wanted: str) -> str:
        """The next token, if it is one of those that are wanted; "" otherwise."""
        return self._left.pop() if self._left and self._left[-1] in wanted else ""

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise ValueError(f"{token} is missing before {' '.join(reversed(self._left))}")

    def _choice(self) -> Expression:
        asked = self._either()
        if not self._take("?"):
            return asked
        one = self._choice()
        self._expect(":")
        other = self._choice()
        return lambda names: one(names) if asked(names) else other(names)

    def _either(self) -> Expression:
        some = [self._all()]
        while self._take("||"):
            some.append(self._all())
        return some[0] if len(some) == 1 else lambda names: any(each(names) for each in some)

    def _all(self) -> Expression:
        some = [self._operation(0)]
        while self._take("&&"):
            some.append(self._operation(0))
        return some[0] if len(some) == 1 else lambda names: all(each(names) for each in some)

    def _operation(self, level: int) -> Expression:
        if level == len(_BINARY):
            return self._unary()
        found = self._operation(level + 1)
        while name := self._take(*_BINARY[level]):
            found = _applied(_BINARY[level][name], found, self._operation(level + 1))
        return found

    def _unary(self) -> Expression:
        if self._take("!"):
            of = self._unary()
            return lambda names: not of(names)
        return self._member()

    def _member(self) -> Expression:
        found = self._primary()
        while self._take("."):
            name = self._left.pop()
            found = _field(found, name) if not self._take("(") else self._called(found, name)
        return found

    def _primary(self) -> Expression:
        if self._take("("):
            inner = self._choice()
            self._expect(")")
            return inner
        if self._take("["):
            some = self._listed("]")
            return lambda names: [each(names) for each in some]
        token = self._left.pop()
        if token == "has" and self._take("("):
            return self._has()
        if token == "size" and self._take("("):
            (of,) = self._listed(")")
            return lambda names: len(of(names))
        if token in ("true", "false"):
            return lambda _: token == "true"
        if token.isdigit():
            return lambda _: int(token)
        return (lambda _: token[1:-1]) if token[0] == "'" else (lambda names: names[token])

    def _has(self) -> Expression:
        path = [self._left.pop()]
        while self._take("."):
            path.append(self._left.pop())
        self._expect(")")
        first, *between, last = path

        def there(names: Mapping[str, Any]) -> bool:
            within = names[first]
            for name in between:
                within = within[name]
            return last in within

        return there

    def _listed(self, end: str) -> list[Expression]:
        some = []
        while not self._take(end):
            some.append(self._choice())
            self._take(",")
        return some

    def _called(self, of: Expression, name: str) -> Expression:
        if name == "matches":
            (pattern,) = self._listed(")")
            return lambda names: re.search(pattern(names), of(names)) is not None
        each = self._left.pop()
        self._expect(",")
        (kept,) = self._listed(")")

        def count(names: Mapping[str, Any]) -> tuple[int, int]:
            some = list(of(names))
            return sum(kept({**names, each: one}) for one in some), len(some)

        if name == "all":
            return lambda names: len(set(count(names))) == 1
        if name == "exists_one":
            return lambda names: count(names)[0] == 1
        raise ValueError(f"{name} is not known here")


def _applied(function: Callable[[Any, Any], Any], one: Expression, other: Expression) -> Expression:
    return lambda names: function(one(names), other(names))


def _field(of: Expression, name: str) -> Expression:
    return lambda names: of(names)[name]

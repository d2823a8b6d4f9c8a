"""Arguments of operations: how each operation is written, and what is made of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from megatronapp.core.errors import DataError
from megatronapp.core.scope.operations import (
    AXES,
    CONDITIONS,
    STATISTICS,
    Compare,
    Elementwise,
    Every,
    Hist,
    Last,
    LogitLens,
    Operation,
    Pca,
    Pick,
    Pool,
    Reduce,
    Reducer,
    Replicas,
    Stats,
    Take,
    TopK,
    When,
)

MAX_INDEX = 1 << 31
MAX_BINS = 4096
MAX_TOP = 100
MAX_COMPONENTS = 3


class ExpressionError(DataError):
    """An expression that can't be understood: where, why, and what to write instead."""

    def __init__(self, text: str, position: int, hint: str = "") -> None:
        super().__init__(f"{text} at {position + 1}" + (f"; {hint}" if hint else ""))
        self.text, self.position, self.hint = text, position, hint


@dataclass(frozen=True, slots=True)
class Argument:
    """pick: `pick`; word: `name`; pair: `name=value`; condition: `name>number`."""

    kind: str
    position: int
    pick: Pick | None = None
    number: float | None = None
    name: str = ""
    sign: str = ""
    value: str = ""


class Arguments:
    """The arguments of one operation, taken one after the other."""

    def __init__(self, name: str, position: int, arguments: list[Argument]) -> None:
        self.name, self.position = name, position
        self._left = arguments

    def fail(self, argument: Argument | None = None) -> NoReturn:
        at = argument.position if argument else self.position
        raise ExpressionError(f"{self.name} does not take this", at, f"write {OPERATIONS[self.name].written}")

    def take(self, kind: str) -> Argument:
        if not self._left or self._left[0].kind != kind:
            self.fail(self._left[0] if self._left else None)
        return self._left.pop(0)

    def has(self, kind: str) -> bool:
        return bool(self._left) and self._left[0].kind == kind

    def whole(self, low: int, high: int) -> int:
        argument = self.take("number")
        value = argument.number or 0.0
        if value != int(value) or not low <= value <= high:
            raise ExpressionError(f"{self.name} takes a whole number from {low} to {high}", argument.position)
        return int(value)

    def word(self, allowed: tuple[str, ...]) -> str:
        argument = self.take("word")
        name = ALIASES.get(argument.name, argument.name)
        if name not in allowed:
            raise ExpressionError(
                f"{argument.name} is not known here", argument.position, f"one of {', '.join(allowed)}"
            )
        return name

    def pair(self, name: str, allowed: tuple[str, ...]) -> str:
        argument = self.take("pair")
        value = ALIASES.get(argument.value, argument.value)
        if argument.name != name or value not in allowed:
            self.fail(argument)
        return value

    def end(self) -> None:
        if self._left:
            self.fail(self._left[0])


ALIASES = {"tok": "token", "channel": "chan"}
_REDUCERS = tuple(str(reducer) for reducer in Reducer)


def build(name: str, position: int, given: list[Argument]) -> Operation:
    """Raises ExpressionError."""
    if name not in OPERATIONS:
        raise ExpressionError(f"there is no operation {name}", position, f"one of {', '.join(OPERATIONS)}")
    arguments = Arguments(name, position, given)
    built = OPERATIONS[name].build(arguments)
    arguments.end()
    return built


def _take(axis: str, arguments: Arguments) -> Take:
    return Take(axis, _taken_pick(arguments))


def _taken_pick(arguments: Arguments) -> Pick:
    if arguments.has("number"):
        return arguments.whole(-MAX_INDEX, MAX_INDEX)
    pick = arguments.take("pick").pick
    if pick is None:
        arguments.fail()
    return pick


def _stats(arguments: Arguments) -> Stats:
    names: list[str] = []
    while arguments.has("word"):
        argument = arguments.take("word")
        if argument.name not in STATISTICS and not re.fullmatch(r"p(?!00)\d\d", argument.name, re.A):
            hint = f"one of {', '.join(STATISTICS)}, p01 to p99"
            raise ExpressionError(f"there is no statistic {argument.name}", argument.position, hint)
        if argument.name not in names:
            names.append(argument.name)
    if not names:
        arguments.fail()
    if not arguments.has("pair"):
        return Stats(tuple(names))
    return Stats(tuple(names), arguments.pair("over", AXES))


def _hist(arguments: Arguments) -> Hist:
    bins = arguments.whole(2, MAX_BINS)
    if not arguments.has("number"):
        if arguments.has("word"):
            arguments.word(("asinh",))
        return Hist(bins)
    low, high = (arguments.take("number") for _ in range(2))
    if (low.number or 0.0) >= (high.number or 0.0):
        raise ExpressionError("the histogram's range is empty", low.position, "write the lower end first")
    return Hist(bins, low.number, high.number)


def _pca(arguments: Arguments) -> Pca:
    components = arguments.whole(1, MAX_COMPONENTS)
    if not arguments.has("pair"):
        return Pca(components)
    arguments.pair("basis", ("pinned",))
    return Pca(components, pinned=True)


def _when(arguments: Arguments) -> When:
    if arguments.has("word"):
        return When(arguments.word(("nonfinite",)))
    condition = arguments.take("condition")
    if condition.name not in CONDITIONS:
        raise ExpressionError(
            f"{condition.name} is no condition", condition.position, f"one of nonfinite, {', '.join(CONDITIONS)}"
        )
    return When(condition.name, condition.sign, condition.number or 0.0)


def _pool(arguments: Arguments) -> Pool:
    axis, bins = arguments.word(AXES), arguments.whole(1, MAX_BINS)
    return Pool(axis, bins, Reducer(arguments.word(_REDUCERS)) if arguments.has("word") else Reducer.MEAN)


def _reduce(how: Reducer, arguments: Arguments) -> Reduce:
    return Reduce(how, arguments.word(AXES))


def _compare(how: str, arguments: Arguments) -> Compare:
    return Compare(how, arguments.take("word").name)


@dataclass(frozen=True, slots=True)
class _Spelling:
    written: str
    build: Callable[[Arguments], Operation]


OPERATIONS: dict[str, _Spelling] = {
    **{
        name: _Spelling(f"{name}(3), {name}(-128:) or {name}(0:64:4)", partial(_take, ALIASES.get(name, name)))
        for name in (*AXES, "tok")
    },
    "last": _Spelling("last(256)", lambda arguments: Last(arguments.whole(1, MAX_INDEX))),
    "pool": _Spelling("pool(chan,64,absmax)", _pool),
    **{how: _Spelling(f"{how}(chan)", partial(_reduce, Reducer(how))) for how in _REDUCERS},
    "norm": _Spelling("norm(chan)", partial(_reduce, Reducer.L2)),
    "stats": _Spelling("stats(mean,std,absmax,p50,nonfinite) or stats(mean,over=chan)", _stats),
    "hist": _Spelling("hist(64,asinh) or hist(64,-1,1)", _hist),
    "topk": _Spelling("topk(20)", lambda arguments: TopK(arguments.whole(1, MAX_TOP))),
    "abs": _Spelling("abs", lambda _: Elementwise("abs")),
    "sqrt": _Spelling("sqrt", lambda _: Elementwise("sqrt")),
    "logitlens": _Spelling("logitlens(5)", lambda arguments: LogitLens(arguments.whole(1, MAX_TOP))),
    "pca": _Spelling("pca(2) or pca(2,basis=pinned)", _pca),
    **{how: _Spelling(f"{how}(baseline)", partial(_compare, how)) for how in ("diff", "kl", "cos")},
    "replicas": _Spelling("replicas", lambda _: Replicas()),
    "every": _Spelling("every(10)", lambda arguments: Every(arguments.whole(1, MAX_INDEX))),
    "when": _Spelling("when(nonfinite) or when(absmax>1000)", _when),
}

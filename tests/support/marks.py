"""Which of many layouts CI plays; `make test-exhaustive` plays all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
Several = TypeVar("Several", bound=tuple[Any, ...])


def some(cases: Iterable[T], chosen: Callable[[T], bool]) -> list[Any]:
    """For parametrize with one name: all cases, of which those that are not chosen are left to `make
    test-exhaustive`."""
    return [pytest.param(case, marks=() if chosen(case) else pytest.mark.exhaustive) for case in cases]


def some_of_several(cases: Iterable[Several], chosen: Callable[[Several], bool]) -> list[Any]:
    """The same with several names, a value each in a case."""
    return [pytest.param(*case, marks=() if chosen(case) else pytest.mark.exhaustive) for case in cases]


def briefly(cases: Iterable[Any], few: int, many: int) -> list[Any]:
    """For parametrize with a count as its last name: `make test` plays the cases that bear no mark with `few`,
    `make test-long` all cases with `many`."""
    found = [case if hasattr(case, "marks") else pytest.param(*case) for case in cases]
    brief = [pytest.param(*case.values, few) for case in found if not case.marks]
    return brief + [pytest.param(*case.values, many, marks=pytest.mark.long) for case in found]

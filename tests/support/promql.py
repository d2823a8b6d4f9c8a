"""What a PromQL query reads: metric names and the labels it looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import promql_parser
from promql_parser import VectorSelector


@dataclass(frozen=True)
class Selected:
    name: str
    labels: frozenset[str]
    """Labels that the selector compares."""


def selectors(query: str) -> set[Selected]:
    """Every series selector of a query. Raises ValueError for what is no PromQL."""
    found: set[Selected] = set()
    _collect(promql_parser.parse(query), found)
    return found


def names(query: str) -> set[str]:
    return {selected.name for selected in selectors(query)}


def _collect(node: Any, found: set[Selected]) -> None:
    if isinstance(node, VectorSelector):
        labels = frozenset(matcher.name for matcher in node.matchers.matchers)
        found.add(Selected(node.name or "", labels))
        return
    for attribute in ("lhs", "rhs", "expr", "param", "vector_selector"):
        child = getattr(node, attribute, None)
        if child is not None:
            _collect(child, found)
    for argument in getattr(node, "args", None) or ():
        _collect(argument, found)


def base_name(name: str) -> str:
    """A histogram's series as its metric."""
    for suffix in ("_bucket", "_sum", "_count"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name

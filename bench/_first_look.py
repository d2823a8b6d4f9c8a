"""What the page's Generate view asks a rank for before anybody has chosen anything.

The page's own test and this module read the same file: neither can change without the other. The gateway's part of the
way, fitting and planning, is its own code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from megatronapp.core.scope.expression import Expression, parse
from megatronapp.core.scope.operations import Selector
from megatronapp.core.scope.plan import Plan, plan
from megatronapp.core.scope.sites import Axis
from megatronapp.gateway.scope.streams import UNLIMITED, fitted

FILE = Path(__file__).resolve().parents[1] / "tests" / "data" / "scope" / "first_look.json"
PROMPTS = 4
"""That the subscriptions in the file are of."""


def subscriptions() -> list[dict[str, Any]]:
    """`ScopeSubscribe` messages as JSON has them, without id and request."""
    found: list[dict[str, Any]] = json.loads(FILE.read_text())
    return found


def taps(sites: Sequence[Mapping[str, Any]], max_positions: int, request: str) -> list[dict[str, Any]]:
    """`ScopeTap` messages, as JSON has them, of a model on one rank: `sites` and `max_positions` as its hello tells."""
    axes = {site["name"]: [Axis(axis["name"], axis["size"]) for axis in site["axes"]] for site in sites}
    return list(_taps(axes, max_positions, request))


def _taps(axes: Mapping[str, Sequence[Axis]], max_positions: int, request: str) -> Iterator[dict[str, Any]]:
    for number, asked in enumerate(subscriptions(), start=1):
        expression = parse(asked["expression"])
        selector = expression.selector
        planned = _planned(expression, axes[selector.site], max_positions)
        shown = fitted(expression, planned.axes, planned.sizes, asked["width"], asked["height"])
        planned = _planned(shown, axes[selector.site], max_positions)
        of_rank = Expression(Selector(selector.site, selector.layers), planned.rank)
        yield {
            "id": number,
            "expression": str(of_rank),
            "partial": planned.partial,
            "max_fps": asked["maxFps"],
            "request": request,
        }


def _planned(expression: Expression, axes: Sequence[Axis], tokens: int) -> Plan:
    expected = {"batch": 1, "token": tokens, "query": tokens, "key": tokens}
    return plan(expression, expression.selector.site, axes, expected=expected, max_bytes=UNLIMITED)

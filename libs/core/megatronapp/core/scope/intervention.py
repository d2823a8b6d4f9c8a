"""What is done to a forward pass: one change of values, asked for by a plan or by a request for text.

A request that carries interventions is computed with them, alone and to its end; from what it keeps of itself (`keep`)
others may take values, by its id. So patching is two requests, however the model is spread over ranks:

    GenerationRequest(id="a", prompts=("… Paris",), keep=("layers[*].resid_post",), …)
    GenerationRequest(id="b", prompts=("… Rome",), interventions=(patch("resid_post", source="a", layers="5"),), …)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from megatronapp.core.errors import DataError

MAX_INTERVENTIONS = 1024
"""Of one request."""
MAX_VECTOR = 1 << 14
MAX_KEPT = 32
"""Selectors of one request."""
PATCH, MEAN, STEER = "patch", "mean", "steer"
FROM_VALUES = (PATCH, MEAN, STEER)
"""Kinds whose values come from elsewhere than the pass itself."""


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """See the tables of docs/scope.md#perturbation. Selections are ranges ("10:20", "0,3"); empty: all."""

    place: str = "calculation"
    site: str = ""
    kind: str = "noise1"
    coefficient: float = 0.0
    layers: str = ""
    heads: str = ""
    tokens: str = ""
    channels: str = ""
    steps: str = ""
    rows: str = ""
    """Of the batch: prompts of a request."""
    bits: str = ""
    with_heads: str = ""
    redraw: bool = False
    off: bool = False
    source: str = ""
    """Of patch, mean and steer: the request whose kept values are taken."""
    source_tokens: str = ""
    """Of patch: the source's tokens that come to `tokens`, as many, one by one in their order; empty: the same ones."""
    baseline: str = ""
    """Of steer: the request whose mean is taken away from the source's."""
    vector: tuple[float, ...] = ()
    """Of mean and steer in place of `source`: values along the site's last axis."""
    keep_in_checkpoints: bool = False

    @classmethod
    def parse(cls, document: Any) -> Intervention:
        """Of a `ScopePerturbation`'s fields. Raises DataError. A field that is not known is left out."""
        if not isinstance(document, Mapping):
            raise DataError("a perturbation must be an object")
        given = {field.name: document[field.name] for field in fields(cls) if field.name in document}
        if type(given.get("coefficient")) is int:
            given["coefficient"] = float(given["coefficient"])
        if "vector" in given:
            given["vector"] = _vector(given["vector"])
        for field in fields(cls):
            if field.name in given and type(given[field.name]) is not type(field.default):
                raise DataError(f"{field.name} of a perturbation can't be {given[field.name]!r:.40}")
        return cls(**given)


def _vector(values: Any) -> tuple[float, ...]:
    if not isinstance(values, Sequence) or len(values) > MAX_VECTOR or not all(type(v) in (int, float) for v in values):
        raise DataError(f"vector of a perturbation holds at most {MAX_VECTOR} numbers")
    return tuple(float(value) for value in values)


def patch(site: str, source: str, **where: Any) -> Intervention:
    """Values of the request `source`, at the same tokens or its `source_tokens`; of its one row, or the row of the same
    number."""
    return Intervention(kind=PATCH, site=site, source=source, **where)


def mean_ablation(site: str, source: str, **where: Any) -> Intervention:
    """The mean over all rows and tokens of the request `source`, of each head and channel."""
    return Intervention(kind=MEAN, site=site, source=source, **where)


def zero_ablation(site: str, **where: Any) -> Intervention:
    return Intervention(kind="zero", site=site, **where)


def steer(site: str, vector: Sequence[float], scale: float = 1.0, **where: Any) -> Intervention:
    """x + scale · vector, along the last axis."""
    return Intervention(kind=STEER, site=site, vector=tuple(map(float, vector)), coefficient=scale, **where)


def steer_between(site: str, source: str, baseline: str, scale: float = 1.0, **where: Any) -> Intervention:
    """x + scale · (mean of `source` − mean of `baseline`): the difference of means of two sets of prompts."""
    return Intervention(kind=STEER, site=site, source=source, baseline=baseline, coefficient=scale, **where)

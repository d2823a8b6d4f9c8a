"""What shall be disturbed: a plan as it was asked for, checked before anything is done."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from megatronapp.core.errors import DataError
from megatronapp.core.generation import GenerationRequest
from megatronapp.core.scope.intervention import FROM_VALUES, PATCH, STEER, Intervention
from megatronapp.trainer.plugins.scope.perturb import kinds
from megatronapp.trainer.plugins.scope.perturb.ranges import Ranges

PLACES = ("storage", "calculation", "system")
SWAP_HEADS = "swap_heads"
OF_SITES = (*kinds.ELEMENTWISE, SWAP_HEADS, *FROM_VALUES)
SITES_BETWEEN_LAYERS = ("resid_pre", "resid_post", "embed")
DEFAULT_SITE = {"storage": "*.linear_*.weight", "calculation": "mlp.out", "system": "resid_post"}
MAX_PERTURBATIONS = 64
SHARE_OF_CHANNELS = 8
"""A constant that no channels were named for goes to one in so many: added to all of them it would be taken away again
by the next layer's norm."""


@dataclass(frozen=True, kw_only=True)
class Perturbation:
    """One of a plan. `site` is a glob of site names, of storage of weights' names."""

    place: str
    site: str
    kind: str
    coefficient: float
    layers: Ranges
    heads: Ranges
    tokens: Ranges
    channels: Ranges
    steps: Ranges
    rows: Ranges
    bits: str
    with_heads: Ranges
    source: str
    source_tokens: Ranges
    """As many as `tokens`, in their order; none: the same ones."""
    baseline: str
    vector: tuple[float, ...]
    redraw: bool
    """Noise of each forward its own; else each element's is the same in all steps and samples."""
    keep_in_checkpoints: bool
    seed: int
    number: int
    """In its plan: two of the same seed draw differently."""
    replica: int | None
    """The one data-parallel replica that is disturbed; None: all, alike."""
    request: str
    """The one generation that is disturbed; empty: whatever runs."""


@dataclass(frozen=True)
class Plan:
    """Those of a plan that are on."""

    name: str
    perturbations: tuple[Perturbation, ...]
    request: str = ""
    """The one generation that is disturbed; empty: whatever runs."""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Plan:
        """Of a `ScopePerturb`'s fields. Raises DataError, which says what to write instead."""
        wishes = document.get("perturbations", [])
        if not isinstance(wishes, list) or not 0 < len(wishes) <= MAX_PERTURBATIONS:
            raise DataError(f"a plan holds 1 to {MAX_PERTURBATIONS} perturbations")
        seed, replica = _whole(document, "seed") or 0, _whole(document, "replica")
        parsed = [Intervention.parse(wish) for wish in wishes]
        request = str(document.get("request", ""))
        if not request and any(wish.kind == PATCH for wish in parsed):
            raise DataError("patch belongs to one generation: name it as request")
        return cls(str(document.get("plan", "")), _all_checked(parsed, seed, replica, request), request)

    @classmethod
    def of_request(cls, request: GenerationRequest) -> Plan:
        """Of the interventions that it carries. Raises DataError."""
        made = _all_checked(request.interventions, request.intervention_seed, None, request.id)
        return cls(request.id, made, request.id)


def _whole(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)  # as JSON writes 64 bits
    if value is not None and (type(value) is not int or not 0 <= value < 1 << 64):
        raise DataError(f"{name} of a plan must be a whole number, not {value!r:.40}")
    return value


def _all_checked(
    wishes: Iterable[Intervention], seed: int, replica: int | None, request: str
) -> tuple[Perturbation, ...]:
    return tuple(_checked(wish, seed, number, replica, request) for number, wish in enumerate(wishes) if not wish.off)


def _checked(wish: Intervention, seed: int, number: int, replica: int | None, request: str) -> Perturbation:
    _check_kind(wish)
    made = Perturbation(
        place=wish.place,
        site=wish.site or DEFAULT_SITE[wish.place],
        kind=wish.kind,
        coefficient=wish.coefficient,
        layers=Ranges.parse(wish.layers),
        heads=Ranges.parse(wish.heads),
        tokens=Ranges.parse(wish.tokens),
        channels=Ranges.parse(wish.channels or (f"::{SHARE_OF_CHANNELS}" if wish.kind == "constant" else "")),
        steps=Ranges.parse(wish.steps),
        rows=Ranges.parse(wish.rows),
        bits=wish.bits,
        with_heads=Ranges.parse(wish.with_heads),
        source=wish.source,
        source_tokens=Ranges.parse(wish.source_tokens),
        baseline=wish.baseline,
        vector=wish.vector,
        redraw=wish.redraw,
        keep_in_checkpoints=wish.keep_in_checkpoints,
        seed=seed,
        number=number,
        replica=replica,
        request=request,
    )
    if wish.kind == SWAP_HEADS:
        _check_swap(made)
    if made.source_tokens.picks:
        _check_source_tokens(made)
    return made


def _check_kind(wish: Intervention) -> None:
    if wish.place not in PLACES:
        raise DataError(f"place {wish.place!r:.40}: write one of {', '.join(PLACES)}")
    if wish.kind not in OF_SITES:
        raise DataError(f"kind {wish.kind!r:.40} is not known in a training: write one of {', '.join(OF_SITES)}")
    if not math.isfinite(wish.coefficient):
        raise DataError("a coefficient must be a finite number")
    kinds.check(wish.kind, wish.coefficient, wish.bits)
    _check_source(wish)
    of_values = wish.kind in (SWAP_HEADS, *FROM_VALUES)
    if wish.place == "storage" and (of_values or wish.heads or wish.tokens or wish.rows):
        raise DataError("weights have neither heads, tokens nor rows: choose them by name, layers, and channels")
    if wish.place == "system" and wish.site and wish.site not in SITES_BETWEEN_LAYERS:
        raise DataError(f"between layers are the sites {', '.join(SITES_BETWEEN_LAYERS)}, not {wish.site!r:.40}")


def _check_source(wish: Intervention) -> None:
    if wish.kind not in FROM_VALUES:
        if wish.source or wish.baseline or wish.vector:
            raise DataError(f"{wish.kind} takes no values from elsewhere: leave source, baseline and vector away")
        return
    if bool(wish.source) == bool(wish.vector) or (wish.kind == PATCH and wish.vector):
        other = "" if wish.kind == PATCH else ", or a vector"
        raise DataError(f"{wish.kind} needs the id of a generation that kept the site as its source{other}")
    if wish.baseline and (wish.kind != STEER or not wish.source):
        raise DataError("a baseline belongs to a steering source")
    if not all(map(math.isfinite, wish.vector)):
        raise DataError(f"the vector of a {wish.kind} must hold finite numbers")


def _check_source_tokens(made: Perturbation) -> None:
    tokens, there = made.tokens.numbers(), made.source_tokens.numbers()
    if made.kind != PATCH or not there or len(tokens) != len(there) or len(set(tokens)) != len(tokens):
        raise DataError("source_tokens belong to a patch: as many as tokens, each token named once, such as 4 with 2")


def _check_swap(made: Perturbation) -> None:
    heads, others = made.heads.numbers(), made.with_heads.numbers()
    if not heads or len(heads) != len(others) or len({*heads, *others}) != 2 * len(heads):
        raise DataError("swap_heads takes as many heads as with_heads, each named once, such as 0,1 with 4,5")

"""From what the rules suspect to what is said: one verdict a rank, the best founded one; else `unknown`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.rules import fabric_slow, imbalance, nccl_links, slow_gpu, slow_host, slow_link, unknown
from megatronapp.detector.rules.base import Rule, Suspicion, View
from megatronapp.detector.rules.transfers import Culprit, locate


def _slow_transfers(view: View) -> Iterator[Suspicion]:
    """What NCCL tells of one rank is more exact than what marks around calls tell of several."""
    of_nccl = list(nccl_links.detect(view))
    yield from of_nccl
    named = {rank for each in of_nccl if each.cause is not Cause.UNKNOWN or len(each.ranks) == 1 for rank in each.ranks}
    located = locate(view)
    yield from slow_link.detect(view, (each for each in located.culprits if not _holds_more(each, named)))
    yield from fabric_slow.detect(view, located)


def _holds_more(culprit: Culprit, named: set[int]) -> bool:
    return len(culprit.ranks) > 1 and not named.isdisjoint(culprit.ranks)


RULES: tuple[Rule, ...] = (
    slow_gpu.detect,
    slow_host.detect,
    _slow_transfers,
    imbalance.detect,
    unknown.detect,
)
"""In order of precedence: what names a reason within the rank comes before what only shows between ranks."""
FAR_MORE = 2.0
"""A later rule takes a rank from an earlier one when it explains so many times the lost seconds. It is not finely
set: with any value from 1 to 4 the same 16 simulated jobs of late hosts, data, links and two faults at once are judged
alike (`python -m bench.scale.constants --only FAR_MORE --trials 4`)."""
OF_ONE_RANK = {Kind.SLOW_GPU, Kind.SLOW_HOST, Kind.SLOW_LINK, Kind.UNKNOWN}


def attribute(view: View) -> list[Suspicion]:
    """Everything there is to say of this step."""
    return settle(suspicion for rule in RULES for suspicion in rule(view))


def settle(suspicions: Iterable[Suspicion]) -> list[Suspicion]:
    """Leave one verdict for each set of ranks, and drop what others explain.

    A link is not slow when the fabric is; nothing is unknown where something is known.
    """
    chosen: dict[tuple[Kind | None, tuple[int, ...]], Suspicion] = {}
    for suspicion in suspicions:
        alone = suspicion.kind in OF_ONE_RANK and bool(suspicion.ranks)
        key = (None if alone else suspicion.kind, suspicion.ranks)
        known = chosen.get(key)
        if known is None:
            chosen[key] = suspicion
        elif _outweighs(suspicion, known):
            chosen[key] = replace(suspicion, outweighs=known.outweighs or known.kind)
    return _explained(list(chosen.values()))


def _outweighs(later: Suspicion, earlier: Suspicion) -> bool:
    return later.kind is not Kind.UNKNOWN and later.lost_seconds > FAR_MORE * earlier.lost_seconds


def _explained(suspicions: list[Suspicion]) -> list[Suspicion]:
    kinds = {s.kind for s in suspicions}
    culprits = {rank for s in suspicions if s.kind in {Kind.SLOW_GPU, Kind.SLOW_HOST} for rank in s.ranks}
    kept = list[Suspicion]()
    for s in suspicions:
        by_fabric = s.kind is Kind.SLOW_LINK and Kind.FABRIC_SLOW in kinds
        by_culprit = bool(culprits) if s.kind is Kind.UNKNOWN else not culprits.isdisjoint(s.involved)
        if not (by_fabric or by_culprit):
            kept.append(s)
    return kept

"""What is said of ranks that make others wait (late_ranks.py): suspicions, and who is late in which group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import numpy as np

from megatronapp.core.findings import Cause, Evidence, Kind
from megatronapp.core.wording import ranks_named
from megatronapp.detector.formats.late_ranks import Slow, Work
from megatronapp.detector.formats.own_work import MatchedOperations
from megatronapp.detector.report import Bottleneck, GroupLateness, Parallel, StageWork
from megatronapp.detector.rules.base import Suspicion, percent

STANDS_OUT = 1.1
"""A stage is a bottleneck if it works so many times as long as the next one."""


def suspicions(slow: Iterable[Slow]) -> list[Suspicion]:
    return [_suspicion(each) for each in slow]


def _suspicion(slow: Slow) -> Suspicion:
    names = ranks_named(slow.ranks).capitalize()
    beside = "before" if slow.beside_own_past else "other ranks of the same stage"
    more = percent(slow.effect_ratio)
    lost = (
        f"{more} longer in what follows operations of {slow.communicator}, as all its members do"
        if slow.communicator
        else f"{more} longer between calls of NCCL than {beside}, {slow.lost_seconds:.2f} s in all"
    )
    until = "the end of the log" if slow.ended_ns is None else _moment(slow.ended_ns)
    when = f"from {_moment(slow.began_ns)} to {until} (UTC)"
    doubt = "" if slow.certain else " Its clock may be ahead by as much; a log of a longer time would tell."
    return Suspicion(
        kind=Kind.SLOW_LINK if slow.communicator else Kind.UNKNOWN,
        cause=Cause.UNKNOWN,
        ranks=slow.ranks,
        since_step=None,
        effect_ratio=slow.effect_ratio,
        evidence=(_evidence(slow),),
        summary=f"{names} {'take' if len(slow.ranks) > 1 else 'takes'} {lost}, {when}.{doubt}",
        advice="Check the links between these ranks."
        if slow.communicator
        else "Host calls do not tell whether device or host is slow: look at the GPU's clocks and the host's load.",
        confidence=0.95 if slow.certain else 0.5,
        pages=slow.certain and slow.ended_ns is None,
        page_steps=0,
        cost_ratio=slow.cost_ratio,
    )


def _evidence(slow: Slow) -> Evidence:
    stretches = tuple(range(len(slow.ratios)))
    text = "own work ÷ expected, in stretches of the log"
    return Evidence(signal="own_work", text=text, steps=stretches, values=slow.ratios, expected=(1.0,) * len(stretches))


def _moment(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns // 10**9, UTC).strftime("%H:%M:%S")


def parallel(work: Work, slow: Iterable[Slow]) -> Parallel:
    layout = work.layout
    stages = tuple(_stage_work(work))
    return Parallel(
        tp=layout.tp,
        dp=layout.dp,
        pp=layout.pp,
        source=layout.source,
        clocks_corrected=work.clocks.corrected,
        groups=tuple(_lateness(work, operations) for operations in work.matched.operations),
        stages=stages,
        bottlenecks=(*_slow_ranks(work, slow), *_slow_stage(stages)),
    )


def _lateness(work: Work, operations: MatchedOperations) -> GroupLateness:
    at = operations.at - np.array([work.clocks.ahead[rank] for rank in operations.members])
    late = at - at.min(axis=1, keepdims=True)
    last = np.bincount(np.argmax(at, axis=1), minlength=at.shape[1]) / len(at)
    return GroupLateness(
        kind=work.layout.kind(operations.members),
        communicator=operations.group,
        ranks=operations.members,
        operations=len(at),
        late_seconds=tuple(float(each) for each in late.mean(axis=0)),
        last_ratio=tuple(float(each) for each in last),
    )


def _stage_work(work: Work) -> Iterator[StageWork]:
    for stage, ranks in work.stages().items():
        shares = [float(np.nansum(work.seconds[rank])) / work.span_seconds for rank in ranks]
        yield StageWork(stage=stage, ranks=tuple(ranks), work_ratio=float(np.median(shares)))


def _slow_ranks(work: Work, slow: Iterable[Slow]) -> Iterator[Bottleneck]:
    for each in slow:
        if len(each.ranks) > 1 or each.beside_own_past or not each.certain:
            continue
        rank, place = each.ranks[0], work.layout.place(each.ranks[0])
        kind = "TP" if work.layout.tp > 1 else "DP"
        which = f"tensor rank {place[0]}, data rank {place[1]}, stage {place[2]}"
        text = f"rank {rank} ({which}) works {percent(each.effect_ratio)} longer than its peers; its groups wait for it"
        yield Bottleneck(kind=kind, ranks=each.ranks, text=text)


def _slow_stage(stages: tuple[StageWork, ...]) -> Iterator[Bottleneck]:
    if len(stages) < 2:
        return
    longest, second = sorted(stages, key=lambda stage: -stage.work_ratio)[:2]
    if second.work_ratio > 0 and longest.work_ratio >= STANDS_OUT * second.work_ratio:
        more = percent(longest.work_ratio / second.work_ratio)
        text = (
            f"stage {longest.stage} works {more} longer than the next one: it has more work, or all its ranks are slow"
        )
        yield Bottleneck(kind="PP", ranks=longest.ranks, text=text)

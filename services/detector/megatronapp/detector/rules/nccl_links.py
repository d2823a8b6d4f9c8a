"""slow_link, fabric_slow: what NCCL tells of transfers and of the waits of its proxies."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.nccl_watch import SEND, SEND_BESIDE, TRANSFER, TRANSFER_BESIDE, NcclView
from megatronapp.detector.rules import nccl_sends
from megatronapp.detector.rules.base import Suspicion, View, confidence, evidence, patience
from megatronapp.detector.rules.nccl_sends import SlowSends
from megatronapp.detector.rules.transfers import LINK_ENDS, MAJORITY, SEVERAL, SHOWN
from megatronapp.detector.signals.nccl_operations import MESSAGE, Transfer
from megatronapp.detector.signals.tomography import Cleared, Path, culprits

ADVICE = "Check the network port, cable and switch of this link's ends."
MANY = 8
"""Ranks of SEVERAL nodes whose sends become slow together are so for what they share."""
SENDERS_STEPS = 3
"""A transfer that is slow for fewer steps is left to its senders' proxies, where they tell: they know more."""
_PROXIES = "wait of NCCL's proxies for a byte to be sent"
Alarm = tuple[str, int]
"""Signal and item."""


def detect(view: View) -> Iterator[Suspicion]:
    if view.nccl is None:
        return
    sends, slow = _alarms(view, (SEND, SEND_BESIDE)), _alarms(view, (TRANSFER, TRANSFER_BESIDE))
    if not sends and not slow:
        return
    worst = max(sends or slow, key=lambda alarm: _effect(view, alarm))
    showing = _showing(view, worst, view.nccl.waits)
    if _is_fabric(view, showing, len(view.nccl.waits)):
        yield _fabric(view, worst, len(showing), len(view.nccl.waits))
        return
    located = list(nccl_sends.located(view.nccl, *_placed(view, sends)))
    for each in located:
        yield _slow_sends(view, each)
    known = frozenset(rank for each in located for rank in (*each.ranks, *each.senders))
    yield from _slow_transfers(
        view, view.nccl, [each for each in slow if not _is_for_senders(view, view.nccl, each)], known
    )


def _alarms(view: View, signals: Sequence[str]) -> list[Alarm]:
    """Of each item the signal that shows most."""
    found: dict[int, Alarm] = {}
    for signal in signals:
        for item in view.alarmed(signal):
            known = found.get(item)
            if known is None or _effect(view, (signal, item)) > _effect(view, known):
                found[item] = signal, item
    return list(found.values())


def _effect(view: View, alarm: Alarm) -> float:
    return float(view.monitors[alarm[0]].effect[alarm[1]])


def _showing(view: View, alarm: Alarm, ranks: Iterable[int]) -> frozenset[int]:
    """Those whose sends have been slow since an alarm; some show it before their own, and for a while after it."""
    steps, least = view.monitors[alarm[0]].steps_since(alarm[1]), SHOWN * _effect(view, alarm)
    return frozenset(
        rank for rank in ranks if any(_shows(view, (signal, rank), least, steps) for signal in (SEND, SEND_BESIDE))
    )


def _shows(view: View, item: Alarm, least: float, steps: int) -> bool:
    monitor = view.monitors[item[0]]
    return item[1] < len(monitor) and monitor.typical(item[1], steps) >= least


def _is_fabric(view: View, showing: frozenset[int], senders: int) -> bool:
    places = [place for rank in showing if (place := view.rank_index(rank)) is not None]
    nodes = len(set(view.table.ranks.node[places].tolist()))
    return len(showing) > max(LINK_ENDS, MAJORITY * senders) or (nodes >= SEVERAL and len(showing) >= MANY)


def _is_for_senders(view: View, nccl: NcclView, alarm: Alarm) -> bool:
    own = [nccl.waits.get(rank) for rank in nccl.ends[nccl.keys[alarm[1]]][0]]
    tells = any(waits is not None and waits.sending is not None for waits in own)
    return tells and view.monitors[alarm[0]].steps_since(alarm[1]) < SENDERS_STEPS


def _placed(
    view: View, sends: Sequence[Alarm]
) -> tuple[dict[Alarm, float], Callable[[Alarm], int], Callable[[int], str]]:
    """Their effects, when each began, and where ranks are."""

    def node_of(rank: int) -> str:
        place = view.rank_index(rank)
        return str(view.table.ranks.node[place]) if place is not None else ""

    return {alarm: _effect(view, alarm) for alarm in sends}, partial(_since, view), node_of


def _since(view: View, alarm: Alarm) -> int:
    return int(view.monitors[alarm[0]].since[alarm[1]])


def _slow_sends(view: View, found: SlowSends) -> Suspicion:
    said = nccl_sends.ratio_text(found.alarm, math.exp(_effect(view, found.alarm)), _since(view, found.alarm))
    return _suspicion(
        view,
        found.alarm,
        ranks=found.ranks,
        cause=Cause.NIC if view.profile.link_is_known else Cause.UNKNOWN,
        text="time that a byte takes through its ports" if view.nccl and view.nccl.ports else _PROXIES,
        summary=f"{found.what} {said}.",
    )


def _fabric(view: View, worst: Alarm, slow: int, senders: int) -> Suspicion:
    ratio = math.exp(_effect(view, worst))
    return _suspicion(
        view,
        worst,
        ranks=(),
        kind=Kind.FABRIC_SLOW,
        cause=Cause.NIC if view.profile.link_is_known else Cause.UNKNOWN,
        text=f"the slowest of {slow} ranks whose sends are slow together",
        summary=f"What {slow} of {senders} ranks ({slow / senders:.0%}) send over the network takes up to {ratio:.1f}"
        " times as long.",
        advice="Check the network as a whole: switches, routing, congestion by other jobs.",
    )


def _slow_transfers(view: View, nccl: NcclView, alarms: list[Alarm], senders: frozenset[int]) -> Iterator[Suspicion]:
    """senders: ranks that are known for it; what they take part in has its reason."""
    left = sorted(alarms, key=lambda alarm: -_effect(view, alarm))
    left = [alarm for alarm in left if senders.isdisjoint(_path(nccl, nccl.keys[alarm[1]]).ends)]
    while left:
        seed = left[0]
        slow, good = _beside(view, nccl, seed)
        alike = culprits(_path(nccl, nccl.keys[seed[1]]), slow, Cleared.by(good))
        ranks = _showing(view, seed, alike) or alike
        yield _slow_transfer(view, nccl, seed, ranks)
        left = [alarm for alarm in left[1:] if ranks.isdisjoint(_path(nccl, nccl.keys[alarm[1]]).ends)]


def _beside(view: View, nccl: NcclView, seed: Alarm) -> tuple[list[Path], list[Path]]:
    """(slow, good) transfers of operations of which one is under alarm: others may take another way."""
    families = defaultdict[tuple[str, int], list[int]](list)
    for item, key in enumerate(nccl.keys):
        if key in nccl.transfers.bandwidth:
            families[key.operation, len(nccl.ends[key][0])].append(item)
    alarmed = {item for signal in (TRANSFER, TRANSFER_BESIDE) for item in view.alarmed(signal)}
    steps, least = view.monitors[seed[0]].steps_since(seed[1]), SHOWN * _effect(view, seed)
    slow, good = list[Path](), list[Path]()
    for items in families.values():
        for item in [] if alarmed.isdisjoint(items) else items:
            shows = any(_shows(view, (signal, item), least, steps) for signal in (TRANSFER, TRANSFER_BESIDE))
            (slow if shows else good).append(_path(nccl, nccl.keys[item]))
    return slow, good


def _slow_transfer(view: View, nccl: NcclView, alarm: Alarm, ranks: Iterable[int]) -> Suspicion:
    key, blamed = nccl.keys[alarm[1]], tuple(sorted(ranks))
    ratio, since = math.exp(_effect(view, alarm)), int(view.monitors[alarm[0]].since[alarm[1]])
    what = "alike ones do" if alarm[0] == TRANSFER_BESIDE else "before"
    doubt = "" if len(blamed) <= LINK_ENDS else "; which of its members' links it is can't be told"
    return _suspicion(
        view,
        alarm,
        ranks=blamed,
        cause=_cause(view, blamed, nccl, key),
        text=f"{_named(nccl, key)}: bus bandwidth, slower by",
        summary=f"{_named(nccl, key)} takes {ratio:.1f} times as long as {what} since step {since}{doubt}.",
        disputed=bool(doubt),
    )


def _named(nccl: NcclView, key: Transfer) -> str:
    senders, receivers = nccl.ends[key]
    how = " ".join(part for part in (key.algorithm, key.protocol) if part)
    if key.operation == MESSAGE:
        return f"What NCCL sends from rank {senders[0]} to rank {receivers[0]}" + (f" ({how})" if how else "")
    return f"NCCL's {key.operation} in {key.communicator}" + (f" ({how})" if how else "")


def _cause(view: View, ranks: Sequence[int], nccl: NcclView, key: Transfer) -> Cause:
    if not view.profile.link_is_known or len(ranks) > LINK_ENDS:
        return Cause.UNKNOWN
    places = [place for rank in _path(nccl, key).ends if (place := view.rank_index(rank)) is not None]
    return Cause.NVLINK if len(set(view.table.ranks.node[places].tolist())) == 1 else Cause.NIC


def _path(nccl: NcclView, key: Transfer) -> Path:
    senders, receivers = nccl.ends[key]
    return Path(frozenset(senders), frozenset(receivers))


def _suspicion(
    view: View,
    alarm: Alarm,
    *,
    ranks: tuple[int, ...],
    cause: Cause,
    text: str,
    summary: str,
    kind: Kind = Kind.SLOW_LINK,
    advice: str = ADVICE,
    disputed: bool = False,
) -> Suspicion:
    """Costs what the job's steps take longer since it began: what runs beside passes may cost nothing."""
    signal, item = alarm
    monitor, since = view.monitors[signal], int(view.monitors[signal].since[item])
    slowdown = 1.0 if view.nccl is None else view.nccl.pace.slowdown(since)
    return Suspicion(
        kind=kind,
        cause=cause,
        ranks=ranks,
        since_step=since,
        effect_ratio=math.exp(_effect(view, alarm)),
        evidence=(evidence(view, signal, item, text),),
        summary=summary,
        advice=advice,
        confidence=confidence(monitor, item, disputed=disputed),
        uncertainty=monitor.uncertainty(item),
        slow_steps=monitor.slow_steps(item),
        smallest=monitor.noise.smallest,
        lost_seconds=(1 - 1 / slowdown) * view.step_seconds,
        page_steps=patience(view, since),
        page_seconds=view.profile.patience.seconds,
        fading=monitor.fading(item),
        cost_ratio=slowdown,
        involved=ranks,
    )

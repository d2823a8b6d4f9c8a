"""Which rank makes others wait, from how long each works by itself between two calls (own_work.py).

Ranks of one pipeline stage do the same work: before the same call of the same communicator each should work as long as
the others. Work is summed over stretches of calls, so that what varies from call to call, as sequences do, evens out.
A rank is slow where several stretches on end are longer than those of its peers by more than stretches vary, and it is
accused only if that holds also where its clock is as far off as it can be. A stage of one rank is compared with its own
past. Where all members of a communicator are slow after its operations alone, it is the transfer that is.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from megatronapp.detector.formats.layout import Layout
from megatronapp.detector.formats.own_work import (
    NS,
    Booleans,
    Calls,
    Clocks,
    MatchedCalls,
    clocks,
    own_work,
    released,
)
from megatronapp.detector.steps import Floats, Ints

MIN_CALLS = 24
"""So few are not judged."""
STRETCHES = 40
CALLS_PER_STRETCH = 8
"""At least."""
LEAST_EFFECT = 1.05
LEAST_OWN_EFFECT = 1.15
"""Of a rank beside its own past, which may change for other reasons."""
SIGMAS = 4.0
"""Of a stretch's noise. Normal noise does so LASTING times on end once in 3e13 cases."""
LEAST_NOISE = 0.002
"""Of a stretch, as a ratio; stretches of a GPU's steps differ by 0.33 % where nothing is wrong."""
LASTING = 3
"""Stretches on end."""
STEADY = 0.8
"""Share of stretches above their peers', of a rank that is slow all the time."""
LEAST_COST = 0.01
"""Of the recorded time. Less wakes nobody, and is not told."""
EXACT_PEERS = 8
"""Up to so many ranks of a stage each is compared with the median of the others; beyond, with that of all."""
SMALL = 0.6
"""Of the usual work before a call; and share of an effect that must not be a clock's."""
OF_LINK = 0.8
"""Share of what is lost that lies behind one communicator's operations, if it is their transfer."""


@dataclass(frozen=True, slots=True)
class Slow:
    """Ranks that are slow together, mostly one."""

    ranks: tuple[int, ...]
    communicator: str
    """Where it is the transfer of one that is slow; else empty."""
    effect_ratio: float
    """Their own work ÷ their peers', while they were slow."""
    lost_seconds: float
    """Of the slowest one."""
    cost_ratio: float
    began_ns: int
    """Unix time."""
    ended_ns: int | None
    """None: it lasted to the end of the record."""
    beside_own_past: bool
    certain: bool
    """Not so if its clock may be off by as much."""
    ratios: tuple[float, ...]
    """Of the slowest one, stretch by stretch."""


@dataclass(frozen=True, slots=True)
class Work:
    """What each rank did by itself, and the clocks it was measured by."""

    matched: MatchedCalls
    clocks: Clocks
    layout: Layout
    seconds: Mapping[int, Floats]
    """By rank, of each of its calls: own work before it; NaN: not known."""

    @property
    def span_seconds(self) -> float:
        return max(float(own.at[-1] - own.at[0]) for own in self.matched.calls.values()) or NS

    def stages(self) -> dict[int, list[int]]:
        stages: defaultdict[int, list[int]] = defaultdict(list)
        for rank in sorted(self.matched.calls):
            stages[self.layout.stage(rank)].append(rank)
        return dict(sorted(stages.items()))


def measure(matched: MatchedCalls, layout: Layout) -> Work:
    found = clocks(matched)
    return Work(matched, found, layout, _seconds(matched, found))


def _seconds(matched: MatchedCalls, clocks: Clocks, leniency: int | None = None) -> dict[int, Floats]:
    last = released(matched, clocks, leniency)
    return {rank: own_work(own, last[rank]) for rank, own in matched.calls.items()}


def find(work: Work) -> list[Slow]:
    """Who is slow; those that cost most first."""
    suspects = [suspect for ranks in work.stages().values() for suspect in _of_stage(work, ranks)]
    if all(suspect.beside_own_past for suspect in suspects) and len(suspects) == len(work.stages()) > 1:
        return []  # everybody at once: the work has changed
    return sorted(_together(work, suspects), key=lambda slow: -slow.lost_seconds)


@dataclass(frozen=True, slots=True)
class _Suspect:
    rank: int
    effect_ratio: float
    lost_seconds: float
    begin: float
    """Seconds since the record's begin."""
    end: float | None
    beside_own_past: bool
    certain: bool
    behind: Mapping[str, float]
    """Seconds lost by the communicator whose operation came before."""
    work_behind: Mapping[str, float]
    """All its work, likewise."""
    ratios: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Calls that the ranks of a stage have in common, in order of time."""

    ranks: tuple[int, ...]
    places: Ints
    """calls x ranks: where in the rank's calls; -1: it lacks the call."""
    classes: Ints
    """Calls of one class follow the same operation of the same communicator, and are themselves alike."""

    def of(self, seconds: Mapping[int, Floats]) -> Floats:
        there = self.places >= 0
        return np.column_stack(
            [np.where(there[:, i], seconds[rank][self.places[:, i]], np.nan) for i, rank in enumerate(self.ranks)]
        )


def _of_stage(work: Work, ranks: list[int]) -> Iterator[_Suspect]:
    compared = _comparison(work, ranks)
    if len(compared.places) < MIN_CALLS:
        return
    matrix = compared.of(work.seconds)
    expected = _expected(matrix, compared.classes)
    stretch = _stretches(len(matrix))
    ratios = np.column_stack([_ratios(matrix[:, i], expected[:, i], stretch) for i in range(len(ranks))])
    noise = max(LEAST_NOISE, _noise(ratios))
    for index, rank in enumerate(ranks):
        run = _slow_run(ratios[:, index], noise, alone=len(ranks) == 1)
        if run is None:
            continue
        chosen = (stretch >= run[0]) & (stretch < run[1])
        suspect = _suspect(work, compared, index, (matrix[:, index], expected[:, index]), chosen, ratios[:, index])
        if suspect.lost_seconds < LEAST_COST * work.span_seconds:
            continue
        changed = bool(run[0] > 1 or run[1] < stretch[-1])  # clocks do not jump
        if changed or _grows_with_work(matrix[chosen, index], expected[chosen, index], suspect.effect_ratio):
            yield replace(suspect, certain=True)
            continue
        lenient = compared.of(_seconds(work.matched, work.clocks, rank))
        still = _ratio(lenient[:, index], _expected(lenient, compared.classes)[:, index], chosen)
        yield replace(suspect, certain=still >= (1 + LEAST_EFFECT) / 2)


def _grows_with_work(own: Floats, expected: Floats, effect_ratio: float) -> bool:
    """Whether a rank loses more before calls that take more work: a clock that is ahead adds as much to each."""
    known = np.isfinite(own) & np.isfinite(expected)
    own, expected = own[known], expected[known]
    usual = np.median(expected)
    small, large = expected <= SMALL * usual, expected >= usual
    if min(small.sum(), large.sum()) < CALLS_PER_STRETCH:
        return False
    grown = float(np.median((own - expected)[large]) - np.median((own - expected)[small]))
    work = float(np.median(expected[large]) - np.median(expected[small]))
    return grown >= SMALL * (effect_ratio - 1) * work


def _comparison(work: Work, ranks: list[int]) -> _Comparison:
    keys = [_keys(work, rank) for rank in ranks]
    shared = Counter(key for own in keys for key in own)
    places = [[own.get(key, -1) for own in keys] for key, times in shared.items() if times == len(ranks) or times > 1]
    table = np.array(places, np.int64).reshape(-1, len(ranks))
    at = np.column_stack(
        [np.where(table[:, i] >= 0, work.matched.calls[r].at[table[:, i]], np.nan) for i, r in enumerate(ranks)]
    )
    order = np.argsort(np.nanmedian(at, axis=1), kind="stable") if len(table) else np.array([], np.int64)
    table = table[order]
    return _Comparison(tuple(ranks), table, _classes(work, ranks[0], table[:, 0]) if len(ranks) == 1 else table[:, 0])


Key = tuple[str, int, int, str]
"""What kind of a communicator, which of the rank's of that kind, the operation's number in it and what it is."""


def _keys(work: Work, rank: int) -> dict[Key, int]:
    """A rank's calls under names that are the same on all ranks that do the same."""
    roles = _roles(work, work.matched.calls[rank])
    found: dict[Key, int] = {}
    for place, call in enumerate(work.matched.calls[rank].calls):
        found.setdefault((*roles[call.group], call.number, call.operation), place)
    return found


def _roles(work: Work, calls: Calls) -> dict[str, tuple[str, int]]:
    kinds: Counter[str] = Counter()
    roles: dict[str, tuple[str, int]] = {}
    for call in calls.calls:
        if call.group not in roles:
            ranks = work.matched.users[call.group]
            stages = sorted({work.layout.stage(rank) for rank in ranks})
            kind = f"{work.layout.kind(ranks)}:{len(ranks)}:{stages}"
            roles[call.group] = (kind, kinds[kind])
            kinds[kind] += 1
    return roles


def _classes(work: Work, rank: int, places: Ints) -> Ints:
    calls = work.matched.calls[rank].calls
    numbers: dict[tuple[str, ...], int] = {}
    found = []
    for place in places.tolist():
        before, call = calls[max(0, place - 1)], calls[place]
        found.append(numbers.setdefault((before.group, before.operation, call.group, call.operation), len(numbers)))
    return np.array(found, np.int64)


def _expected(matrix: Floats, classes: Ints) -> Floats:
    """What each rank's work should be: the median of its peers; of a rank alone, of its own in the first third."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where none is known
        if matrix.shape[1] == 1:
            past = matrix[: len(matrix) // 3, 0]
            usual = {each: np.nanmedian(past[classes[: len(past)] == each]) for each in np.unique(classes[: len(past)])}
            return np.array([[usual.get(each, np.nan)] for each in classes.tolist()])
        if matrix.shape[1] > EXACT_PEERS:
            return np.repeat(np.nanmedian(matrix, axis=1)[:, None], matrix.shape[1], axis=1)
        return np.column_stack([np.nanmedian(np.delete(matrix, i, axis=1), axis=1) for i in range(matrix.shape[1])])


def _stretches(calls: int) -> Ints:
    """The stretch of each call."""
    number = min(STRETCHES, max(1, calls // CALLS_PER_STRETCH))
    return np.arange(calls) * number // calls


def _ratios(own: Floats, expected: Floats, stretch: Ints) -> Floats:
    return np.array([_ratio(own, expected, stretch == each) for each in range(int(stretch[-1]) + 1)])


def _ratio(own: Floats, expected: Floats, chosen: Booleans) -> float:
    """NaN where nothing is known."""
    known = chosen & np.isfinite(own) & np.isfinite(expected)
    total = float(expected[known].sum())
    return float(own[known].sum()) / total if total > 0 else np.nan


def _noise(ratios: Floats) -> float:
    """By how much a stretch of one rank differs by chance: from the next one, as the median of all tells. A change from
    one level to another is one difference of many."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        steps = np.abs(np.diff(np.log(np.where(ratios > 0, ratios, np.nan)), axis=0))
        return float(np.nan_to_num(1.4826 * np.nanmedian(steps) / np.sqrt(2))) if len(ratios) > 1 else 0.0


def _slow_run(ratios: Floats, noise: float, *, alone: bool) -> tuple[int, int] | None:
    """The longest run of slow stretches as [first, behind the last); None: it is not slow."""
    least = LEAST_OWN_EFFECT if alone else LEAST_EFFECT
    known = ratios[np.isfinite(ratios) & (ratios > 0)]
    if len(known) < LASTING:
        return None
    usual, error = float(np.median(np.log(known))), noise / np.sqrt(len(known))
    if not alone and usual >= np.log(least) and usual > SIGMAS * error and np.mean(np.log(known) > 0) >= STEADY:
        threshold = usual / 2  # slow all the time: stretches need not show it each by itself
    else:
        threshold = max(np.log(least), SIGMAS * noise)
    slow = np.log(np.where(ratios > 0, ratios, 1.0), where=np.isfinite(ratios), out=np.zeros(len(ratios))) > threshold
    runs = _runs(slow)
    longest = max(runs, key=lambda run: run[1] - run[0], default=(0, 0))
    return longest if longest[1] - longest[0] >= LASTING else None


def _runs(slow: Booleans) -> list[tuple[int, int]]:
    """Stretches of slow ones; a single one between two slow ones belongs to them."""
    runs: list[tuple[int, int]] = []
    for place in np.flatnonzero(slow).tolist():
        if runs and place - runs[-1][1] <= 1:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs


def _suspect(
    work: Work, compared: _Comparison, index: int, of: tuple[Floats, Floats], chosen: Booleans, ratios: Floats
) -> _Suspect:
    own, expected = of
    rank = compared.ranks[index]
    calls, places = work.matched.calls[rank], compared.places[:, index]
    known = chosen & np.isfinite(own) & np.isfinite(expected)
    lost: defaultdict[str, float] = defaultdict(float)
    spent: defaultdict[str, float] = defaultdict(float)
    for row in np.flatnonzero(known).tolist():
        before = calls.calls[places[row] - 1].group
        lost[before] += own[row] - expected[row]
        spent[before] += own[row]
    last = int(np.flatnonzero(known)[-1])
    rest = np.flatnonzero((places >= 0) & (np.arange(len(places)) > last))
    at = calls.at[places[known]]
    return _Suspect(
        rank=rank,
        effect_ratio=_ratio(own, expected, chosen),
        lost_seconds=float(sum(lost.values())),
        begin=float(at[0]),
        end=float(at[-1]) if len(rest) > len(places) / STRETCHES + 1 else None,
        beside_own_past=len(compared.ranks) == 1,
        certain=False,
        behind=dict(lost),
        work_behind=dict(spent),
        ratios=tuple(float(ratio) for ratio in np.nan_to_num(ratios, nan=1.0)),
    )


def _together(work: Work, suspects: Sequence[_Suspect]) -> Iterator[Slow]:
    """Suspects as findings: members of one communicator whose transfers are slow are one."""
    left = {suspect.rank: suspect for suspect in suspects}
    for group, ranks in sorted(work.matched.users.items()):
        if len(ranks) > 1 and all(rank in left and _of_transfer(left[rank], group) for rank in ranks):
            yield _slow(work, [left.pop(rank) for rank in ranks], group)
    for suspect in left.values():
        yield _slow(work, [suspect], "")


def _of_transfer(suspect: _Suspect, group: str) -> bool:
    behind, spent = suspect.behind.get(group, 0.0), suspect.work_behind.get(group, 0.0)
    return behind >= OF_LINK * suspect.lost_seconds and spent <= sum(suspect.work_behind.values()) / 2


def _slow(work: Work, suspects: list[_Suspect], communicator: str) -> Slow:
    worst = max(suspects, key=lambda suspect: suspect.lost_seconds)
    span = work.span_seconds
    return Slow(
        ranks=tuple(sorted(suspect.rank for suspect in suspects)),
        communicator=communicator,
        effect_ratio=worst.effect_ratio,
        lost_seconds=worst.lost_seconds,
        cost_ratio=span / max(span - worst.lost_seconds, span / 100),
        began_ns=work.matched.origin_ns + round(worst.begin / NS),
        ended_ns=None if worst.end is None else work.matched.origin_ns + round(worst.end / NS),
        beside_own_past=worst.beside_own_past,
        certain=all(suspect.certain for suspect in suspects),
        ratios=worst.ratios,
    )

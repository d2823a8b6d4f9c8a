"""PyTorch's flight-recorder dumps of a hung job, one pickle a rank (`…_<rank>`): how far each rank has come.

A dump tells of each operation only whether it is complete. A device works its operations off in the order in which they
were enqueued, so what a rank is in is the oldest one that is not. A ring is only so long: where the counters of a
group, which the recorder keeps beside it, say that older operations are incomplete than those in it, that oldest one is
lost.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatronapp.core.errors import DataError
from megatronapp.core.trace.flight_recorder import incomplete, load, operation
from megatronapp.detector.signals.frontier import Position, stopped_inside
from megatronapp.detector.signals.program import Called, Calls

_NAME = re.compile(r".*?(\d+)(\.pickle|\.pkl)?")
_MESSAGE = re.compile(r"nccl:(send|recv) (\d+)(?:->|<-)(\d+)")
_PICKLE = b"\x80"
_ALIKE = re.compile("all_reduce|_allgather_base|_reduce_scatter_base|broadcast|reduce")
"""Operations, by PyTorch's names, whose inputs have one size and type on all members."""


@dataclass(frozen=True, slots=True)
class Dumps:
    frontiers: dict[int, dict[str, Position]]
    """By global rank, then communicator; only ranks that left a dump."""
    members: dict[str, tuple[int, ...]]
    """Global ranks of each communicator; of a message its sender and receiver."""
    cut: frozenset[int] = frozenset()
    """Ranks whose ring no longer holds what they are in."""
    called: Calls = field(default_factory=dict)
    """All collectives that are in the dumps."""

    @property
    def calls(self) -> Calls:
        """Those that are not through on all who left a dump."""
        return {name: _not_through(name, of, self.frontiers) for name, of in self.called.items()}

    @property
    def hangs(self) -> bool:
        """Whether any operation is not complete."""
        return any(p.outstanding for frontier in self.frontiers.values() for p in frontier.values())

    @property
    def absent(self) -> frozenset[int]:
        """Ranks that the others know and that left no dump."""
        return frozenset(rank for ranks in self.members.values() for rank in ranks) - self.frontiers.keys()

    @property
    def unclear(self) -> frozenset[int]:
        """Ranks of which it is not known what they wait for."""
        return self.absent | (self.cut - stopped_inside(self.frontiers))


def find_dumps(folder: Path) -> dict[int, Path]:
    """The dumps in a folder by rank; empty when it holds none."""
    found = {}
    for path in sorted(folder.iterdir()):
        name = _NAME.fullmatch(path.name)
        if name and path.is_file():
            with path.open("rb") as file:
                if file.read(1) == _PICKLE:
                    found[int(name[1])] = path
    return found


def find_scenarios(folder: Path) -> list[Path]:
    """Folders of dumps in a folder that holds none itself."""
    return [each for each in sorted(folder.iterdir()) if each.is_dir() and find_dumps(each)]


def read(dumps: dict[int, Path]) -> Dumps:
    """Raises DataError when a dump is no flight-recorder dump."""
    frontiers: dict[int, dict[str, Position]] = {}
    members: dict[str, tuple[int, ...]] = {}
    cut: set[int] = set()
    calls: defaultdict[str, dict[int, dict[int, Called]]] = defaultdict(dict)
    for rank, path in dumps.items():
        dump = load(path)
        try:
            groups = {name: _ranks(group) or tuple(dumps) for name, group in dump["pg_config"].items()}
            frontiers[rank] = _frontier(rank, dump["entries"], groups, members)
            for name, own in _calls(dump["entries"], groups).items():
                calls[name][rank] = own
            completed = _completed(dump)
            if _is_cut(dump["entries"], completed):
                cut.add(rank)
                frontiers[rank] = {
                    name: _as_counted(position, completed.get(name.partition(":")[0]))
                    for name, position in frontiers[rank].items()
                }
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise DataError(f"{path}: not a flight-recorder dump that can be understood: {error!r}") from error
        members.update((_id(name, ranks), ranks) for name, ranks in groups.items())
    return Dumps(frontiers, members, frozenset(cut), calls)


def _not_through(
    name: str, of: Mapping[int, Mapping[int, Called]], frontiers: dict[int, dict[str, Position]]
) -> dict[int, dict[int, Called]]:
    through = min(frontiers[rank][name].completed for rank in of)
    return {rank: {number: own[number] for number in own if number > through} for rank, own in of.items()}


def _ranks(group: dict[str, Any]) -> tuple[int, ...]:
    """Empty where PyTorch does not tell them: 2.4 does not of the group of all ranks."""
    ranks = group.get("ranks") or ()
    return tuple(int(rank) for rank in (json.loads(ranks) if isinstance(ranks, str) else ranks))


def _id(name: str, ranks: tuple[int, ...]) -> str:
    """Names of groups may repeat over ranks; with their members they do not."""
    return f"{name}:{'-'.join(map(str, ranks))}"


def _frontier(
    rank: int, entries: list[dict[str, Any]], groups: dict[str, tuple[int, ...]], members: dict[str, tuple[int, ...]]
) -> dict[str, Position]:
    """Where the rank stands in each of its communicators; adds the pairs of its messages to members."""
    of: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in sorted(entries, key=lambda e: int(e["record_id"])):
        of[_communicator(rank, entry, groups, members)].append(entry)
    waiting = [entry for entry in entries if incomplete(entry)]
    current = min(waiting, key=lambda e: int(e["record_id"]), default=None)
    return {name: _position(own, current) for name, own in of.items()}


def _communicator(
    rank: int, entry: dict[str, Any], groups: dict[str, tuple[int, ...]], members: dict[str, tuple[int, ...]]
) -> str:
    name = str(entry["process_group"][0])
    ranks = groups[name]
    message = _MESSAGE.fullmatch(entry["profiling_name"]) if entry["is_p2p"] else None
    if message is None:
        return _id(name, ranks)
    peer = ranks[int(message[3])]
    pair = (rank, peer) if message[1] == "send" else (peer, rank)
    communicator = f"p2p:{pair[0]}-{pair[1]}"
    members[communicator] = pair
    return communicator


def _calls(entries: list[dict[str, Any]], groups: dict[str, tuple[int, ...]]) -> defaultdict[str, dict[int, Called]]:
    """The collectives of each communicator by their number; what was coalesced has one number and is left out."""
    found: defaultdict[str, dict[int, Called]] = defaultdict(dict)
    several = Counter((str(e["process_group"][0]), e["collective_seq_id"]) for e in entries if not e["is_p2p"])
    for entry in entries:
        name = str(entry["process_group"][0])
        if not entry["is_p2p"] and several[name, entry["collective_seq_id"]] == 1:
            found[_id(name, groups[name])][int(entry["collective_seq_id"])] = _called(entry)
    return found


def _called(entry: dict[str, Any]) -> Called:
    name = operation(entry)
    if not _ALIKE.fullmatch(name):
        return Called(name)
    count = sum(math.prod(map(int, size)) for size in entry.get("input_sizes") or ())
    return Called(name, count, ", ".join(sorted({str(each) for each in entry.get("input_dtypes") or ()})))


def _position(entries: list[dict[str, Any]], current: dict[str, Any] | None) -> Position:
    """entries: of one communicator, in order; current: what the rank is in.

    Messages are numbered by each end on its own, so that only the oldest incomplete one of a pair is compared, as 1.
    """
    waiting = [entry for entry in entries if incomplete(entry)]
    inside = any(entry is current for entry in waiting)
    name = operation(waiting[0] if waiting else entries[-1])
    if entries[0]["is_p2p"]:
        return Position(len(waiting), int(inside), 0, name)
    last = int(entries[-1]["collective_seq_id"])
    completed = int(waiting[0]["collective_seq_id"]) - 1 if waiting else last
    return Position(last, completed + int(inside), completed, name)


def _completed(dump: dict[str, Any]) -> dict[str, int]:
    """The newest complete operation of each group that the ring tells of, by the group's name; empty where the recorder
    kept no counters."""
    names = {str(entry["pg_id"]): str(entry["process_group"][0]) for entry in dump["entries"] if "pg_id" in entry}
    status = dump.get("pg_status") or {}
    return {
        names[str(group)]: int(counters["last_completed_collective"])
        for group, counters in status.items()
        if str(group) in names
    }


def _is_cut(entries: list[dict[str, Any]], completed: dict[str, int]) -> bool:
    """Whether operations are incomplete that are older than those in the ring."""
    oldest: dict[str, int] = {}
    for entry in entries:
        group = str(entry["process_group"][0])
        if group in completed:
            number = int(entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"])
            oldest[group] = min(oldest.get(group, number), number)
    return any(completed[group] + 1 < number for group, number in oldest.items())


def _as_counted(position: Position, completed: int | None) -> Position:
    """Of a ring that is cut: where the rank stands by its group's counter, without a word on what it is in."""
    if completed is None or position.completed == 0:
        return position._replace(started=position.completed)
    return position._replace(started=completed, completed=completed)

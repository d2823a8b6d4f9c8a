"""Megatrace's logs of jobs that are simulated: hosts that run ahead of their devices, one of which stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatronapp.detector.formats.megatrace_log import RECV, SEND

ELEMENTS = {"tp": 4096, "pp": 4096, "dp": 65536, "wo": 1}
"""Of a call, by the kind of its communicator."""
Operation = tuple[str, str]
"""Its communicator, and what it is."""


@dataclass(frozen=True)
class Job:
    """Ranks are numbered as Megatron does: tensor, then data, then pipeline."""

    tp: int = 1
    dp: int = 1
    pp: int = 1
    pairs: bool = True
    """Each pair of stages has a communicator of its own; else a pipeline has one."""

    @property
    def world(self) -> int:
        return self.tp * self.dp * self.pp

    def place(self, rank: int) -> tuple[int, int, int]:
        return rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)

    def program(self, rank: int, steps: int, microbatches: int = 2) -> list[Operation]:
        """What the rank calls: passes with all-reduces of its tensor group and messages to its neighbours, the
        gradients' collectives, and one of all ranks."""
        t, d, p = self.place(rank)
        calls: list[Operation] = []
        for _ in range(steps):
            for before, behind in ((p - 1, p + 1), (p + 1, p - 1)):
                for _ in range(microbatches):
                    calls += [(self._link(t, d, p, before), RECV)] if 0 <= before < self.pp else []
                    calls += [(f"tp{d}.{p}", "AllReduce")] * 2 if self.tp > 1 else []
                    calls += [(self._link(t, d, p, behind), SEND)] if 0 <= behind < self.pp else []
            calls += [(f"dp{t}.{p}", "ReduceScatter"), (f"dp{t}.{p}", "AllGather")] if self.dp > 1 else []
            calls += [("world", "AllReduce")]
        return calls

    def _link(self, t: int, d: int, p: int, other: int) -> str:
        return f"pp{t}.{d}.{min(p, other)}" if self.pairs else f"pp{t}.{d}"


def stand_still(programs: Sequence[list[Operation]], stops: dict[int, int], ahead: int) -> list[int]:
    """How many calls each rank has made when nothing moves any more. stops: after how many calls a host stops. A host
    is at most `ahead` operations before its device, which works them off in order."""
    called, through = [0] * len(programs), [0] * len(programs)
    numbers = [numbers_of(program) for program in programs]
    needed = [{number: place for place, number in enumerate(own)} for own in numbers]
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            limit = min(len(program), stops.get(rank, len(program)), through[rank] + ahead)
            if called[rank] < limit:
                called[rank], moved = limit, True
        for rank, own in enumerate(numbers):
            while through[rank] < called[rank] and _met(own[through[rank]], needed, called):
                through[rank], moved = through[rank] + 1, True
    return called


def numbers_of(program: list[Operation]) -> list[tuple[str, str, int]]:
    """Each call by its communicator, its kind (a send and its receive are one), and the number it has there."""
    seen: dict[tuple[str, str], int] = {}
    numbered = []
    for group, operation in program:
        kind = operation if operation in (SEND, RECV) else "collective"
        seen[group, kind] = seen.get((group, kind), -1) + 1
        numbered.append((group, kind, seen[group, kind]))
    return numbered


def _met(number: tuple[str, str, int], needed: list[dict[tuple[str, str, int], int]], called: list[int]) -> bool:
    """Whether all who take part have called it."""
    group, kind, count = number
    if kind in (SEND, RECV):  # of a pair: the other end's call of that number
        other = (group, RECV if kind == SEND else SEND, count)
        return any(other in own and own[other] < called[rank] for rank, own in enumerate(needed))
    return all(own[number] < called[rank] for rank, own in enumerate(needed) if number in own)


def write_logs(folder: Path, programs: Sequence[list[Operation]], called: Sequence[int], hashed: bool = True) -> None:
    """The calls of all ranks; from the last 10,000 on."""
    for rank, program in enumerate(programs):
        counts: dict[str, int] = {}
        lines = []
        for place, (group, operation) in enumerate(program[: called[rank]]):
            number = counts[group] = counts.get(group, -1) + 1
            named = f" groupHash {group}" if hashed else ""
            lines.append(
                f"[save_count 1] [{1_700_000_000 + place}.{rank:09}] [Rank {rank}] Fun {operation} "
                f"Data {ELEMENTS[group[:2]]} stream 0x{hash(group) & 0xFFFF:x} opCount {number}{named}"
            )
        (folder / f"rank_{rank}.log").write_text("\n".join(lines[-10_000:]) + "\n")


def write_interceptors_logs(folder: Path, pods: bool) -> None:
    """The logs in a folder as Megatrace's interceptor would have written them. pods: names that do not tell the rank;
    rank 0's is full once."""
    for path in sorted(folder.glob("rank_*.log")):
        rank = int(path.stem.removeprefix("rank_"))
        lines = [_intercepted(line) for line in path.read_text().splitlines()]
        path.unlink()
        if not pods:
            (folder / f"megatrace_20260101_000000_rank_{rank}.log").write_text("\n".join(lines) + "\n")
            continue
        half = len(lines) // 2 if rank == 0 else 0
        log = folder / f"job-1-worker-{rank}-0_20260101_000000_{700 - rank}.log"
        log.write_text("\n".join(lines[half:]) + "\n")
        if half:
            log.with_name(f"{log.name}.1").write_text("\n".join(lines[:half]) + "\n")


def _intercepted(line: str) -> str:
    save, at, rank, rest = line.replace("] [", "]|[").replace("] Fun", "]|Fun").split("|")
    words = rest.split()
    named = [f"[{name} {value}]" for name, value in zip(words[2::2], words[3::2], strict=True)]
    return " ".join(
        ["[job-1] [10.0.0.1] [node1]", save, at, rank, "[PCI 0000:18:00.0]", f"[Func nccl{words[1]}]", *named]
    )

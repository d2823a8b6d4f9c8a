"""Jobs that come to a stand: heartbeats of ranks that train, until one of them hangs, dies, or calls something else.

Each step has one collective of each of a rank's groups, in order; a rank that waits in one does not come to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.corpus.case import TRACES, Injected, Label, Source, write_label
from bench.corpus.simulated import LAYOUTS
from bench.scale.layout import Layout
from bench.scale.seeds import seeds
from megatronapp.core.scenario import FaultKind, HangSide
from megatronapp.core.trace import file
from megatronapp.v1 import trace_pb2

NS = 10**9
START_UNIX_NS = 1_700_000_000 * NS
JOB_NAME = "bench/standing"
STEPS = 12
"""Before the fault."""
ELEMENTS = 4096
PATIENT_SECONDS = 5.0
"""For so many usual steps, and half a minute more, a standing job is recorded."""
QUIET_SHARE = 0.9
"""Of a step: nothing moves before its collectives."""

Group = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Standing:
    name: str
    layout: str
    kind: FaultKind
    side: HangSide | None
    culprit: int
    step_seconds: float
    seed: int

    def write(self, root: Path) -> None:
        folder, layout = root / self.name, LAYOUTS[self.layout]
        begun = _Job(layout, self).record(folder / TRACES)
        fault = Injected(
            kind=self.kind, ranks=(self.culprit,), from_step=STEPS + 1, side=self.side, begun_unix_ns=begun
        )
        label = Label(name=self.name, source=Source.SIMULATED, layout=self.layout, world=layout.world, faults=(fault,))
        write_label(folder, label)


@dataclass
class _Job:
    layout: Layout
    case: Standing
    messages: list[list[trace_pb2.TraceMessage]] = field(default_factory=list)

    def record(self, traces: Path) -> int:
        """Writes each rank's file; returns when the fault began."""
        self.groups = [list(self.layout.groups(rank)) for rank in range(self.layout.world)]
        self.messages = [[self._hello(rank)] for rank in range(self.layout.world)]
        second, step_seconds = 0.0, self.case.step_seconds
        while second < STEPS * step_seconds:
            self._beat(second, int(second / step_seconds) + 1)
            second += 1.0
        begun = second + QUIET_SHARE * step_seconds
        while second < begun + PATIENT_SECONDS * step_seconds + 30:
            self._beat(second, STEPS + 1, broken=second >= begun)
            second += 1.0
        for rank, messages in enumerate(self.messages):
            path = file.path_for(traces, JOB_NAME, 1, rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as opened:
                for message in messages:
                    file.write(opened, message)
        return START_UNIX_NS + int(begun * NS)

    def _hello(self, rank: int) -> trace_pb2.TraceMessage:
        tensor, data, pipeline = self.layout.place(rank)
        layout = self.layout
        sizes = trace_pb2.ParallelSizes(
            world=layout.world, tensor=layout.tp, pipeline=layout.pp, data=layout.dp, context=1, expert=layout.ep
        )
        sizes.virtual_pipeline = layout.vpp
        return trace_pb2.TraceMessage(
            hello=trace_pb2.Hello(
                identity=trace_pb2.Identity(
                    run=f"standing-{self.case.seed}", job=JOB_NAME, attempt=1, rank=rank, incarnation=rank + 1
                ),
                placement=trace_pb2.Placement(
                    node=f"node-{rank // 4}",
                    gpu_uuid=f"GPU-{rank}",
                    device_id=f"GPU-{rank}",
                    tensor=tensor,
                    data=data,
                    pipeline=pipeline,
                    expert=data % layout.ep,
                    sizes=sizes,
                    host_unix_ns=START_UNIX_NS,
                    host_clock_ns=START_UNIX_NS,
                ),
                device=trace_pb2.DEVICE_CUDA,
                schedule=trace_pb2.Schedule(name="none" if layout.pp == 1 else "1f1b", first_step=1),
                communicators=[
                    trace_pb2.Communicator(index=index, id=_id(group), kind=group[0], ranks=group[1])
                    for index, group in enumerate(self.groups[rank], 1)
                ],
            )
        )

    def _beat(self, second: float, step: int, *, broken: bool = False) -> None:
        """Of all ranks that live."""
        for rank, own in enumerate(self.messages):
            if broken and self.case.kind is FaultKind.KILL and rank == self.case.culprit:
                continue
            at_ns = START_UNIX_NS + int((second + 0.01 * rank) * NS)
            beat = trace_pb2.Heartbeat(
                clock_ns=at_ns, unix_ns=at_ns, step=step, frontiers=self._frontiers(rank, step, broken=broken)
            )
            beat.phase = trace_pb2.PHASE_STEP
            own.append(trace_pb2.TraceMessage(seq=len(own), heartbeat=beat))

    def _frontiers(self, rank: int, step: int, *, broken: bool) -> Iterator[trace_pb2.Frontier]:
        """A rank waits in its first group that has not all members in it."""
        waits = False
        for index, group in enumerate(self.groups[rank], 1):
            through = trace_pb2.Frontier(communicator=index, peer=-1, enqueued=step, started=step, completed=step)
            stands = trace_pb2.Frontier(
                communicator=index, peer=-1, enqueued=step - 1, started=step - 1, completed=step - 1
            )
            if not broken or waits:
                yield stands
            elif rank == self.case.culprit:
                waits = True
                yield self._of_culprit(stands)
            elif self._reaches(group):
                yield through
            else:
                waits = True
                yield _inside(stands, "all_reduce", ELEMENTS)

    def _reaches(self, group: Group) -> bool:
        """Whether all of its members come to it, and are through: not the culprit, nor who waits before it."""
        return not any(self._held_before(member, group) for member in group[1])

    def _held_before(self, member: int, group: Group) -> bool:
        if member == self.case.culprit:
            return True
        before = self.groups[member][: self.groups[member].index(group)]
        return any(not self._reaches(each) for each in before)

    def _of_culprit(self, stands: trace_pb2.Frontier) -> trace_pb2.Frontier:
        kind = self.case.kind
        if kind is FaultKind.WRONG_SIZE:
            return _inside(stands, "all_reduce", 2 * ELEMENTS)
        if kind in (FaultKind.SKIP_COLLECTIVE, FaultKind.WRONG_ORDER):
            return _inside(stands, "all_gather", ELEMENTS)
        if self.case.side is HangSide.DEVICE:
            inside = _inside(stands, "all_reduce", ELEMENTS)
            inside.started = inside.completed
            return inside
        return stands


def _inside(stands: trace_pb2.Frontier, operation: str, elements: int) -> trace_pb2.Frontier:
    """In the next operation."""
    return trace_pb2.Frontier(
        communicator=stands.communicator,
        peer=-1,
        enqueued=stands.enqueued + 1,
        started=stands.started + 1,
        completed=stands.completed,
        operation=operation,
        elements=elements,
        data_type="float32",
    )


def _id(group: Group) -> str:
    return f"{group[0]}:{'-'.join(map(str, group[1]))}"


KINDS: tuple[tuple[FaultKind, HangSide | None], ...] = (
    (FaultKind.HANG, HangSide.HOST),
    (FaultKind.HANG, HangSide.DEVICE),
    (FaultKind.SKIP_COLLECTIVE, None),
    (FaultKind.WRONG_SIZE, None),
    (FaultKind.WRONG_ORDER, None),
    (FaultKind.KILL, None),
)
COMPARED = 3
"""Who calls something else is in a minority only where its group has so many members."""


def planned(round_: int, first: int, count: int) -> Iterator[Standing]:
    """Every layout with each kind, of short and of long steps."""
    for seed in seeds(count, round_, first):
        for number, (name, layout) in enumerate(LAYOUTS.items()):
            if layout.dp == 1:
                continue
            culprit = (seed * 5 + number) % layout.world
            for kind, side in KINDS:
                first_group = next(iter(layout.groups(culprit)))
                if side is None and kind is not FaultKind.KILL and len(first_group[1]) < COMPARED:
                    continue
                for seconds in (1.0, 20.0):
                    case = f"{seed}/{name}/{kind}{f'-{side}' if side else ''}-{seconds:g}s"
                    yield Standing(case, name, kind, side, culprit, seconds, seed)

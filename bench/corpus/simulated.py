"""Slow ranks and clean jobs: the proving ground's simulated steps (bench/scale), as their ranks' trace files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.corpus.case import TRACES, Injected, Label, Source, write_label
from bench.scale.faults import Fault, What
from bench.scale.job import Job, Spec
from bench.scale.layout import Layout
from bench.scale.protocol import JOB_NAME, Speaker
from bench.scale.scenarios import QUIET
from bench.scale.seeds import seeds
from bench.scale.tables import RowBook
from megatronapp.core.scenario import FaultKind
from megatronapp.core.trace import file

STEP_SECONDS = 4.0
ONSET, WINDOW, CLEAN_STEPS = 45, 45, 120
LAYOUTS = {
    "DP8": Layout(pp=1, dp=8),
    "PP2 x DP4": Layout(pp=2, dp=4),
    "TP2 x DP4": Layout(pp=1, dp=4, tp=2),
    "PP4 x DP2": Layout(pp=4, dp=2),
    "PP2 x TP2 x DP2": Layout(pp=2, dp=2, tp=2),
    "PP2 x VPP2 x DP4": Layout(pp=2, dp=4, vpp=2),
    "EP2 x DP8": Layout(pp=1, dp=8, ep=2),
    "PP4 (DP1)": Layout(pp=4, dp=1),
}
KINDS = {
    What.COMPUTE: FaultKind.SLOW_COMPUTE,
    What.HOST: FaultKind.HOST_STALL,
    What.DATA: FaultKind.DATA_STALL,
    What.LINK: FaultKind.LATE_LINK,
}
SIZES = ((What.COMPUTE, (1.05, 1.1, 1.2, 1.4)), (What.HOST, (1.05,)), (What.DATA, (1.05,)), (What.LINK, (5.0,)))


@dataclass(frozen=True)
class Planned:
    name: str
    layout: str
    seed: int
    faults: tuple[Fault, ...] = ()

    def write(self, root: Path) -> None:
        """The whole case."""
        folder = root / self.name
        layout = LAYOUTS[self.layout]
        steps = max(fault.from_step for fault in self.faults) + WINDOW if self.faults else CLEAN_STEPS
        begun = _play(folder / TRACES, Job(Spec(layout, STEP_SECONDS, QUIET, faults=self.faults), self.seed), steps)
        injected = tuple(
            Injected(
                kind=KINDS[fault.what],
                ranks=fault.ranks,
                from_step=fault.from_step,
                size=fault.ratio,
                begun_unix_ns=begun[fault.from_step],
            )
            for fault in self.faults
        )
        label = Label(name=self.name, source=Source.SIMULATED, layout=self.layout, world=layout.world, faults=injected)
        write_label(folder, label)


def _play(traces: Path, job: Job, steps: int) -> dict[int, int]:
    """Writes each rank's file; returns when each step began."""
    speaker, begun = Speaker(job, RowBook(job.families)), dict[int, int]()
    with ExitStack() as opened:
        files = []
        for rank in range(job.layout.world):
            path = file.path_for(traces, JOB_NAME, 1, rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            files.append(opened.enter_context(path.open("wb")))
            file.write(files[-1], speaker.hello(rank, 1))
        for _ in range(steps):
            step = job.step()
            begun[step.number] = step.began_unix_ns
            for rank, message in enumerate(speaker.summaries(step)):
                file.write(files[rank], message)
    return begun


def planned(round_: int, first: int, count: int) -> Iterator[Planned]:
    """Every layout with a slow rank of each kind and size, two at once, and clean; so for each of the seeds."""
    for seed in seeds(count, round_, first):
        for number, (name, layout) in enumerate(LAYOUTS.items()):
            rank = (seed * 3 + number) % layout.world
            for what, sizes in SIZES:
                for size in sizes:
                    if what is What.LINK and layout.pp == 1:
                        continue  # in a single group nobody can tell whose link it is
                    culprit = rank % (layout.tp * layout.dp) if what is What.DATA else rank
                    fault = Fault(what, (culprit,), size, ONSET + seed % 5)
                    yield Planned(f"{seed}/{name}/{KINDS[what]}-{size:g}", name, seed, (fault,))
            other = (rank + 1 + layout.world // 2) % layout.world
            both = (Fault(What.COMPUTE, (rank,), 1.2, ONSET), Fault(What.COMPUTE, (other,), 1.3, ONSET + 2))
            yield Planned(f"{seed}/{name}/two", name, seed, both)
            for again in (1, 2):
                yield Planned(f"{seed}/{name}/clean-{again}", name, seed + 1000 * again)

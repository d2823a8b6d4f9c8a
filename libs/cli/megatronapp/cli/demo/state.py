"""What the demo knows so far, from the bus alone: the ranks' progress, the findings, and whether they are right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megatronapp.core.findings import Finding, State
from megatronapp.core.scenario import Scenario
from megatronapp.core.trace.columns import summary_columns
from megatronapp.core.trace.membership import Membership, Process
from megatronapp.core.trace.span_names import PASSES
from megatronapp.v1 import trace_pb2


@dataclass
class RankView:
    """One rank as the terminal shows it."""

    process: Process
    step_seconds: float = 0.0
    compute_seconds: float = 0.0
    """CPU time of forward and backward in the last step."""

    @property
    def placement(self) -> trace_pb2.Placement:
        return self.process.placement

    @property
    def step(self) -> int:
        return self.process.step


@dataclass
class DemoState:
    scenario: Scenario
    membership: Membership = field(default_factory=Membership)
    runs: set[str] = field(default_factory=set)
    """That have been heard of: a finding of another is an earlier demo's."""
    ranks: dict[int, RankView] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)
    total_steps: int = 0
    loss: float | None = None
    first_slow_unix_ns: int | None = None
    paged: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By finding: the step and the time (Unix, ns) at which it first paged."""

    @property
    def from_step(self) -> int:
        """The first step in which a fault acts."""
        return min((fault.from_step for fault in self.scenario.faults), default=0)

    @property
    def step(self) -> int:
        """The last step that every rank has finished."""
        return min((rank.step for rank in self.ranks.values()), default=0)

    @property
    def injected(self) -> list[int]:
        """Ranks that a fault has hit so far."""
        # The step that a rank is in counts: one that hangs in it never ends it.
        in_work = {rank: min(view.step + 1, self.total_steps) for rank, view in self.ranks.items()}
        return sorted(rank for rank, view in self.ranks.items() if self._is_hit(rank, view, in_work[rank]))

    @property
    def found(self) -> list[int]:
        """Ranks of open findings that page."""
        paging = (f for f in self.findings.values() if f.state is State.OPEN and f.page)
        return sorted({rank for finding in paging for rank in finding.ranks})

    @property
    def unconfirmed(self) -> int:
        """Open findings that have not paged: advice, and what may come to nothing."""
        return sum(f.state is State.OPEN for f in self.findings.values() if f.id not in self.paged)

    def on_message(self, message: trace_pb2.RankMessage) -> None:
        """Take in one message of a rank."""
        if self.membership.begin(message.identity.attempt):
            self.ranks.clear()
        process, body = self.membership.apply(message), message.message
        if process is None or not process.hello_unix_ns:
            return
        view = self.ranks.get(process.rank)
        if view is None or view.process is not process:
            view = self.ranks[process.rank] = RankView(process)
        match body.WhichOneof("body"):
            case "hello":
                self.runs.add(message.identity.run)
                self.total_steps = body.hello.schedule.total_steps
            case "summary" if body.summary.step == process.step:
                self._summary(view, process.rank, body.summary)

    def find(self, finding: Finding) -> None:
        """Take in a new or changed finding of this demo."""
        if finding.run not in self.runs:
            return
        self.findings[finding.id] = finding
        if finding.page:
            self.paged.setdefault(finding.id, (self.step, finding.updated_unix_ns))

    def verdict(self) -> dict[str, Any]:
        """The result of `demo --check`: whom the fault hit, whom the platform named, and how fast."""
        right = [f for f in self.findings.values() if f.page and set(f.ranks) & set(self.injected)]
        first = min(right, key=lambda finding: finding.opened_unix_ns, default=None)
        step, unix_ns = self._found_at(first) if first else (None, None)
        seconds = None
        if unix_ns and self.first_slow_unix_ns:
            seconds = round((unix_ns - self.first_slow_unix_ns) / 1e9, 3)
        return {
            "injected": self.injected,
            "found": self.found,
            "detection_steps": step - self.from_step + 1 if step is not None else None,
            "detection_seconds": seconds,
            "cause": str(first.cause) if first else None,
        }

    def _found_at(self, finding: Finding) -> tuple[int, int]:
        """Step and time of its opening; of its page, where it had been open as a mere suspicion before the fault."""
        if finding.opened_step >= self.from_step:
            return finding.opened_step, finding.opened_unix_ns
        return self.paged[finding.id]

    def _is_hit(self, rank: int, view: RankView, step: int) -> bool:
        """Whether a fault acts on the rank that has begun by this step."""
        place = view.placement
        begun = (fault for fault in self.scenario.faults if fault.from_step <= step)
        return any(fault.hits(rank=rank, stage=place.pipeline, node=place.node) for fault in begun)

    def _summary(self, view: RankView, rank: int, summary: trace_pb2.StepSummary) -> None:
        view.step_seconds = summary.duration_ns / 1e9
        view.compute_seconds = _compute_seconds(summary)
        if summary.progress.HasField("loss"):
            self.loss = summary.progress.loss
        if summary.step == self.from_step and self._is_hit(rank, view, summary.step):
            began = view.placement.host_unix_ns + summary.start_ns - view.placement.host_clock_ns
            self.first_slow_unix_ns = min(began, self.first_slow_unix_ns or began)


def _compute_seconds(summary: trace_pb2.StepSummary) -> float:
    columns = summary_columns(summary)
    computes = [i for i, name in enumerate(summary.names) if name in PASSES]
    rows = np.isin(columns["name"], computes)
    cpu, wall = (int(columns[name][rows].sum()) for name in ("cpu_sum_ns", "duration_sum_ns"))
    return (cpu or wall) / 1e9

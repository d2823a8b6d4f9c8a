"""The demo on a terminal: progress all the time, who is slow as soon as it is known."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from megatronapp.cli.demo.state import DemoState
from megatronapp.core.findings import Cause, Finding, Kind, State
from megatronapp.core.scenario import Fault, Scenario

BAR_WIDTH = 24
SHORT_ID = 8
"""So much of a run's id tells it from others; the page shows as much."""


class Outcome(StrEnum):
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"

    @classmethod
    def of(cls, exit_code: int, *, stopped: bool) -> Outcome:
        """A run that was asked to stop may have ended with 0 before its last step."""
        if stopped:
            return cls.STOPPED
        return cls.FAILED if exit_code else cls.FINISHED


def render(state: DemoState) -> RenderableType:
    """The whole screen for the present state."""
    parts: list[RenderableType] = [_headline(state), _ranks(state)]
    parts += [_finding(finding) for finding in _newest_first(state)[:4]]
    if state.unconfirmed:
        parts.append(Text(f"watched, not sure yet: {state.unconfirmed}", style="dim"))
    parts.append(Text("Ctrl-C ends the demo", style="dim"))
    return Group(*parts)


def word(finding: Finding) -> str:
    """Where a finding stands: FOUND, resolved, or merely suspected."""
    if finding.state is State.RESOLVED:
        return "resolved"
    return "FOUND" if finding.page else "suspected"


def line(finding: Finding) -> str:
    """A finding in one line, for a log."""
    who = f"rank {', '.join(map(str, finding.ranks))}" if finding.ranks else "nobody in particular"
    since = f" since step {finding.since_step}" if finding.since_step is not None else ""
    return f"{word(finding)}: {who}{since}: {_what(finding)}, {_effect(finding)}"


def preview(job: str, run: str, scenario: Scenario, steps: int) -> list[str]:
    """What is about to happen; `steps` 0: not known."""
    lines = [f"run   {job}, id {run[:SHORT_ID]}, started {datetime.now():%H:%M:%S}"]
    for fault in scenario.faults:
        lines.append(f"fault {_fault(fault)}")
        if steps and fault.from_step > steps:
            lines.append(f"      The run ends with step {steps}, before it begins: nothing will be slow.")
    return lines


def ending(state: DemoState, outcome: Outcome) -> list[str]:
    """How the run has ended, and what was wrong with it then."""
    still = [f for f in map(state.findings.__getitem__, state.paged) if f.state is State.OPEN]
    over = len(state.paged) - len(still)
    lines = [
        f"The run has {outcome} at step {state.step}" + (f" of {state.total_steps}." if state.total_steps else ".")
    ]
    lines += [f"open at the end: {line(finding).partition(': ')[2]}" for finding in still]
    if over:
        lines.append(f"resolved before the end: {over}")
    if not state.paged:
        lines.append("nothing was found")
    return lines


def _fault(fault: Fault) -> str:
    ranks, stages = (", ".join(map(str, targets)) for targets in (fault.ranks, fault.stages))
    where = f"rank {ranks}" if ranks else f"stage {stages}" if stages else f"node {fault.node}"
    size = f", {(fault.effect_ratio - 1) * 100:.0f} % slower" if fault.effect_ratio else ""
    return f"{fault.kind.replace('_', ' ')} on {where} from step {fault.from_step}{size}"


def _what(finding: Finding) -> str:
    """Kind and cause in words; a rank without a GPU is not called one."""
    kind = "slow_device" if finding.kind is Kind.SLOW_GPU and not finding.gpu_uuid else finding.kind
    cause = "" if finding.cause is Cause.UNKNOWN else f" ({finding.cause})"
    return f"{kind}{cause}".replace("_", " ")


def _effect(finding: Finding) -> str:
    slower = f"{(finding.effect_ratio - 1) * 100:.0f} % slower than expected"
    if finding.cost_ratio == float("inf"):
        return "the job stands still"
    return f"{slower}, costs the job {(finding.cost_ratio - 1) * 100:.0f} % of its step time"


def _headline(state: DemoState) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    loss = f"loss {state.loss:.3f}" if state.loss is not None else ""
    text = f"step {state.step}/{state.total_steps}" if state.step else "starting the ranks …"
    bar = ProgressBar(total=max(state.total_steps, 1), completed=state.step, width=40)
    table.add_row(Text("training", style="bold"), bar, text, Text(loss, style="dim"))
    return table


def _ranks(state: DemoState) -> RenderableType:
    table = Table(box=None, header_style="dim", padding=(0, 2))
    for column in ("rank", "stage", "replica", "step", "compute"):
        table.add_column(column, justify="right")
    table.add_column("")
    longest = max((view.compute_seconds for view in state.ranks.values()), default=0.0) or 1.0
    for rank, view in sorted(state.ranks.items()):
        style = "bold red" if rank in state.found else ""
        bar = "━" * round(BAR_WIDTH * view.compute_seconds / longest)
        place = view.placement
        times = (f"{view.step_seconds * 1e3:.0f} ms", f"{view.compute_seconds * 1e3:.0f} ms")
        table.add_row(str(rank), str(place.pipeline), str(place.data), *times, bar, style=style)
    return table


def _newest_first(state: DemoState) -> list[Finding]:
    paged = (state.findings[identity] for identity in state.paged)
    return sorted(paged, key=lambda f: (f.state is State.OPEN, f.opened_unix_ns), reverse=True)


def _finding(finding: Finding) -> RenderableType:
    lines = [line(finding), *(evidence.text for evidence in finding.evidence[:3]), finding.advice]
    color = "green" if finding.state is State.RESOLVED else ("red" if finding.page else "yellow")
    return Panel("\n".join(text for text in lines if text), border_style=color, expand=False)

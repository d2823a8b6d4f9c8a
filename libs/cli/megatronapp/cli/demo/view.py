"""The demo on a terminal: progress all the time, who is slow as soon as it is known."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from megatronapp.cli.demo.state import DemoState
from megatronapp.core.findings import Finding, State

BAR_WIDTH = 24


def render(state: DemoState, url: str) -> RenderableType:
    """The whole screen for the present state."""
    parts: list[RenderableType] = [_headline(state), _ranks(state)]
    parts += [_finding(finding) for finding in _newest_first(state)[:4]]
    if state.watched:
        parts.append(Text(f"watched, not sure yet: {state.watched}", style="dim"))
    if url:
        parts.append(Text.assemble(("page  ", "dim"), (url, "underline"), ("   Ctrl-C ends the demo", "dim")))
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
    return f"{word(finding)}: {who}{since}: {finding.kind}/{finding.cause}, {_effect(finding)}"


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

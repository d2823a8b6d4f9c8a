"""A simulated step as a picture: an SVG, or a Chrome trace for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterator

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.simulator.run import Run

COLOURS = {Kind.FORWARD: "#4c78a8", Kind.BACKWARD: "#f58518", Kind.WGRAD: "#54a24b"}
NAMES = {Kind.FORWARD: "forward", Kind.BACKWARD: "backward", Kind.WGRAD: "wgrad"}
WIDTH, ROW, LEFT, TOP = 1400, 28, 70, 40
MOST_DRAWN = 50_000


def svg(run: Run, title: str) -> str:
    """A row a stage; later chunks are lighter. Raises UsageError for more operations than can be looked at."""
    layout = run.layout
    if layout.stages * layout.operations > MOST_DRAWN:
        raise UsageError(
            f"{layout.stages * layout.operations} operations are too many for an SVG ({MOST_DRAWN}); take --chrome"
        )
    scale = WIDTH / max(1, run.end_ns)
    height = TOP + ROW * layout.stages + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{height}" '
        f'viewBox="0 0 {LEFT + WIDTH + 20} {height}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-size="13">{_escaped(title)}</text>',
        *_legend(run),
    ]
    for stage in range(layout.stages):
        y = TOP + ROW * stage
        lines.append(f'<text x="4" y="{y + 17}">stage {stage}</text>')
        lines.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{ROW - 4}" fill="#eeeeee"/>')
        lines += _boxes(run, stage, y, scale)
    lines.append(f'<text x="{LEFT}" y="{height - 8}">0</text>')
    lines.append(f'<text x="{LEFT + WIDTH}" y="{height - 8}" text-anchor="end">{run.end_ns / 1e6:,.1f} ms</text>')
    return "\n".join([*lines, "</svg>", ""])


def _legend(run: Run) -> Iterator[str]:
    for index, kind in enumerate(run.layout.kinds):
        x = LEFT + index * 110
        name = "dgrad" if kind is Kind.BACKWARD and run.layout.split else NAMES[kind]
        yield f'<rect x="{x}" y="22" width="12" height="12" fill="{COLOURS[kind]}"/>'
        yield f'<text x="{x + 17}" y="32">{name}</text>'


def _boxes(run: Run, stage: int, y: int, scale: float) -> Iterator[str]:
    for number, operation in enumerate(run.layout.all_operations()):
        x, width = run.begins[stage, number] * scale + LEFT, run.durations[stage, number] * scale
        opacity = 1 - 0.5 * operation.chunk / max(1, run.layout.chunks - 1)
        took = run.durations[stage, number] / 1e6
        yield (
            f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW - 4}" fill="{COLOURS[operation.kind]}" '
            f'fill-opacity="{opacity:.2f}" stroke="white" stroke-width="0.5">'
            f"<title>{operation}: {took:.3f} ms</title></rect>"
        )
        if width > 16:
            middle = f'x="{x + width / 2:.1f}" y="{y + 16}" text-anchor="middle"'
            yield f'<text {middle} fill="white">{operation.microbatch}</text>'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def chrome(run: Run) -> str:
    """Chrome trace events: a process a stage, and the activations in flight as a counter."""
    events: list[dict[str, object]] = []
    for stage in range(run.layout.stages):
        events.append({"name": "process_name", "ph": "M", "pid": stage, "tid": 0, "args": {"name": f"stage {stage}"}})
        events += _spans(run, stage)
        events += _in_flight(run, stage)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _spans(run: Run, stage: int) -> Iterator[dict[str, object]]:
    for number, operation in enumerate(run.layout.all_operations()):
        yield {
            "name": NAMES[operation.kind],
            "ph": "X",
            "pid": stage,
            "tid": 0,
            "ts": int(run.begins[stage, number]) / 1e3,
            "dur": int(run.durations[stage, number]) / 1e3,
            "args": {"microbatch": operation.microbatch, "model_chunk": operation.chunk},
        }


def _in_flight(run: Run, stage: int) -> Iterator[dict[str, object]]:
    last = Kind.WGRAD if run.layout.split else Kind.BACKWARD
    changes = []
    for number, operation in enumerate(run.layout.all_operations()):
        if operation.kind is Kind.FORWARD:
            changes.append((int(run.begins[stage, number]), 1))
        elif operation.kind is last:
            changes.append((int(run.begins[stage, number] + run.durations[stage, number]), -1))
    held = 0
    for at, change in sorted(changes):
        held += change
        yield {"name": "activations", "ph": "C", "pid": stage, "ts": at / 1e3, "args": {"in flight": held}}

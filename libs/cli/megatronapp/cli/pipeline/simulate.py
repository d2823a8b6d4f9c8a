"""`simulate`: what a step of a pipeline takes and holds under one schedule."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from megatronapp.cli.pipeline import drawing, report
from megatronapp.cli.pipeline.compiled import compiled_engine
from megatronapp.cli.pipeline.files import write_file
from megatronapp.cli.pipeline.options import Asked, Simulated, asked, checked_size
from megatronapp.core.errors import DataError, MegatronAppError, NotFoundError, UsageError
from megatronapp.core.pipeline import caps, orders
from megatronapp.core.pipeline.placement import Layout, Placement
from megatronapp.core.pipeline.schedule_csv import read_csv, write_csv
from megatronapp.core.pipeline.simulator.planning import stock_order
from megatronapp.core.pipeline.simulator.replay import replay_recorded
from megatronapp.core.pipeline.simulator.run import Run, Schedule, dynamic, strict
from megatronapp.core.pipeline.simulator.steps import simulate_steps, with_backward

NAMES = ", ".join(orders.STATIC)


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(Simulated):
    """Schedule."""

    chunks: Annotated[int | None, typer.Option(help="virtual stages (VPP) of a stage")] = None
    schedule: Annotated[str, typer.Option(help=f"run as it is: {NAMES}, or a CSV file in torchtitan's form")] = ""
    hint: Annotated[
        str, typer.Option(help=f"choose while running, by this order: {', '.join(orders.HINTS)}, or a CSV file")
    ] = ""
    cap: Annotated[
        int | None, typer.Option(help="with --hint: activations a stage may hold; default: stock's peak")
    ] = None
    split: Annotated[bool | None, typer.Option(help="gradients of the weights are operations of their own")] = None
    svg: Annotated[Path | None, typer.Option(help="draw the first replica's step")] = None
    chrome: Annotated[Path | None, typer.Option(help="the same as a Chrome trace, for Perfetto")] = None
    csv: Annotated[Path | None, typer.Option(help="the order that each stage ran, in torchtitan's form")] = None


def simulate(options: SimulateOptions) -> None:
    """Simulate a pipeline's step: its time, its bubble, its memory, and how far all is from what is possible."""
    question = asked(options)
    if question.recorded is not None and not (options.schedule or options.hint):
        shown = _replay(question, options.as_json)
    else:
        shown = _simulate(question, options)
    if options.svg:
        write_file(options.svg, drawing.svg(shown, f"{shown.layout.stages} stages × {shown.layout.chunks}"))
    if options.chrome:
        write_file(options.chrome, drawing.chrome(shown))
    if options.csv:
        write_file(options.csv, write_csv(shown.layout, shown.orders()))


def _replay(question: Asked, as_json: bool) -> Run:
    """The recording's own steps, against what they took."""
    recorded = question.recorded
    assert recorded is not None  # noqa: S101
    runs = [replay_recorded(recorded, step, engine=compiled_engine()) for step in range(len(recorded))]
    answer = report.of_replay(recorded, runs)
    print(json.dumps(answer) if as_json else report.replay_text(answer))
    return runs[0]


def _simulate(question: Asked, options: SimulateOptions) -> Run:
    layout, schedule, note = _schedule(question, options)
    setting = with_backward(question.setting, 1 + options.split_overhead * layout.split)
    steps = simulate_steps(layout, schedule, question.times(layout), setting, compiled_engine())
    answer = report.of_steps(schedule, steps, question.setting, options.activation_mib)
    print(json.dumps(answer) if options.as_json else report.steps_text(answer))
    if note and not options.as_json:
        print(f"note: {note}")
    return steps.shown


def _schedule(question: Asked, options: SimulateOptions) -> tuple[Layout, Schedule, str | None]:
    """(layout, schedule, what to say of its cap)."""
    name, hint = options.schedule, options.hint
    if name and hint:
        raise UsageError("take --schedule to run an order as it is, or --hint to choose while running, not both")
    layout, stage_orders = _orders(question, name or hint, options)
    if not hint:
        if options.cap is not None:
            raise UsageError("a schedule that runs as it is has no cap; --cap goes with --hint")
        stock = stock_order(layout)
        made = strict(f"{name or stock} as it is", layout, stage_orders, by_need=name not in ("", stock))
        return layout, replace(made, pending=question.pending), None
    asked_for = options.cap if options.cap is not None else _stock_cap(layout)
    cap = min(caps.checked_cap(layout, asked_for), layout.chunks * layout.microbatches)
    links = question.setting.links
    needed = caps.least_cap(layout, question.times(layout), links.latency_ns + links.transfer_ns)
    made = dynamic(f"hint {hint}, cap {cap}", layout, stage_orders, [cap] * layout.stages, pending=question.pending)
    return layout, made, caps.too_small(cap, needed)


def _stock_cap(layout: Layout) -> int:
    return caps.stock_cap(replace(layout, placement=Placement.LOOP))


def _orders(question: Asked, name: str, options: SimulateOptions) -> tuple[Layout, list[orders.Order]]:
    split, chunks = options.split, options.chunks
    if name.endswith(".csv"):
        layout, found = _read_csv(Path(name))
        if (layout.stages, layout.microbatches) != (question.stages, question.microbatches):
            raise UsageError(
                f"{name} is for {layout.stages} stages and {layout.microbatches} microbatches, not "
                f"{question.stages} and {question.microbatches}; say so with --stages and --microbatches"
            )
        return layout, found
    if question.recorded is not None:
        chunks = _recorded_chunks(question, chunks)
    by_v = name in ("zbv", "dualpipev")
    layout = checked_size(
        Layout(
            stages=question.stages,
            microbatches=question.microbatches,
            chunks=(2 if by_v else 1) if chunks is None else chunks,
            split=split if split is not None else name.startswith("zb") or by_v or bool(options.hint),
            placement=Placement.V if by_v else Placement.LOOP,
        )
    )
    return layout, orders.all_stages(name or stock_order(layout), layout)


def _recorded_chunks(question: Asked, chunks: int | None) -> int:
    assert question.recorded is not None  # noqa: S101
    found = question.recorded.layout.chunks
    if chunks not in (None, found):
        raise UsageError(f"the recording has {found} chunks a stage; leave --chunks out")
    return found


def _read_csv(path: Path) -> tuple[Layout, list[orders.Order]]:
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} is not there") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read: {error}") from error
    try:
        return read_csv(text)
    except MegatronAppError as error:
        raise DataError(f"{path}: {error}") from error

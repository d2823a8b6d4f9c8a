"""`plan`: which schedule a pipeline should run, and with `--forward-devices` whether MegaFBD pays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from megatronapp.cli.pipeline import disaggregated, recorded_run, report, stage_sizes
from megatronapp.cli.pipeline.compiled import compiled_engine
from megatronapp.cli.pipeline.disaggregated import Disaggregated
from megatronapp.cli.pipeline.files import write_file
from megatronapp.cli.pipeline.options import Asked, asked, chunk_numbers
from megatronapp.cli.pipeline.recorded_run import FromRun
from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline import orders
from megatronapp.core.pipeline.arrays import PassTimes
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.schedule_csv import write_csv
from megatronapp.core.pipeline.simulator.planning import Plan, make_plan
from megatronapp.core.pipeline.simulator.steps import Setting
from megatronapp.core.pipeline.stage_sizes import Vocabulary


@dataclass(frozen=True, kw_only=True)
class PlanOptions(FromRun):
    """What is tried."""

    chunks: Annotated[str, typer.Option(help="virtual stages (VPP) of a stage; several to try: 1,2,4")] = ""
    cap_limit: Annotated[int | None, typer.Option(help="activations a stage has memory for; default: stock's peak")] = (
        None
    )
    embedding_layers: Annotated[
        float, typer.Option(help="with --layers: as long as so many layers the first stage's embedding takes")
    ] = 0.0
    head_layers: Annotated[
        float, typer.Option(help="with --layers: as long as so many the last stage's output layer with the loss takes")
    ] = 0.0
    csv: Annotated[Path | None, typer.Option(help="the order of what is chosen, for --dpp-policy replay")] = None


def plan(options: PlanOptions) -> None:
    """Compare the stock schedules with hints under caps, and say which to run; with --forward-devices, say whether
    MegaFBD pays, and how."""
    options = recorded_run.completed(options)
    question = asked(options)
    numbers = _chunk_numbers(options, question)
    if options.forward_devices is not None:
        if options.csv:
            raise UsageError("--csv writes a schedule's order, which MegaFBD has none of: leave --forward-devices out")
        said = disaggregated.answer(question, numbers, options)
        text = disaggregated.text(said)
    else:
        said, text = _schedules(question, numbers, options)
    print(json.dumps(said) if options.as_json else text)


def _chunk_numbers(options: PlanOptions, question: Asked) -> list[int]:
    recorded = question.recorded.layout.chunks if question.recorded else None
    numbers = chunk_numbers(options.chunks) if options.chunks else [recorded or 1]
    if recorded is not None and numbers != [recorded]:
        raise UsageError(f"the recording has {recorded} chunks a stage; leave --chunks out")
    return numbers


def _schedules(question: Asked, numbers: list[int], options: PlanOptions) -> tuple[dict[str, Any], str]:
    """The answer as an object, and for people."""
    _refuse_what_does_nothing(options, numbers)
    layouts = [question.layout(number) for number in numbers]
    model = stage_sizes.Model(question, options.layers, Vocabulary(options.embedding_layers, options.head_layers))

    def planned(of: Sequence[Layout], given: Sequence[PassTimes], setting: Setting) -> Plan:
        return make_plan(
            of, given, setting, cap_limit=options.cap_limit, pending=question.pending,
            split_overhead=options.split_overhead, engine=compiled_engine(),
        )  # fmt: skip

    made = planned(layouts, [model.times(layout) for layout in layouts], question.setting)
    chosen = made.chosen.candidate
    if options.csv:
        write_file(options.csv, write_csv(chosen.layout, orders.all_stages(chosen.order, chosen.layout)))
    answer = report.of_plan(made, question, options.activation_mib, options.csv)
    text = report.plan_text(answer)
    if options.layers is not None:
        answer["stage_sizes"] = stage_sizes.proposed(
            made, model, options.layers, lambda layout, of_sizes, setting: planned([layout], [of_sizes], setting)
        )
        text += f"\n{stage_sizes.text(answer['stage_sizes'])}"
    return answer, text


def _refuse_what_does_nothing(options: PlanOptions, numbers: list[int]) -> None:
    alone = (each for each in fields(Disaggregated) if each.name != "layers")
    if given := [each.name for each in alone if getattr(options, each.name) != each.default]:
        raise UsageError(f"--{given[0].replace('_', '-')} does nothing without --forward-devices: add it")
    if options.cap_limit is not None and len(numbers) > 1:
        raise UsageError("--cap-limit counts activations of one chunk; name one number of --chunks with it")

"""`plan`: which schedule a pipeline should run, and with `--forward-devices` whether MegaFBD pays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from megatronapp.cli.pipeline import disaggregated, options, recorded_run, report, stage_sizes
from megatronapp.cli.pipeline.compiled import compiled_engine
from megatronapp.cli.pipeline.options import asked, chunk_numbers
from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.arrays import PassTimes
from megatronapp.core.pipeline.simulator.planning import Plan, make_plan
from megatronapp.core.pipeline.simulator.steps import Setting


def plan(
    stages: options.Stages = None,
    microbatches: options.Microbatches = None,
    chunks: Annotated[str, typer.Option(help="virtual stages (VPP) of a stage; several to try: 1,2,4")] = "",
    cap_limit: Annotated[
        int | None, typer.Option(help="activations a stage has memory for; default: stock's peak")
    ] = None,
    forward_ms: options.ForwardMs = 10.0,
    dgrad_ms: options.DgradMs = 13.0,
    wgrad_ms: options.WgradMs = 7.0,
    trace: options.Trace = None,
    from_run: Annotated[
        Path | None,
        typer.Option(help="a job's folder in --trace-dir: its times, with --forward-devices its model and sizes, too"),
    ] = None,
    wgrad_share: options.WgradShare = 0.35,
    latency_ms: options.LatencyMs = 0.0,
    transfer_ms: options.TransferMs = 0.0,
    stages_per_link: options.StagesPerLink = 0,
    blocking: options.Blocking = False,
    slow_link: options.SlowLink = None,
    jitter_cv: options.JitterCv = 0.0,
    length_cv: options.LengthCv = 0.0,
    slow_stage: options.SlowStage = None,
    slow_spells: options.SlowSpells = "",
    late_ratio: options.LateRatio = 0.0,
    late_ms: options.LateMs = 0.0,
    tensor: options.Tensor = 1,
    replicas: options.Replicas = 1,
    grad_sync_ms: options.GradSyncMs = 0.0,
    optimizer_ms: options.OptimizerMs = 0.0,
    step_barrier: options.StepBarrier = True,
    draws: options.Draws = 5,
    seed: options.Seed = 0,
    pending_share: options.PendingShare = 1.0,
    split_overhead: options.SplitOverhead = 0.0,
    activation_mib: options.ActivationMib = 0.0,
    forward_devices: disaggregated.ForwardDeviceCount = None,
    forward_speed: disaggregated.ForwardSpeed = 1.0,
    forward_memory_gib: disaggregated.ForwardMemoryGib = 80.0,
    memory_gib: disaggregated.MemoryGib = 80.0,
    link_gbps: disaggregated.LinkGbps = 400.0,
    link_ms: disaggregated.LinkMs = 0.0,
    linears_share: disaggregated.LinearsShare = None,
    parameter_bytes: disaggregated.ParameterBytes = 18.0,
    sequence_parallel: disaggregated.SequenceParallel = False,
    layers: disaggregated.Layers = None,
    hidden_size: disaggregated.HiddenSize = None,
    ffn_hidden_size: disaggregated.FfnHiddenSize = None,
    qkv_width: disaggregated.QkvWidth = None,
    num_query_groups: disaggregated.QueryGroups = None,
    swiglu: disaggregated.Gated = False,
    seq_length: disaggregated.SeqLength = None,
    micro_batch_size: disaggregated.MicroBatchSize = 1,
    vocab_size: disaggregated.VocabSize = 50304,
    as_json: options.AsJson = False,
) -> None:
    """Compare the stock schedules with hints under caps, and say which to run; with --forward-devices, say whether
    MegaFBD pays, and how."""
    values = recorded_run.completed(locals())
    question = asked(values)
    numbers = chunk_numbers(chunks) if chunks else [question.recorded.layout.chunks if question.recorded else 1]
    if question.recorded is not None and numbers != [question.recorded.layout.chunks]:
        raise UsageError(f"the recording has {question.recorded.layout.chunks} chunks a stage; leave --chunks out")
    if forward_devices is not None:
        said = disaggregated.answer(question, numbers, values)
        print(json.dumps(said) if as_json else disaggregated.text(said))
        return
    if given := [name for name in disaggregated.NEEDED if values[name] is not None and name != "layers"]:
        raise UsageError(f"--{given[0].replace('_', '-')} does nothing without --forward-devices: add it")
    if cap_limit is not None and len(numbers) > 1:
        raise UsageError("--cap-limit counts activations of one chunk; name one number of --chunks with it")
    layouts = [question.layout(number) for number in numbers]
    times = [question.times(layout) for layout in layouts]
    engine = compiled_engine()

    def planned(given: Sequence[PassTimes], setting: Setting) -> Plan:
        return make_plan(
            layouts, given, setting, cap_limit=cap_limit, pending=question.pending,
            split_overhead=split_overhead, engine=engine,
        )  # fmt: skip

    made = planned(times, question.setting)
    answer = report.of_plan(made, question, activation_mib)
    text = report.plan_text(answer)
    if layers is not None:
        answer["stage_sizes"] = stage_sizes.proposed(
            made, question, layers, lambda of_sizes, setting: planned([of_sizes], setting)
        )
        text += f"\n{stage_sizes.text(answer['stage_sizes'])}"
    print(json.dumps(answer) if as_json else text)

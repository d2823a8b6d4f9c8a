"""`plan --forward-devices`: whether MegaFBD pays with these devices beside the training."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from megatronapp.cli.pipeline.options import Asked
from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.disaggregation.cluster import ForwardDevices, Model, Training
from megatronapp.core.pipeline.disaggregation.planning import GIB, Plan, Scored, make_plan

ForwardDeviceCount = Annotated[
    int | None, typer.Option("--forward-devices", help="devices of a replica for MegaFBD's forward passes")
]
ForwardSpeed = Annotated[float, typer.Option(help="of a forward device; 1 is a training device's")]
ForwardMemoryGib = Annotated[float, typer.Option(help="of a forward device")]
MemoryGib = Annotated[float, typer.Option(help="of a training device")]
LinkGbps = Annotated[float, typer.Option(help="of a forward device's link, in Gbit/s each way")]
LinkMs = Annotated[float, typer.Option(help="its latency")]
LinearsShare = Annotated[float | None, typer.Option(help="of a forward's time; default: their share of its FLOPs")]
ParameterBytes = Annotated[
    float, typer.Option(help="of a trained parameter: 18, or 6 + 12 ÷ replicas with the distributed optimizer")
]
SequenceParallel = Annotated[bool, typer.Option("--sequence-parallel", help="as in training")]
Layers = Annotated[
    int | None,
    typer.Option(help="of the model; with --trace: says how many the first and last stage should have"),
]
HiddenSize = Annotated[int | None, typer.Option(help="of the model")]
FfnHiddenSize = Annotated[int | None, typer.Option(help="of the model; default: four times the hidden size")]
QkvWidth = Annotated[int | None, typer.Option(help="of queries, keys and values; default: three times the hidden size")]
QueryGroups = Annotated[
    int | None, typer.Option("--num-query-groups", help="attention heads where not grouped; default: hidden size ÷ 128")
]
Gated = Annotated[bool, typer.Option("--swiglu", help="the MLP is gated")]
SeqLength = Annotated[int | None, typer.Option(help="tokens of a sequence")]
MicroBatchSize = Annotated[int, typer.Option(help="sequences of a microbatch")]
VocabSize = Annotated[int, typer.Option(help="of the model")]

NEEDED = ("layers", "hidden_size", "seq_length")
SIMULATED = (
    "stages_per_link", "blocking", "slow_link", "jitter_cv", "length_cv", "slow_stage", "slow_spells", "late_ratio",
    "split_overhead", "activation_mib", "cap_limit",
)  # fmt: skip
"""What only schedules are simulated with."""


def answer(question: Asked, chunks: list[int], values: dict[str, Any]) -> dict[str, Any]:
    """Raises UsageError."""
    if len(chunks) > 1:
        raise UsageError("with --forward-devices name one number of --chunks")
    for name in SIMULATED:
        if values[name]:
            raise UsageError(f"{_flag(name)} has no meaning with --forward-devices: leave it out")
    if missing := [_flag(name) for name in NEEDED if values[name] is None]:
        raise UsageError(f"--forward-devices needs the model's sizes: add {', '.join(missing)}")
    return report(
        make_plan(
            _model(values),
            _training(question, chunks[0], values),
            ForwardDevices(
                count=values["forward_devices"],
                speed=values["forward_speed"],
                memory_bytes=values["forward_memory_gib"] * GIB,
                bytes_per_second=values["link_gbps"] * 1e9 / 8,
                latency_ns=values["link_ms"] * 1e6,
            ),
            linears_share=values["linears_share"],
        )
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _model(values: dict[str, Any]) -> Model:
    hidden = values["hidden_size"]
    return Model(
        layers=values["layers"],
        hidden=hidden,
        sequence=values["seq_length"],
        batch=values["micro_batch_size"],
        ffn=values["ffn_hidden_size"] or 4 * hidden,
        qkv_width=values["qkv_width"] or 3 * hidden,
        vocabulary=values["vocab_size"],
        groups=values["num_query_groups"] or max(hidden // 128, 1),
        gated=values["swiglu"],
    )


def _training(question: Asked, chunks: int, values: dict[str, Any]) -> Training:
    layout = question.layout(chunks)
    forward, dgrad, wgrad = question.times(layout).sum(axis=2).max(axis=1).tolist()
    links, end = question.setting.links, question.setting.end
    return Training(
        layout=layout,
        tensor=question.tensor,
        replicas=question.setting.replicas,
        forward_ns=forward,
        dgrad_ns=dgrad,
        wgrad_ns=wgrad,
        memory_bytes=values["memory_gib"] * GIB,
        message_ns=links.latency_ns + links.transfer_ns,
        tail_ns=end.grad_sync_ns + end.optimizer_ns,
        parameter_bytes=values["parameter_bytes"],
        sequence_parallel=values["sequence_parallel"],
    )


def report(made: Plan) -> dict[str, Any]:
    """One object."""
    baseline = made.baseline
    return {
        "pays": made.pays,
        "reason": made.reason,
        "gain_ratio": round(made.chosen.gain, 4) if made.chosen else None,
        "baseline": {
            "training": str(baseline),
            "step_ms": round(baseline.step_ns / 1e6, 4),
            "memory_gib": round(baseline.memory_bytes / GIB, 2),
        },
        "chosen": _scored(made.chosen) if made.chosen else None,
        "tried": [_scored(each) for each in made.tried],
    }


def _scored(scored: Scored) -> dict[str, Any]:
    mapping, paces = scored.mapping, scored.paces
    return {
        "mode": str(mapping.mode),
        "forward_tensor": mapping.tensor,
        "forward_pipeline": mapping.pipeline,
        "slots": mapping.slots,
        "forward_devices": mapping.devices,
        "step_ms": round(scored.step_ns / 1e6, 4),
        "gain_ratio": round(scored.gain, 4),
        "bound_ratio": round(scored.bound, 4),
        "microbatch_ms": {name: round(pace / 1e6, 4) for name, pace in paces._asdict().items()},
        "forward_memory_gib": round(scored.forward_bytes / GIB, 2),
        "backward_memory_gib": round(scored.backward_bytes / GIB, 2),
    }


def text(said: dict[str, Any]) -> str:
    """The same for people: for each mode and number of devices the leanest mapping, fastest first."""
    baseline, chosen = said["baseline"], said["chosen"]
    lines = [f"{baseline['step_ms']:12,.1f} ms  without MegaFBD: {baseline['training']}", ""]
    lines.append(f"{'step':>15}  {'gain':>5}  {'bound':>5}  {'holds':>9}  {'forward':>9}  mapping")
    shown: set[tuple[str, int]] = set()
    for each in [chosen, *said["tried"]] if chosen else []:
        key = each["mode"], each["forward_devices"]
        if key not in shown:
            shown.add(key)
            lines.append(_line(each) + (" ← best" if each is chosen else ""))
    if said["pays"]:
        return "\n".join([*lines, "", f"MegaFBD pays: {said['gain_ratio']:.2f} times as fast. Run {_flags(chosen)}"])
    return "\n".join([*lines, "", f"MegaFBD does not pay: {said['reason']}"])


def _line(each: dict[str, Any]) -> str:
    return (
        f"{each['step_ms']:12,.1f} ms  {each['gain_ratio']:5.2f}  {each['bound_ratio']:5.2f}  "
        f"{each['backward_memory_gib']:5.1f} GiB  {each['forward_memory_gib']:5.1f} GiB  {each['mode']}, forward TP "
        f"{each['forward_tensor']} × PP {each['forward_pipeline']}, {each['slots']} slots"
    )


def _flags(chosen: dict[str, Any]) -> str:
    return (
        f"--forward-backward-disaggregating --fbd-mode {chosen['mode']} --forward-tensor-model-parallel-size "
        f"{chosen['forward_tensor']} --forward-pipeline-model-parallel-size {chosen['forward_pipeline']} "
        f"--fbd-slots {chosen['slots']}"
    )

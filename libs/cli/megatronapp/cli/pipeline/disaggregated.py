"""`plan --forward-devices`: whether MegaFBD pays with these devices beside the training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from megatronapp.cli.pipeline.options import Asked
from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.disaggregation.cluster import ForwardDevices, Model, Training
from megatronapp.core.pipeline.disaggregation.planning import GIB, Plan, Scored, make_plan


@dataclass(frozen=True, kw_only=True)
class Disaggregated:
    """MegaFBD: forward devices and the model."""

    forward_devices: Annotated[int | None, typer.Option(help="devices of a replica for MegaFBD's forward passes")] = (
        None
    )
    forward_speed: Annotated[float, typer.Option(help="of a forward device; 1 is a training device's")] = 1.0
    forward_memory_gib: Annotated[float, typer.Option(help="of a forward device")] = 80.0
    memory_gib: Annotated[float, typer.Option(help="of a training device")] = 80.0
    link_gbps: Annotated[float, typer.Option(help="of a forward device's link, in Gbit/s each way")] = 400.0
    link_ms: Annotated[float, typer.Option(help="its latency")] = 0.0
    linears_share: Annotated[
        float | None, typer.Option(help="of a forward's time; default: their share of its FLOPs")
    ] = None
    parameter_bytes: Annotated[
        float, typer.Option(help="of a trained parameter: 18, or 6 + 12 ÷ replicas with the distributed optimizer")
    ] = 18.0
    sequence_parallel: Annotated[bool, typer.Option("--sequence-parallel", help="as in training")] = False
    layers: Annotated[
        int | None,
        typer.Option(help="of the model; with --trace: says how many the first and last stage should have"),
    ] = None
    hidden_size: Annotated[int | None, typer.Option(help="of the model")] = None
    ffn_hidden_size: Annotated[int | None, typer.Option(help="of the model; default: four times the hidden size")] = (
        None
    )
    qkv_width: Annotated[
        int | None, typer.Option(help="of queries, keys and values; default: three times the hidden size")
    ] = None
    num_query_groups: Annotated[
        int | None, typer.Option(help="attention heads where not grouped; default: hidden size ÷ 128")
    ] = None
    swiglu: Annotated[bool, typer.Option("--swiglu", help="the MLP is gated")] = False
    seq_length: Annotated[int | None, typer.Option(help="tokens of a sequence")] = None
    micro_batch_size: Annotated[int, typer.Option(help="sequences of a microbatch")] = 1
    vocab_size: Annotated[int, typer.Option(help="of the model")] = 50304


NEEDED = ("layers", "hidden_size", "seq_length")
SIMULATED = (
    "stages_per_link", "blocking", "slow_link", "jitter_cv", "length_cv", "slow_stage", "slow_spells", "late_ratio",
    "split_overhead", "activation_mib", "cap_limit", "embedding_layers", "head_layers", "host_ms",
)  # fmt: skip
"""What only schedules are simulated with."""


def answer(question: Asked, chunks: list[int], options: Disaggregated) -> dict[str, Any]:
    """Raises UsageError."""
    if len(chunks) > 1:
        raise UsageError("with --forward-devices name one number of --chunks")
    for name in SIMULATED:
        if getattr(options, name):
            raise UsageError(f"{_flag(name)} has no meaning with --forward-devices: leave it out")
    if missing := [_flag(name) for name in NEEDED if getattr(options, name) is None]:
        raise UsageError(f"--forward-devices needs the model's sizes: add {', '.join(missing)}")
    return report(
        make_plan(
            _model(options),
            _training(question, chunks[0], options),
            ForwardDevices(
                count=options.forward_devices or 0,
                speed=options.forward_speed,
                memory_bytes=options.forward_memory_gib * GIB,
                bytes_per_second=options.link_gbps * 1e9 / 8,
                latency_ns=options.link_ms * 1e6,
            ),
            linears_share=options.linears_share,
        )
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _model(options: Disaggregated) -> Model:
    layers, hidden, sequence = (int(getattr(options, name)) for name in NEEDED)
    return Model(
        layers=layers,
        hidden=hidden,
        sequence=sequence,
        batch=options.micro_batch_size,
        ffn=_given(options.ffn_hidden_size, 4 * hidden),
        qkv_width=_given(options.qkv_width, 3 * hidden),
        vocabulary=options.vocab_size,
        groups=_given(options.num_query_groups, max(hidden // 128, 1)),
        gated=options.swiglu,
    )


def _given(size: int | None, default: int) -> int:
    return default if size is None else size


def _training(question: Asked, chunks: int, options: Disaggregated) -> Training:
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
        memory_bytes=options.memory_gib * GIB,
        message_ns=links.latency_ns + links.transfer_ns,
        tail_ns=end.grad_sync_ns + end.optimizer_ns,
        parameter_bytes=options.parameter_bytes,
        sequence_parallel=options.sequence_parallel,
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

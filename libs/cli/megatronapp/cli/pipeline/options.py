"""The options that `simulate` and `plan` share, and what they mean together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from megatronapp.cli.pipeline.recordings import read_recording
from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.arrays import PassTimes
from megatronapp.core.pipeline.choosing import LAUNCH_NS, PASSES_NS, Host
from megatronapp.core.pipeline.lanes import WHOLE
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.recorded import Recorded
from megatronapp.core.pipeline.simulator.links import Links
from megatronapp.core.pipeline.simulator.steps import Setting, StepEnd
from megatronapp.core.pipeline.simulator.times import Markov, Variation, equal_times


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Pipeline."""

    stages: Annotated[int | None, typer.Option(help="pipeline stages (PP); with --trace those of the recording")] = None
    microbatches: Annotated[int | None, typer.Option(help="microbatches of a replica's step")] = None
    tensor: Annotated[int, typer.Option(help="tensor-parallel ranks of a stage; the slowest sets the pace")] = 1
    replicas: Annotated[int, typer.Option(help="data-parallel replicas; all wait for the slowest")] = 1


@dataclass(frozen=True, kw_only=True)
class Times:
    """Times of operations."""

    forward_ms: Annotated[float, typer.Option(help="forward of one microbatch on one stage, all its chunks")] = 10.0
    dgrad_ms: Annotated[float, typer.Option(help="backward without the gradients of the weights")] = 13.0
    wgrad_ms: Annotated[float, typer.Option(help="gradients of the weights")] = 7.0
    split_overhead: Annotated[float, typer.Option(help="of a backward's time, that the split of B and W costs")] = 0.0
    decision_lead_ms: Annotated[
        float | None,
        typer.Option(
            help="a stage chooses so long before its running operation ends; default: what its host takes to launch "
            "one, and 0.3 ms, as the trainer does; 0 on CPUs"
        ),
    ] = None
    launch_ms: Annotated[float, typer.Option(help="from a choice to its first kernel; 0 on CPUs")] = LAUNCH_NS / 1e6
    host_ms: Annotated[
        str,
        typer.Option(
            help="F,B,W: what a stage's host takes to launch these of one chunk; default: 5,5,1 as measured on H100s' "
            "hosts, but no longer than they take; 0: nothing, as on CPUs"
        ),
    ] = ""
    trace: Annotated[
        Path | None,
        typer.Option(help="a trace folder (--trace-dir) or MegaScan's files: times are drawn from its steps"),
    ] = None
    wgrad_share: Annotated[
        float, typer.Option(help="with --trace: the gradients of the weights' share of a backward")
    ] = 0.35


@dataclass(frozen=True, kw_only=True)
class Messages:
    """Messages between stages."""

    latency_ms: Annotated[float, typer.Option(help="of a message between stages")] = 0.0
    transfer_ms: Annotated[float, typer.Option(help="for which a message occupies its link")] = 0.0
    stages_per_link: Annotated[int, typer.Option(help="neighbouring stages that share a way out; 0: a link each")] = 0
    blocking: Annotated[bool, typer.Option("--blocking", help="messages take the receiving stage's time")] = False
    slow_link: Annotated[list[str] | None, typer.Option(help="FROM-TO=FACTOR, such as 0-1=4")] = None
    late_ratio: Annotated[float, typer.Option(help="share of messages that come late")] = 0.0
    late_ms: Annotated[float, typer.Option(help="by how much")] = 0.0


@dataclass(frozen=True, kw_only=True)
class Spread:
    """What differs from operation to operation."""

    jitter_cv: Annotated[float, typer.Option(help="coefficient of variation of each operation")] = 0.0
    length_cv: Annotated[float, typer.Option(help="coefficient of variation of the microbatches' lengths")] = 0.0
    slow_stage: Annotated[list[str] | None, typer.Option(help="STAGE=FACTOR, such as 3=1.3")] = None
    slow_spells: Annotated[
        str, typer.Option(help="FACTOR,ENTER,LEAVE: a stage turns slow and recovers with these chances a microbatch")
    ] = ""
    draws: Annotated[int, typer.Option(help="how often times are drawn")] = 5
    seed: Annotated[int, typer.Option(min=0, help="the same seed draws the same times")] = 0


@dataclass(frozen=True, kw_only=True)
class End:
    """The step's end."""

    grad_sync_ms: Annotated[float, typer.Option(help="gradient sync behind the last operation")] = 0.0
    optimizer_ms: Annotated[float, typer.Option(help="optimizer")] = 0.0
    step_barrier: Annotated[
        bool, typer.Option("--barrier/--no-barrier", help="all stages begin the optimizer together (gradient norm)")
    ] = True


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory."""

    pending_share: Annotated[float, typer.Option(help="of an activation, that a pending W still holds")] = 1.0
    activation_mib: Annotated[
        float, typer.Option(min=0, max=1e9, help="of one microbatch on one chunk; memory is told in MiB then")
    ] = 0.0


@dataclass(frozen=True, kw_only=True)
class Simulated(Memory, End, Spread, Messages, Times, Shape):
    """Output."""

    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False


MAX_GPUS = 16_384
MAX_OPERATIONS = 4_000_000
"""Of one replica's step: some minutes of a core."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the shared options say."""

    stages: int
    microbatches: int
    recorded: Recorded | None
    setting: Setting
    pending: int
    tensor: int
    _times_ms: tuple[float, float, float]
    _wgrad_share: float

    def layout(self, chunks: int, *, split: bool = False) -> Layout:
        return checked_size(Layout(stages=self.stages, microbatches=self.microbatches, chunks=chunks, split=split))

    def times(self, layout: Layout) -> PassTimes:
        if self.recorded is not None:
            return self.recorded.pass_times(self._wgrad_share)
        forward, dgrad, wgrad = (each * 1e6 for each in self._times_ms)
        return equal_times(layout, forward, dgrad, wgrad)


def checked_size(layout: Layout) -> Layout:
    """Raises UsageError for one that can't be simulated in a while."""
    operations = layout.stages * layout.operations
    if operations > MAX_OPERATIONS:
        raise UsageError(
            f"{operations} operations are more than can be simulated at once ({MAX_OPERATIONS}); take fewer "
            "--microbatches or --chunks"
        )
    return layout


def asked(options: Simulated) -> Asked:
    """Raises UsageError, and as read_recording."""
    recorded = read_recording(options.trace) if options.trace else None
    stages, microbatches = options.stages, options.microbatches
    if recorded is not None:
        _check_recorded(recorded, options)
        stages, microbatches = recorded.layout.stages, microbatches or recorded.layout.microbatches
    if stages is None or microbatches is None:
        raise UsageError("say how many --stages and --microbatches there are, or name a recording with --trace")
    if not 0 < options.wgrad_share < 1 or not 0 <= options.pending_share <= 1:
        raise UsageError("--wgrad-share is between 0 and 1, --pending-share from 0 to 1")
    if not 0 <= options.split_overhead <= 1:
        raise UsageError("--split-overhead is from 0 to 1, such as 0.03 for 3 %")
    gpus = stages * options.tensor * options.replicas
    if gpus > MAX_GPUS:
        raise UsageError(f"{gpus} GPUs are more than can be simulated at once ({MAX_GPUS}); take fewer --replicas")
    times = (options.forward_ms, options.dgrad_ms, options.wgrad_ms)
    setting = Setting(
        variation=_variation(options, recorded),
        links=_links(options, recorded),
        end=StepEnd(
            grad_sync_ns=_ns(options.grad_sync_ms),
            optimizer_ns=_ns(options.optimizer_ms),
            barrier=options.step_barrier,
        ),
        host=_host(options),
        replicas=options.replicas,
        draws=options.draws,
        seed=options.seed,
    )
    pending = round(options.pending_share * WHOLE)
    return Asked(stages, microbatches, recorded, setting, pending, options.tensor, times, options.wgrad_share)


def _host(options: Simulated) -> Host:
    launch_ns, lead_ms = _ns(options.launch_ms), options.decision_lead_ms
    lead_ns = None if lead_ms is None else _ns(lead_ms)
    if not options.host_ms:
        return Host(passes_ns=PASSES_NS, keeps_up=True, launch_ns=launch_ns, lead_ns=lead_ns)
    return Host(passes_ns=_passes_ns(options.host_ms), launch_ns=launch_ns, lead_ns=lead_ns)


def _passes_ns(text: str) -> tuple[int, int, int]:
    try:
        given = [float(each) for each in text.split(",")]
        forward, dgrad, wgrad = given * 3 if given == [0] else given
    except ValueError as error:
        raise UsageError(f"--host-ms {text}: write F,B,W in ms, such as 5,5,1, or 0") from error
    return _ns(forward), _ns(dgrad), _ns(wgrad)


def _check_recorded(recorded: Recorded, options: Simulated) -> None:
    if options.stages not in (None, recorded.layout.stages):
        raise UsageError(f"the recording has {recorded.layout.stages} stages; leave --stages out")


def _variation(options: Simulated, recorded: Recorded | None) -> Variation:
    late_ns = _ns(options.late_ms)
    if bool(options.late_ratio) != bool(late_ns):
        raise UsageError("late messages need both --late-ratio and --late-ms")
    return Variation(
        jitter_cv=options.jitter_cv,
        length_cv=options.length_cv,
        tensor=options.tensor,
        slow_stages=dict(_slow_stage(text) for text in options.slow_stage or ()),
        markov=_spells(options.slow_spells),
        late_ratio=options.late_ratio,
        late_ns=late_ns,
        samples=recorded.samples(options.wgrad_share) if recorded is not None else {},
    )


def _links(options: Simulated, recorded: Recorded | None) -> Links:
    """A recording's usual message stands for the latency that is not given."""
    latency_ns = _ns(options.latency_ms)
    if recorded is not None and not latency_ns:
        latency_ns = recorded.usual_message_ns()
    return Links(
        latency_ns=latency_ns,
        transfer_ns=_ns(options.transfer_ms),
        shared_stages=options.stages_per_link,
        blocking=options.blocking,
        slow=tuple(_slow_link(text) for text in options.slow_link or ()),
    )


def _ns(milliseconds: float) -> int:
    if not 0 <= milliseconds < 1e9:
        raise UsageError(f"{milliseconds} ms is no time that a step could take")
    return round(milliseconds * 1e6)


def _slow_stage(text: str) -> tuple[int, float]:
    stage, _, factor = text.partition("=")
    try:
        return int(stage), float(factor)
    except ValueError as error:
        raise UsageError(f"--slow-stage {text}: write STAGE=FACTOR, such as 3=1.3") from error


def _slow_link(text: str) -> tuple[int, int, float]:
    ends, _, factor = text.partition("=")
    source, _, target = ends.partition("-")
    try:
        return int(source), int(target), float(factor)
    except ValueError as error:
        raise UsageError(f"--slow-link {text}: write FROM-TO=FACTOR, such as 0-1=4") from error


def _spells(text: str) -> Markov | None:
    if not text:
        return None
    try:
        ratio, enter, leave = (float(each) for each in text.split(","))
    except ValueError as error:
        raise UsageError(f"--slow-spells {text}: write FACTOR,ENTER,LEAVE, such as 2,0.05,0.3") from error
    return Markov(ratio, enter, leave)


def chunk_numbers(text: str) -> list[int]:
    """1 or 1,2,4."""
    try:
        numbers = [int(each) for each in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--chunks {text}: write a number, or several such as 1,2,4") from error
    return list(dict.fromkeys(numbers))

"""Whether MegaFBD pays in a run as its flags ask for it: what core/pipeline/disaggregation says of the run's sizes.

Times are those of the model's FLOPs at the speed that a backward device is said to sustain. `megatronapp plan` takes
measured ones, and tries other sizes.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from math import isfinite

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline import placement
from megatronapp.core.pipeline.disaggregation.cluster import ForwardDevices, Model, Training
from megatronapp.core.pipeline.disaggregation.mapping import Mapping, mappings
from megatronapp.core.pipeline.disaggregation.memory import message_bytes
from megatronapp.core.pipeline.disaggregation.planning import GIB, Plan, make_plan
from megatronapp.core.pipeline.partition import Mode
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.models.sizes import ffn_hidden_size
from megatronapp.trainer.plugins.fbd.roles import Grid

CPU_SPEED = 0.005
"""Of a forward rank on CPUs that is not said to be faster: 2 TFLOP/s, a server's cores with bf16 units, against 400."""
FORWARD_SPEED = "--fbd-forward-speed"
FIGURES = {
    "--fbd-forward-memory-gib": (141.0, "memory of a forward device"),
    "--fbd-memory-gib": (141.0, "memory of a backward device"),
    "--fbd-link-gbps": (400.0, "Gbit/s of a forward device's link, each way"),
    "--fbd-tflops": (400.0, "what a backward device sustains, in TFLOP/s"),
}
"""Default and meaning of the others; an H200's."""
GPT_VOCABULARY = 50304
"""For memory: the tokenizer is not open yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What the flags say of them; defaults are an H200's, with forward devices alike."""

    forward_speed: float
    forward_memory_gib: float
    memory_gib: float
    link_gbps: float
    tflops: float

    @classmethod
    def of(cls, args: argparse.Namespace) -> Devices:
        """Raises UsageError for what no device is."""
        speed = CPU_SPEED if args.fbd_forward_on_cpus else 1.0
        said = {FORWARD_SPEED: speed, **{flag: default for flag, (default, _) in FIGURES.items()}}
        said |= {flag: given for flag, given in cls.given(args).items() if given is not None}
        for flag, figure in said.items():
            if not (isfinite(figure) and figure > 0):
                raise UsageError(f"{flag} {figure:g} must be a number above 0")
        return cls(**{flag.removeprefix("--fbd-").replace("-", "_"): figure for flag, figure in said.items()})

    @staticmethod
    def given(args: argparse.Namespace) -> dict[str, float | None]:
        """By flag; None for one that is left out."""
        return {flag: getattr(args, flag[2:].replace("-", "_")) for flag in (FORWARD_SPEED, *FIGURES)}


def figures(
    config: TrainerConfig, layout: Layout, forward: Grid, devices: Devices, modes: tuple[Mode, ...], slots: int | None
) -> Plan:
    """Of these modes on the ranks that the flags ask for. Raises UsageError where the training itself does not fit."""
    model = model_of(config)
    training = _training(config, layout, model, devices)
    beside = ForwardDevices(
        count=forward.tensor * forward.pipeline,
        speed=devices.forward_speed,
        memory_bytes=devices.forward_memory_gib * GIB,
        bytes_per_second=devices.link_gbps * 1e9 / 8,
    )
    every = [each for each in mappings(model, training, beside) if each.mode in modes]
    asked = [each for each in every if (each.tensor, each.pipeline) == (forward.tensor, forward.pipeline)]
    if slots is not None:
        asked = list(dict.fromkeys(Mapping(each.mode, each.tensor, each.pipeline, slots) for each in asked))
    return make_plan(model, training, beside, choices=asked)


RECEIVE_ROOM = 1.25
"""Messages are rounded up to whole blocks."""


def receive_bytes(config: TrainerConfig, layout: Layout, mapping: Mapping) -> int:
    """Of all that a backward rank takes ahead."""
    value = 1 if config.training.bf16 or config.training.fp16 else 2  # of VALUE_BYTES
    model, chunks = model_of(config), layout.virtual or 1
    one = message_bytes(model, layout.pipeline * chunks, mapping)
    return int(value * mapping.slots * chunks * one * RECEIVE_ROOM)


def model_of(config: TrainerConfig) -> Model:
    model = config.model
    width = model.kv_channels or model.hidden_size // model.num_attention_heads
    groups = model.num_query_groups if model.group_query_attention else model.num_attention_heads
    return Model(
        layers=model.num_layers,
        hidden=model.hidden_size,
        sequence=config.training.seq_length // config.parallel.context_parallel_size,
        batch=config.training.micro_batch_size,
        ffn=ffn_hidden_size(model),
        qkv_width=width * (model.num_attention_heads + 2 * groups),
        vocabulary=GPT_VOCABULARY,
        groups=groups,
        gated=model.gated,
    )


def _training(config: TrainerConfig, layout: Layout, model: Model, devices: Devices) -> Training:
    tokens = model.sequence * model.batch
    linears = 2 * tokens * model.layer_parameters
    attention = 2 * tokens * model.sequence * model.hidden
    stage_ns = model.layers / layout.pipeline / (layout.tensor * devices.tflops * 1e12) * 1e9
    return Training(
        layout=placement.Layout(stages=layout.pipeline, chunks=layout.virtual or 1, microbatches=layout.microbatches),
        tensor=layout.tensor,
        replicas=layout.data,
        forward_ns=(linears + attention) * stage_ns,
        dgrad_ns=(linears + 2 * attention) * stage_ns,
        wgrad_ns=linears * stage_ns,
        memory_bytes=devices.memory_gib * GIB,
        parameter_bytes=6 + 12 / layout.data if config.parallel.use_distributed_optimizer else 18,
        sequence_parallel=config.parallel.sequence_parallel,
    )

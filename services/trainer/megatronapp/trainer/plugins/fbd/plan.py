"""From flags to the two worlds: who is in which, how each is laid out, and what can't run so."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline import placement
from megatronapp.core.pipeline.disaggregation.mapping import Mapping
from megatronapp.core.pipeline.partition import Mode, Partition
from megatronapp.core.pipeline.recompute import least_slots, split_where_it_helps
from megatronapp.trainer.config import CheckpointConfig, TrainerConfig
from megatronapp.trainer.layout import FIRST, LAST, Layout, stage_layers
from megatronapp.trainer.model_config import ModelConfig
from megatronapp.trainer.models.sizes import ffn_hidden_size
from megatronapp.trainer.plugins.fbd.figures import Devices, figures, receive_bytes
from megatronapp.trainer.plugins.fbd.roles import Grid, Roles
from megatronapp.trainer.plugins.fbd.slices import Sequence

SWITCH = "--forward-backward-disaggregating"
MOST_LAYERS = 256
"""Of *linears* and *layers*, as layers are numbered in messages' names."""
IGNORE_TENSOR = "--ignore-forward-tensor-parallel"
FORWARD_TENSOR = "--forward-tensor-model-parallel-size"
FORWARD_PIPELINE = "--forward-pipeline-model-parallel-size"
SLOTS = "--fbd-slots"
APART = "--fbd-roles-apart"
CPUS = "--fbd-forward-on-cpus"
MODE = "--fbd-mode"
AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The same on all ranks. All flags but the plug-in's own speak of the backward world."""

    roles: Roles
    partition: Partition
    backward: TrainerConfig
    forward: TrainerConfig
    forward_layout: Layout
    sequences: tuple[Sequence, Sequence]
    """How the tensor ranks of a forward and of a backward stage hold one."""
    slots: int
    """Inputs that a backward stage takes ahead for each chunk."""
    receive_bytes: int
    """Of what a backward rank takes ahead: so much memory its engine has to keep, or it makes and gives up some for
    every message."""
    forward_on_cpus: bool
    """Forward ranks use no GPU, also where their host has some."""

    @classmethod
    def of(cls, args: argparse.Namespace, world_size: int) -> Plan:
        """Raises UsageError for what can't be disaggregated, or not on so many ranks."""
        config = TrainerConfig.of(args)
        backward, forward = _grids(args, config)
        Devices.of(args)  # refuses figures that no mode could be judged by
        _refuse(args, config, forward)
        _refuse_attention(config)
        if args.fbd_mode == Mode.LINEARS:
            _refuse_linears(config, forward)
        elif args.fbd_mode == Mode.LAYERS:
            _refuse_layers(config)
        roles = Roles.of(world_size, forward, backward, apart=args.fbd_roles_apart)
        layout = Layout.of(config, backward.ranks * roles.replicas)
        pipeline = placement.Layout(
            stages=layout.pipeline, chunks=layout.virtual or 1, microbatches=layout.microbatches
        )
        _refuse_slots(args, pipeline)
        mode = _mode(args, config, layout, forward)
        if config.model.transformer_impl == "local":
            pipeline = split_where_it_helps(pipeline, backward.tensor, mode)
        partition = Partition.of(config.model.num_layers, pipeline, forward.pipeline, mode)
        tokens = config.training.seq_length // layout.context
        own = _forward_config(config, forward, on_cpus=args.fbd_forward_on_cpus)
        slots = _slots(args, pipeline, mode)
        mapping = Mapping(mode, forward.tensor, forward.pipeline, slots)
        return cls(
            roles=roles,
            partition=partition,
            backward=config,
            forward=own,
            forward_layout=replace(
                layout,
                world=forward.ranks * roles.replicas,
                tensor=forward.tensor,
                pipeline=forward.pipeline,
                virtual=None,
                layers=partition.stage_layers,
                head=False,
            ),
            sequences=(
                Sequence(tokens=tokens, tensor=forward.tensor, split=own.parallel.sequence_parallel),
                Sequence(tokens=tokens, tensor=backward.tensor, split=config.parallel.sequence_parallel),
            ),
            slots=slots,
            receive_bytes=receive_bytes(config, layout, mapping),
            forward_on_cpus=args.fbd_forward_on_cpus,
        )


def _refuse_attention(config: TrainerConfig) -> None:
    """What a forward rank would have to hand over beside activations, or hold of heads that ranks share."""
    model, parallel = config.model, config.parallel
    if config.training.variable_seq_lengths:
        raise UsageError(f"{SWITCH} needs sequences of one length: leave --variable-seq-lengths out")
    if config.data.reset_attention_mask:
        raise UsageError(f"{SWITCH} can't tell documents apart: leave --reset-attention-mask out")
    if len(stage_layers(config.model, config.parallel)) > 1:
        raise UsageError(f"{SWITCH} needs stages of as many layers: leave {FIRST} and {LAST} out")
    if model.group_query_attention and model.num_query_groups % parallel.tensor_model_parallel_size:
        raise UsageError(
            f"{SWITCH} can't share {model.num_query_groups} query groups among "
            f"{parallel.tensor_model_parallel_size} tensor ranks: lower --tensor-model-parallel-size"
        )


def refuse_without_switch(args: argparse.Namespace) -> None:
    """Raises UsageError for a flag that would do nothing."""
    given = {
        IGNORE_TENSOR: args.ignore_forward_tensor_parallel,
        FORWARD_TENSOR: args.forward_tensor_model_parallel_size is not None,
        FORWARD_PIPELINE: args.forward_pipeline_model_parallel_size is not None,
        SLOTS: args.fbd_slots is not None,
        MODE: args.fbd_mode is not None,
        APART: args.fbd_roles_apart,
        CPUS: args.fbd_forward_on_cpus,
        **{flag: given is not None for flag, given in Devices.given(args).items()},
    }
    for flag, is_given in given.items():
        if is_given:
            raise UsageError(f"{flag} does nothing without {SWITCH}: add it, or leave {flag} out")


def _grids(args: argparse.Namespace, config: TrainerConfig) -> tuple[Grid, Grid]:
    """Backward, forward."""
    parallel = config.parallel
    backward = Grid(
        tensor=parallel.tensor_model_parallel_size,
        pipeline=parallel.pipeline_model_parallel_size,
        context=parallel.context_parallel_size,
    )
    tensor, pipeline = args.forward_tensor_model_parallel_size, args.forward_pipeline_model_parallel_size
    for flag, size in ((FORWARD_TENSOR, tensor), (FORWARD_PIPELINE, pipeline)):
        if size is not None and size < 1:
            raise UsageError(f"{flag} {size} must be 1 or more")
    if args.ignore_forward_tensor_parallel:
        if tensor not in (None, 1):
            raise UsageError(f"{IGNORE_TENSOR} means {FORWARD_TENSOR} 1, not {tensor}: give one of them")
        tensor = 1
    return backward, replace(backward, tensor=tensor or backward.tensor, pipeline=pipeline or backward.pipeline)


def _refuse(args: argparse.Namespace, config: TrainerConfig, forward: Grid) -> None:
    for plugin, flag in (("dpp", "--use-dpp"), ("scope", "--scope")):
        if getattr(args, flag.removeprefix("--").replace("-", "_"), False):
            raise UsageError(f"{SWITCH} can't run with {flag} of the plug-in {plugin} yet: leave one of them out")
    if config.training.cpu_offloading_num_layers is not None:
        raise UsageError(f"{SWITCH} keeps no activations that could wait: leave --cpu-offloading-num-layers out")
    if config.parallel.overlap_param_gather:
        raise UsageError(
            f"{SWITCH} sends weights before the next step begins, when --overlap-param-gather has not gathered them: "
            "leave that out"
        )
    if args.fbd_forward_on_cpus:
        _refuse_on_cpus(config)
    if forward.tensor != config.parallel.tensor_model_parallel_size:
        _refuse_other_tensor_size(config, forward.tensor)


def _refuse_on_cpus(config: TrainerConfig) -> None:
    """What CPUs draw otherwise than GPUs, or can't run."""
    if config.model.hidden_dropout > 0 or config.model.attention_dropout > 0:
        raise UsageError(f"{CPUS} can't draw dropout as GPUs do: give --hidden-dropout 0 and --attention-dropout 0")
    if config.model.transformer_impl != "local":
        raise UsageError(f"{CPUS} needs megatron-core's own layers: give --transformer-impl local")


def _refuse_other_tensor_size(config: TrainerConfig, tensor: int) -> None:
    """What depends on how many tensor ranks there are."""
    model, backward = config.model, config.parallel.tensor_model_parallel_size
    if max(tensor, backward) % min(tensor, backward):
        raise UsageError(
            f"{FORWARD_TENSOR} {tensor} neither divides --tensor-model-parallel-size {backward} nor is a multiple of it"
        )
    groups = model.num_query_groups if model.group_query_attention else model.num_attention_heads
    if groups % tensor or model.num_attention_heads % tensor:
        raise UsageError(
            f"{model.num_attention_heads} attention heads in {groups} groups can't be split over {tensor} forward "
            f"tensor ranks: give another {FORWARD_TENSOR}"
        )
    if model.num_experts is not None:
        raise UsageError(f"experts need as many forward as backward tensor ranks: leave {FORWARD_TENSOR} out")
    exact = f"with {tensor} forward and {backward} backward tensor ranks can't be drawn alike on both"
    if model.attention_dropout > 0:
        raise UsageError(f"attention dropout {exact}: give --attention-dropout 0, or as many of both")
    if model.hidden_dropout > 0 and config.parallel.sequence_parallel:
        raise UsageError(f"hidden dropout under --sequence-parallel {exact}: give --hidden-dropout 0")
    _refuse_shards(config, tensor)


def _refuse_shards(config: TrainerConfig, tensor: int) -> None:
    """Matrices and sequences that the forward tensor ranks can't share evenly. Both worlds hold the vocabulary as the
    backward one pads it."""
    model, parallel = config.model, config.parallel
    shared = f"can't be split over {tensor} forward tensor ranks"
    if (width := ffn_hidden_size(model)) % tensor:
        raise UsageError(f"--ffn-hidden-size {width} {shared}: give a multiple of {tensor}")
    padded = _as_backward_pads(config)
    if (rows := padded.padded_vocab_size or padded.make_vocab_size_divisible_by) % tensor:
        flag = "--padded-vocab-size" if padded.padded_vocab_size else "--make-vocab-size-divisible-by"
        raise UsageError(f"a vocabulary padded to a multiple of {rows} {shared}: make {flag} a multiple of {tensor}")
    tokens = config.training.seq_length // parallel.context_parallel_size
    if parallel.sequence_parallel and tokens % tensor:
        raise UsageError(f"{tokens} tokens of a sequence {shared}: change --seq-length")


def _as_backward_pads(config: TrainerConfig) -> ModelConfig:
    """Whose vocabulary is padded alike on any tensor ranks that can share it."""
    model, tensor = config.model, config.parallel.tensor_model_parallel_size
    if model.padded_vocab_size is None:
        return replace(model, make_vocab_size_divisible_by=math.lcm(model.make_vocab_size_divisible_by, tensor))
    return replace(model, padded_vocab_size=-(-model.padded_vocab_size // tensor) * tensor)


def _mode(args: argparse.Namespace, config: TrainerConfig, layout: Layout, forward: Grid) -> Mode:
    """As asked for. AUTO: the one that pays; raises UsageError with the figures where none does."""
    if args.fbd_mode != AUTO:
        return Mode(args.fbd_mode or Mode.INPUT)
    if config.model.num_experts is not None:
        raise UsageError(f"{MODE} {AUTO} can't plan experts: give {MODE} {Mode.INPUT}")
    made = figures(config, layout, forward, Devices.of(args), _modes(config, forward), args.fbd_slots)
    if made.chosen is None or not made.pays:
        raise UsageError(f"{SWITCH} does not pay here: {made.reason}. Leave it out, or give {MODE} to run it anyway")
    return made.chosen.mapping.mode


def _modes(config: TrainerConfig, forward: Grid) -> tuple[Mode, ...]:
    """That can run."""
    checks = {
        Mode.INPUT: lambda: None,
        Mode.LINEARS: lambda: _refuse_linears(config, forward),
        Mode.LAYERS: lambda: _refuse_layers(config),
    }
    return tuple(mode for mode, check in checks.items() if _passes(check))


def _passes(check: Callable[[], None]) -> bool:
    try:
        check()
    except UsageError:
        return False
    return True


def doubts(args: argparse.Namespace, plan: Plan) -> str:
    """Why a run that was asked for as it is does not pay; empty where it does, or where that can't be told."""
    config = plan.backward
    if args.fbd_mode == AUTO or config.model.num_experts is not None:
        return ""
    layout = Layout.of(config, plan.roles.backward.ranks * plan.roles.replicas)
    mode, forward = plan.partition.mode, plan.roles.forward
    try:
        return figures(config, layout, forward, Devices.of(args), (mode,), plan.slots).reason
    except UsageError as error:
        return str(error)


def _refuse_linears(config: TrainerConfig, forward: Grid) -> None:
    """What the linears' outputs can't stand in place of the products with."""
    mode, tensor = f"{MODE} {Mode.LINEARS}", config.parallel.tensor_model_parallel_size
    if forward.tensor != tensor:
        raise UsageError(
            f"{mode} needs {tensor} forward tensor ranks, as many as backward ones: change {FORWARD_TENSOR}"
        )
    if config.model.transformer_impl != "local":
        raise UsageError(f"{mode} needs megatron-core's own layers: give --transformer-impl local")
    if config.model.num_experts is not None:
        raise UsageError(f"{mode} can't run experts, whose numbers of tokens differ: leave {MODE} out")
    _refuse_sent_by_layer(config, mode)


def _refuse_layers(config: TrainerConfig) -> None:
    """What running a layer again in the backward pass alone would change."""
    mode = f"{MODE} {Mode.LAYERS}"
    if config.model.transformer_impl != "local":
        raise UsageError(f"{mode} needs megatron-core's own layers: give --transformer-impl local")
    if config.model.num_experts is not None:
        raise UsageError(f"{mode} can't run experts: leave {MODE} out")
    if config.model.hidden_dropout > 0 or config.model.attention_dropout > 0:
        raise UsageError(
            f"{mode} can't draw a layer's dropout alone: give --hidden-dropout 0 and --attention-dropout 0"
        )
    _refuse_sent_by_layer(config, mode)


def _refuse_sent_by_layer(config: TrainerConfig, mode: str) -> None:
    if config.training.recompute_granularity is not None:
        raise UsageError(f"{mode} leaves nothing for --recompute-granularity to gain: leave that out")
    if config.model.num_layers > MOST_LAYERS:
        raise UsageError(f"{mode} runs {MOST_LAYERS} layers at most, not {config.model.num_layers}: leave {MODE} out")


def _forward_config(config: TrainerConfig, grid: Grid, *, on_cpus: bool) -> TrainerConfig:
    """Its own sizes; nothing of optimizer and checkpoints; the vocabulary padded as the backward world pads it."""
    parallel = replace(
        config.parallel,
        distributed_backend="gloo" if on_cpus else config.parallel.distributed_backend,
        tensor_model_parallel_size=grid.tensor,
        pipeline_model_parallel_size=grid.pipeline,
        decoder_first_pipeline_num_layers=None,
        decoder_last_pipeline_num_layers=None,
        num_layers_per_virtual_pipeline_stage=None,
        num_virtual_stages_per_pipeline_rank=None,
        sequence_parallel=config.parallel.sequence_parallel and grid.tensor > 1,
        use_distributed_optimizer=False,
        overlap_grad_reduce=False,
    )
    return replace(
        config,
        model=_as_backward_pads(config),
        parallel=parallel,
        training=replace(config.training, recompute_granularity=None, recompute_method=None, recompute_num_layers=None),
        checkpoint=CheckpointConfig(),
        logging=replace(config.logging, tensorboard_dir=None, wandb_project=None),
    )


def _refuse_slots(args: argparse.Namespace, pipeline: placement.Layout) -> None:
    least = least_slots(pipeline)
    if args.fbd_slots is not None and args.fbd_slots < least:
        raise UsageError(f"{SLOTS} {args.fbd_slots} is too few for this schedule to end: give {least} or more")


def _slots(args: argparse.Namespace, pipeline: placement.Layout, mode: Mode) -> int:
    """Inputs are small; of more no more than a full pipeline has on its way: two are run again, one comes in."""
    if args.fbd_slots is not None:
        asked: int = args.fbd_slots
        return asked
    return max(least_slots(pipeline), 2 * pipeline.stages if mode is Mode.INPUT else pipeline.stages + 2)

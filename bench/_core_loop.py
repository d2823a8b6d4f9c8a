"""A plain loop on megatron-core, as its own quick start has it: no Megatron-LM, no trainer of ours. On what is there:
GPUs over NCCL, in bf16, else CPUs over gloo, in fp32."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

VOCABULARY = 32000


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    sequence: int
    microbatches: int
    vocabulary: int = VOCABULARY


SHAPES = {
    "tiny": Shape(layers=4, hidden=64, heads=4, sequence=64, microbatches=4, vocabulary=512),
    "narrow": Shape(layers=12, hidden=1024, heads=16, sequence=512, microbatches=4),
    "wide": Shape(layers=4, hidden=4096, heads=32, sequence=1024, microbatches=4),
}
"""narrow: the host that launches small kernels is the bottleneck; wide: the GPU is."""


def start() -> torch.device:
    """Process groups, one data-parallel rank for each process. Returns this rank's device."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    from megatronapp.trainer import cpu

    on_cpu = cpu.install()
    device = torch.device("cpu") if on_cpu else torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if not on_cpu:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if on_cpu else "nccl")
    parallel_state.initialize_model_parallel()
    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1)
    return device


def training(shape: Shape, device: torch.device) -> Callable[[], None]:
    """One step of it. megatron-core's functions are looked up here, once, as such loops do."""
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func

    bf16 = device.type == "cuda"
    model = _model(shape, device, bf16=bf16)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-4, bf16=bf16, params_dtype=_dtype(bf16)), [model])
    schedule, data = get_forward_backward_func(), _batches(shape, device)
    forward_step = partial(_forward_step, torch.arange(shape.sequence, device=device)[None])

    def step() -> None:
        model.zero_grad_buffer()
        optimizer.zero_grad()
        schedule(
            forward_step_func=forward_step,
            data_iterator=data,
            model=[model],
            num_microbatches=shape.microbatches,
            seq_length=shape.sequence,
            micro_batch_size=1,
        )
        optimizer.step()

    return step


def _model(shape: Shape, device: torch.device, *, bf16: bool) -> Any:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    config = TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        bf16=bf16,
        params_dtype=_dtype(bf16),
        pipeline_dtype=_dtype(bf16),
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    config.finalize_model_grads_func = finalize_model_grads
    module = GPTModel(config, get_gpt_layer_local_spec(), shape.vocabulary, shape.sequence)
    return DistributedDataParallel(config, DistributedDataParallelConfig(), module.to(device, _dtype(bf16)))


def _dtype(bf16: bool) -> torch.dtype:
    return torch.bfloat16 if bf16 else torch.float32


def _batches(shape: Shape, device: torch.device) -> Iterator[dict[str, torch.Tensor]]:
    while True:
        yield {"tokens": torch.randint(shape.vocabulary, (1, shape.sequence), device=device)}


def _forward_step(positions: torch.Tensor, iterator: Iterator[dict[str, torch.Tensor]], model: Any) -> Any:
    tokens = next(iterator)["tokens"]
    return model(tokens, positions, None, labels=tokens), _loss_of


def _loss_of(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.float().mean()
    return loss, {"lm loss": loss.detach()}

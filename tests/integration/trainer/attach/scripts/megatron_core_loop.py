"""A plain loop on megatron-core, as its own quick start has it: no Megatron-LM, no loop of ours. On a CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import get_cuda_rng_tracker, model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

from megatronapp.trainer import cpu

SEQUENCE, VOCABULARY, MICROBATCHES = 16, 128, 4
KEPT = [argument.removeprefix("kept=") for argument in sys.argv if argument.startswith("kept=")]
UNTIL = [argument.removeprefix("until=") for argument in sys.argv if argument.startswith("until=")]


def loss_of(labels, output):
    return output.mean(), {"lm loss": output.mean().detach()}


def forward_step(iterator, model):
    tokens = next(iterator)["tokens"]
    positions = torch.arange(SEQUENCE).expand_as(tokens)
    return model(tokens, positions, None, labels=tokens), partial(loss_of, tokens)


def batches():
    while True:
        yield {"tokens": torch.randint(VOCABULARY, (2, SEQUENCE))}


def own_communicator(config):
    """What Megatron-Bridge's loop calls a schedule with."""
    from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
    from megatron.core.process_groups_config import ProcessGroupCollection

    groups = ProcessGroupCollection.use_mpu_process_groups()
    communicator = P2PCommunicator(pp_group=groups.pp, config=config)
    return {"p2p_communicator": communicator, "pg_collection": groups, "decoder_seq_length": SEQUENCE}


def all_see(path: Path) -> bool:
    seen = torch.tensor(path.exists(), dtype=torch.int32)
    dist.all_reduce(seen, dist.ReduceOp.MIN)
    return bool(seen)


def as_many_as(steps: int, until: str) -> Iterator[int]:
    """And further ones until all ranks see the file."""
    yield from range(steps)
    while until and not all_see(Path(until)):
        yield steps
        steps += 1


def main(
    steps: int, stages: int, *, bridge: bool = False, overlap: bool = False, kept: str = "", until: str = ""
) -> None:
    """`kept`: a folder for what each rank's first layer computes, in the order of its calls. `until`: of as_many_as."""
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=stages)
    cpu.install()
    if not hasattr(get_cuda_rng_tracker(), "_current_state_name"):  # before 0.16, which our shim is for
        get_cuda_rng_tracker()._current_state_name = "default-rng"
    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=4, hidden_size=32, num_attention_heads=4, pipeline_dtype=torch.float32, batch_p2p_comm=False
    )
    config.finalize_model_grads_func = finalize_model_grads
    first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    module = GPTModel(config, get_gpt_layer_local_spec(), VOCABULARY, SEQUENCE, pre_process=first, post_process=last)
    model = DistributedDataParallel(config, DistributedDataParallelConfig(overlap_grad_reduce=overlap), module)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-3), [model])
    data, schedule, options = batches(), get_forward_backward_func(), own_communicator(config) if bridge else {}
    computed = []
    if kept:
        module.decoder.layers[0].register_forward_hook(
            lambda _, __, output: computed.append(output[0].detach().clone())
        )
    for _ in as_many_as(steps, until):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = schedule(
            forward_step_func=forward_step,
            data_iterator=data,
            model=[model],
            num_microbatches=MICROBATCHES,
            seq_length=SEQUENCE,
            micro_batch_size=2,
            **options,
        )
        optimizer.step()
        if last and parallel_state.get_data_parallel_rank() == 0:
            print("loss", sum(each["lm loss"].item() for each in losses).hex(), flush=True)
    if kept:
        torch.save(computed, f"{kept}/{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    options = {name: name in sys.argv for name in ("bridge", "overlap")}
    main(int(sys.argv[1]), int(sys.argv[2]), **options, kept=next(iter(KEPT), ""), until=next(iter(UNTIL), ""))

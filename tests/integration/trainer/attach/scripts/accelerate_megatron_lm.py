"""A loop on Accelerate's Megatron-LM plug-in, as its documentation has it: PP 2, two microbatches a step.

The last stage prints each loss, exactly."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch
from accelerate import Accelerator
from accelerate.utils import MegatronLMDummyScheduler, MegatronLMPlugin
from gpt_builders import gpt_builder
from model_provider import model_provider
from torch.utils.data import DataLoader

STEPS, MICROBATCHES, BATCH, LENGTH, VOCABULARY = 4, 2, 2, 16, 97
FLAGS = {
    "eos_token_id": 0,
    "transformer_impl": "local",
    "no_persist_layer_norm": True,
    "gradient_accumulation_fusion": False,
    "masked_softmax_fusion": False,
    "bias_gelu_fusion": False,
    "bias_swiglu_fusion": False,
    "bias_dropout_fusion": False,
    "apply_rope_fusion": False,
}


class Gpt2(torch.nn.Linear):
    """Of a model of Transformers the plug-in reads the configuration; the optimizer wants parameters."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.config = SimpleNamespace(
            model_type="gpt2",
            n_layer=4,
            n_head=4,
            n_embd=32,
            n_positions=LENGTH,
            vocab_size=VOCABULARY,
            return_dict=False,
        )


def samples(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(0, VOCABULARY, (LENGTH,), generator=generator)} for _ in range(count)]


plugin = MegatronLMPlugin(
    pp_degree=2,
    context_parallel_size=1,
    num_micro_batches=MICROBATCHES,
    gradient_clipping=1.0,
    custom_model_provider_function=partial(model_provider, gpt_builder),
    other_megatron_args=FLAGS,
)
accelerator = Accelerator(megatron_lm_plugin=plugin)
model = Gpt2()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = MegatronLMDummyScheduler(optimizer=optimizer, total_num_steps=STEPS, warmup_num_steps=0)
train = DataLoader(samples(STEPS * MICROBATCHES * BATCH), batch_size=BATCH)
held_out = DataLoader(samples(MICROBATCHES * BATCH), batch_size=BATCH)
model, optimizer, train, held_out, scheduler = accelerator.prepare(model, optimizer, train, held_out, scheduler)
model.train()
for batch in train:
    loss = model(**batch)
    accelerator.backward(loss)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if accelerator.is_last_process:
        print("loss", loss.item().hex(), flush=True)
model.eval()
for batch in held_out:
    loss = model(**batch)
    if accelerator.is_last_process:
        print("loss held out", loss.item().hex(), flush=True)

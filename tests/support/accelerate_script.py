"""A causal language model's script, in the form that Accelerate's page on Megatron-LM has: a train step of its own,
data by DataLoaders or as an indexed dataset, evaluation, a checkpoint. Of Accelerate it would differ in one import."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader

from megatronapp.trainer.accelerate import (
    Accelerator,
    DistributedType,
    GPTTrainStep,
    MegatronLMDummyDataLoader,
    MegatronLMDummyScheduler,
    MegatronLMPlugin,
    avg_losses_across_data_parallel_group,
    gather_across_data_parallel_groups,
)

STEPS = 4


class GPTTrainStepWithCustomLoss(GPTTrainStep):
    """Samples weigh the more, the more key tokens they hold."""

    def __init__(self, megatron_args: Any, **kwargs: Any) -> None:
        super().__init__(megatron_args)
        self.kwargs = kwargs

    def get_loss_func(self) -> Any:
        def loss_func(inputs: Any, loss_mask: Any, output_tensor: Any) -> Any:
            counted = loss_mask.float()
            of_sample = (output_tensor.float() * counted).sum(1) / counted.sum(1)
            found = sum((inputs == token).float().sum(1) for token in self.kwargs["keytoken_ids"])
            weighted = (of_sample * (1.0 + self.kwargs["alpha"] * found)).mean()
            averaged = avg_losses_across_data_parallel_group([weighted])
            return weighted, {"lm loss": averaged[0]}

        return loss_func

    def get_forward_step_func(self) -> Any:
        def forward_step(data_iterator: Any, model: Any) -> Any:
            tokens, labels, loss_mask, attention_mask, position_ids = self.get_batch(data_iterator)
            output_tensor = model(tokens, position_ids, attention_mask, labels=labels)
            return output_tensor, partial(self.loss_func, tokens, loss_mask)

        return forward_step


class Gpt2(torch.nn.Linear):
    """Of a Transformers model what is read: its configuration, and parameters for an optimizer."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        fields = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 97}
        rates = {"attn_pdrop": 0.0, "resid_pdrop": 0.0}
        self.config = SimpleNamespace(to_dict=lambda: fields | rates)


def samples() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(0, 97, (16,), generator=generator) for _ in range(64)]
    return [{"input_ids": row, "attention_mask": torch.ones(16, dtype=torch.long), "labels": row} for row in rows]


def main(alpha: float | None = 0.25, output_dir: str = "", **plugin: Any) -> dict[str, Any]:
    """`alpha` None: the built-in step."""
    accelerator = Accelerator(
        megatron_lm_plugin=MegatronLMPlugin(**{"num_micro_batches": 2, "return_logits": True, **plugin})
    )
    model = Gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train_dataloader = DataLoader(samples(), shuffle=True, batch_size=2)  # type: ignore[arg-type]
    eval_dataloader = DataLoader(samples(), batch_size=2)  # type: ignore[arg-type]
    assert accelerator.distributed_type == DistributedType.MEGATRON_LM
    lr_scheduler: Any = MegatronLMDummyScheduler(optimizer=optimizer, total_num_steps=STEPS, warmup_num_steps=1)
    if alpha is not None:
        accelerator.state.megatron_lm_plugin.custom_train_step_class = GPTTrainStepWithCustomLoss
        accelerator.state.megatron_lm_plugin.custom_train_step_kwargs = {"keytoken_ids": [3, 5], "alpha": alpha}
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    total_batch_size = accelerator.state.megatron_lm_plugin.global_batch_size
    accelerator.register_for_checkpointing(lr_scheduler)

    losses: list[float] = []
    model.train()
    for batch in train_dataloader:
        with accelerator.accumulate(model):
            outputs = model(**batch)
            loss = outputs.loss
            losses.append(loss.detach().float().item())
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients and len(losses) >= STEPS:
            break

    model.eval()
    evaluated = []
    for batch in eval_dataloader:
        with torch.no_grad():
            outputs = model(**batch)
        evaluated.append(outputs.loss)
    mean = torch.mean(torch.tensor(evaluated)).item()
    logits = None if outputs.logits is None else list(gather_across_data_parallel_groups(outputs.logits).shape)
    text = model.megatron_generate(batch["input_ids"][:2, :4], max_new_tokens=3, top_k=1)
    if output_dir:
        accelerator.save_state(output_dir)
        accelerator.load_state(output_dir)
    main_process = accelerator.is_main_process
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return {
        "losses": losses,
        "eval": mean,
        "perplexity": math.exp(mean),
        "batch": total_batch_size,
        "logits": logits,
        "text": text.tolist(),
        "main": main_process,
    }


def on_indexed_data(prefix: str) -> list[float]:
    """The page's second loop: an indexed dataset, which is read where a rank needs it."""
    accelerator = Accelerator()
    model = Gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dataloader = MegatronLMDummyDataLoader(data_path=prefix, splits_string="90,10", seq_length=16, micro_batch_size=2)
    accelerator.state.megatron_lm_plugin.megatron_dataset_flag = True
    accelerator.state.megatron_lm_plugin.eval_iters = 1
    lr_scheduler: Any = MegatronLMDummyScheduler(optimizer=optimizer, total_num_steps=STEPS)
    model, optimizer, lr_scheduler, train_dataloader, eval_dataloader, _ = accelerator.prepare(
        model, optimizer, lr_scheduler, dataloader, dataloader, dataloader
    )
    losses = []
    while len(losses) < STEPS:
        model.train()
        batch = next(train_dataloader) if train_dataloader is not None else {}
        losses.append(model(**batch).loss.item())
    model.eval()
    losses.append(model(**next(eval_dataloader)).loss.item())
    accelerator.end_training()
    return losses


if __name__ == "__main__":
    print(main()["losses"])

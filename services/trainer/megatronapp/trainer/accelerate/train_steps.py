"""Train steps in Accelerate's form: functions that `get_batch_func`, `get_loss_func` and `get_forward_step_func` give.

The loss functions of the base classes are the trainer's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from megatron.core.utils import unwrap_model

from megatronapp.trainer.models.bert import BertTrainStep as BertStep
from megatronapp.trainer.models.gpt import GPTTrainStep as GptStep
from megatronapp.trainer.models.losses import masked_loss
from megatronapp.trainer.models.t5 import T5TrainStep as T5Step
from megatronapp.trainer.models.t5 import attention_masks
from megatronapp.trainer.models.train_step import StepSettings, TrainStep


class AbstractTrainStep(TrainStep):
    """What a child returns of the three `get_…_func` takes the place of the methods."""

    def __init__(self, megatron_args: StepSettings) -> None:
        super().__init__(megatron_args)
        vars(self).update(
            get_batch=self.get_batch_func(),
            loss_func=self.get_loss_func(),
            forward_step=self.get_forward_step_func(),
        )

    def get_batch_func(self, *_: Any) -> Callable[..., Any]:
        raise NotImplementedError

    def get_loss_func(self, *_: Any) -> Callable[..., Any]:
        raise NotImplementedError

    def get_forward_step_func(self) -> Callable[..., Any]:
        raise NotImplementedError


class GPTTrainStep(AbstractTrainStep):
    def get_batch_func(self, *_: Any) -> Callable[..., Any]:
        read = GptStep(self.settings).get_batch

        def get_batch(iterator: Any) -> tuple[Any, ...]:
            """Tokens, labels, loss mask, attention mask (None: causal) and positions; all None on a stage between."""
            first = next(iterator, None)
            if first is None:
                return (None,) * 5
            batch = read(iter([first]))
            return batch["tokens"], batch["labels"], batch["loss_mask"], None, batch["position_ids"]

        return get_batch

    def get_loss_func(self, *_: Any) -> Callable[..., Any]:
        return masked_loss

    def get_forward_step_func(self) -> Callable[..., Any]:
        def forward_step(iterator: Any, model: Any) -> tuple[Any, Any]:
            tokens, labels, loss_mask, attention_mask, position_ids = self.get_batch(iterator)
            output = model(tokens, position_ids, attention_mask, labels=labels)
            return output, partial(self.loss_func, loss_mask)

        return forward_step


class BertTrainStep(AbstractTrainStep):
    def get_batch_func(self, *_: Any) -> Callable[..., Any]:
        read = BertStep(self.settings).get_batch
        names = ("text", "types", "is_random", "loss_mask", "labels", "padding_mask")

        def get_batch(iterator: Any) -> tuple[Any, ...]:
            """Tokens, types, sentence order, loss mask, labels and padding mask."""
            batch = read(iterator)
            return tuple(batch[name] for name in names)

        return get_batch

    def get_loss_func(self, *_: Any) -> Callable[..., Any]:
        own = BertStep(self.settings).loss_func

        def loss_func(loss_mask: Any, sentence_order: Any, output: Any) -> Any:
            return own({"loss_mask": loss_mask, "is_random": sentence_order}, output)

        return loss_func

    def get_forward_step_func(self) -> Callable[..., Any]:
        def forward_step(iterator: Any, model: Any) -> tuple[Any, Any]:
            tokens, types, sentence_order, loss_mask, labels, padding_mask = self.get_batch(iterator)
            types = types if unwrap_model(model).add_binary_head else None
            output = model(tokens, padding_mask, tokentype_ids=types, lm_labels=labels)
            return output, partial(self.loss_func, loss_mask, sentence_order)

        return forward_step


class T5TrainStep(AbstractTrainStep):
    def get_batch_func(self, *_: Any) -> Callable[..., Any]:
        read = T5Step(self.settings).get_batch

        def get_batch(iterator: Any) -> tuple[Any, ...]:
            """Encoder's and decoder's tokens, loss mask, labels, and the masks of encoder, decoder and both."""
            batch = read(iterator)
            tensors = (batch["text_enc"], batch["text_dec"], batch["loss_mask"], batch["labels"])
            return *tensors, *attention_masks(batch, self.settings.config.model.transformer_impl)

        return get_batch

    def get_loss_func(self, *_: Any) -> Callable[..., Any]:
        return masked_loss

    def get_forward_step_func(self) -> Callable[..., Any]:
        def forward_step(iterator: Any, model: Any) -> tuple[Any, Any]:
            encoded, decoded, loss_mask, labels, *masks = self.get_batch(iterator)
            output = model(encoded, decoded, *masks, lm_labels=labels)
            return output, partial(self.loss_func, loss_mask)

        return forward_step

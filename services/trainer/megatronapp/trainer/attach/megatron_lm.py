"""Megatron-LM's own loop: it numbers its steps, evaluates, saves, and logs what the platform shows."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from megatronapp.trainer.attach.attachment import Attachment, bind
from megatronapp.trainer.attach.saving import saves


def _training(attachment: Attachment, module: ModuleType) -> None:
    loop = _Loop(attachment, module)
    for name in ("train_step", "training_log", "train", "evaluate", "evaluate_and_print_results"):
        stock = getattr(module, name)
        bind(stock, functools.wraps(stock)(functools.partial(getattr(loop, name), stock)))


class _Loop:
    """Each method stands for the function of its name, which it is given first."""

    def __init__(self, attachment: Attachment, module: ModuleType) -> None:
        self._attachment = attachment
        self._module = module
        self._split = "valid"
        self._began_at = 0.0
        self._trains = False
        """Whether `train` runs, which numbers its steps and logs each. Others' loops (Accelerate's plug-in) call
        `train_step` alone: steps are then what the optimizer takes."""

    def train_step(self, stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from megatronapp.trainer.attach.session import Bounds

        if (session := self._attachment.session) is not None:
            self._began_at = time.perf_counter()
            called = inspect.signature(stock).bind(*args, **kwargs).arguments
            session.see_models(called["model"], {})
            session.see_optimizer(called["optimizer"])
            if self._trains:
                session.begin(Bounds.LOOP, self._module.get_args().curr_iteration + 1)
        return stock(*args, **kwargs)

    def training_log(self, stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The step ends when it is logged."""
        from megatronapp.trainer.attach.session import Bounds

        result = stock(*args, **kwargs)
        if self._trains and (session := self._attachment.session) is not None:
            session.end(Bounds.LOOP, self._progress(inspect.signature(stock).bind(*args, **kwargs).arguments))
        return result

    def train(self, stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._trains = True
        try:
            result = stock(*args, **kwargs)
        finally:
            self._trains = False
        if (session := self._attachment.session) is not None:
            session.pause()
        return result

    def evaluate_and_print_results(self, stock: Callable[..., Any], prefix: Any, *args: Any, **kwargs: Any) -> Any:
        self._split = "test" if "test set" in str(prefix) else "valid"
        return stock(prefix, *args, **kwargs)

    def evaluate(self, stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from megatronapp.core.trace.values import Phase

        session = self._attachment.session
        if session is None:
            return stock(*args, **kwargs)
        with session.phase(Phase.EVALUATION):
            result = stock(*args, **kwargs)
            losses = result[0] if isinstance(result, tuple) and result else None
            if losses:
                flags = self._module.get_args()
                batches = flags.global_batch_size // (flags.micro_batch_size * flags.data_parallel_size)
                iterations = flags.eval_iters if isinstance(flags.eval_iters, int) else 1
                session.evaluation(self._split, float(next(iter(losses.values()))), batches * iterations)
        return result

    def _progress(self, logged: dict[str, Any]) -> Any:
        """What the log says of this step; None of a step that it leaves out: reading a loss waits for the device."""
        from megatronapp.core.trace.values import Progress

        flags = self._module.get_args()
        if logged["iteration"] % flags.log_interval:
            return None
        seconds = time.perf_counter() - self._began_at
        losses, norm = logged["loss_dict"], logged["grad_norm"]
        loss = losses.get("lm loss", next(iter(losses.values()), None))
        return Progress(
            loss=None if loss is None else float(loss),
            learning_rate=logged["learning_rate"],
            grad_norm=None if norm is None else float(norm),
            tokens_per_second=self._module.get_current_global_batch_size() * flags.seq_length / seconds,
            total_steps=flags.train_iters or 0,
        )


PATCHES: dict[str, Callable[[Attachment, ModuleType], None]] = {
    "megatron.training.training": _training,
    "megatron.training.checkpointing": functools.partial(saves, name="save_checkpoint"),
}

"""A loop on megatron-core's schedules, Megatron-LM's among them: each call of a schedule is a step's passes, or an
evaluation's, and an optimizer's step ends the step where no loop says so.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from megatronapp.trainer.attach.attachment import Attachment, bind


def groups_exist(attachment: Attachment) -> None:
    """torch's are there. A program that has imported megatron-core makes those of its grid next."""
    from megatronapp.trainer.plugins.base import Degree

    if "megatron.core.parallel_state" not in sys.modules:
        attachment.open(Degree.COLLECTIVES)


def _grid(attachment: Attachment, module: ModuleType) -> None:
    stock = module.initialize_model_parallel

    @functools.wraps(stock)
    def initialize_model_parallel(*args: Any, **kwargs: Any) -> Any:
        result = stock(*args, **kwargs)
        training = sys.modules.get("megatron.training.global_vars")
        if getattr(training, "_GLOBAL_ARGS", None) is not None:
            from megatronapp.trainer.plugins.base import Degree

            attachment.open(Degree.FULL)
        return result

    bind(stock, initialize_model_parallel)


def _schedules(attachment: Attachment, module: ModuleType) -> None:
    stock = module.get_forward_backward_func

    @functools.wraps(stock)
    def get_forward_backward_func(*args: Any, **kwargs: Any) -> Any:
        return attached(attachment, stock(*args, **kwargs))

    bind(stock, get_forward_backward_func)


def attached(attachment: Attachment, schedule: Callable[..., Any]) -> Callable[..., Any]:
    """The schedule, which is attached to when it is first called: what it is called with is known then."""

    @functools.wraps(schedule)
    def forward_backward(*args: Any, **kwargs: Any) -> Any:
        from megatronapp.trainer.plugins.base import Degree

        session = attachment.session or attachment.open(Degree.FULL)
        if session is None or session.degree is not Degree.FULL or args:
            return schedule(*args, **kwargs)
        try:
            from megatronapp.trainer.attach.passes import prepared

            run = prepared(session, schedule, kwargs)
        except Exception as error:  # noqa: BLE001  (an unknown version is no reason to fail somebody's step)
            attachment.give_up(error)
            return schedule(**kwargs)
        return run()

    return forward_backward


def _gradients(attachment: Attachment, module: ModuleType) -> None:
    """Without Megatron-LM's flags the model itself tells that gradients are reduced beside the backward passes."""
    kind = module.DistributedDataParallel
    stock = kind.__init__

    @functools.wraps(stock)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        stock(self, *args, **kwargs)
        if getattr(getattr(self, "ddp_config", None), "overlap_grad_reduce", False):
            attachment.settings["overlap-grad-reduce"] = "on"

    kind.__init__ = __init__


def _optimizers(attachment: Attachment, module: ModuleType) -> None:
    for name in ("MixedPrecisionOptimizer", "FP32Optimizer", "ChainedOptimizer"):
        kind = getattr(module, name)
        kind.step = _as_step(attachment, kind.step)


def _as_step(attachment: Attachment, stock: Callable[..., Any]) -> Callable[..., Any]:
    inside: list[bool] = []
    """Of a chained optimizer's step, the steps of those that it consists of."""

    @functools.wraps(stock)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        from megatronapp.trainer.attach.session import Bounds
        from megatronapp.trainer.plugins.base import Degree

        session = attachment.session
        if session is None or inside or session.degree is not Degree.FULL:
            return stock(self, *args, **kwargs)
        session.begin(Bounds.OPTIMIZER)
        session.see_optimizer(self)
        inside.append(True)
        try:
            result = session.optimizer(lambda: stock(self, *args, **kwargs))
        finally:
            inside.pop()
        session.end(Bounds.OPTIMIZER, _progress(result))
        return result

    return step


def _progress(result: Any) -> Any:
    """Of what a step returns: whether it updated, the gradients' norm, how many of them are zero."""
    from megatronapp.core.trace.values import Progress

    norm = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    return Progress(grad_norm=norm) if isinstance(norm, float) else None


PATCHES: dict[str, Callable[[Attachment, ModuleType], None]] = {
    "megatron.core.parallel_state": _grid,
    "megatron.core.pipeline_parallel.schedules": _schedules,
    "megatron.core.distributed.distributed_data_parallel": _gradients,
    "megatron.core.optimizer.optimizer": _optimizers,
}

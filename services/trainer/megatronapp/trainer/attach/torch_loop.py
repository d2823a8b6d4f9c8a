"""A loop of its own on torch.distributed: DDP, FSDP2, Accelerate, or an optimizer alone.

A step ends with the step of the optimizer that took the first one. Forward passes are DDP's, and those of modules that
`fully_shard` has been called on and no module around them; backward passes are autograd's.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

from megatronapp.trainer.attach import megatron_core
from megatronapp.trainer.attach.attachment import Attachment, bind
from megatronapp.trainer.attach.saving import saves

if TYPE_CHECKING:
    from megatronapp.trainer.attach.session import Session


def _groups(attachment: Attachment, module: ModuleType) -> None:
    stock_init, stock_destroy = module.init_process_group, module.destroy_process_group

    @functools.wraps(stock_init)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = stock_init(*args, **kwargs)
        megatron_core.groups_exist(attachment)
        return result

    @functools.wraps(stock_destroy)
    def destroy_process_group(group: Any = None) -> Any:
        if group is None or group is module.GroupMember.WORLD:
            attachment.close()
        return stock_destroy(group)

    bind(stock_init, init_process_group)
    bind(stock_destroy, destroy_process_group)


def _ddp(attachment: Attachment, module: ModuleType) -> None:
    kind = module.DistributedDataParallel
    kind.forward = _as_forward(attachment, kind.forward)


def _as_forward(attachment: Attachment, forward: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    @functools.wraps(forward)
    def attached(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        with _forward(attachment):
            return forward(*args, **kwargs)

    return attached


@contextmanager
def _forward(attachment: Attachment) -> Iterator[None]:
    import torch

    from megatronapp.core.trace.values import Phase
    from megatronapp.trainer.attach.session import Bounds
    from megatronapp.trainer.plugins.base import Degree

    session = attachment.session or attachment.open(Degree.COLLECTIVES)
    if session is None or session.degree is Degree.FULL:
        yield
    elif not torch.is_grad_enabled():
        with session.phase(Phase.EVALUATION):
            yield
    else:
        session.begin(Bounds.OPTIMIZER)
        with session.timed("forward-compute"):
            yield


def _fsdp(attachment: Attachment, module: ModuleType) -> None:
    stock = module.fully_shard
    roots: weakref.WeakKeyDictionary[Any, Callable[[], None]] = weakref.WeakKeyDictionary()

    @functools.wraps(stock)
    def fully_shard(target: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(target, *args, **kwargs)
        for root in target if isinstance(target, list | tuple) else [target]:
            for inner in root.modules():
                if (remove := roots.pop(inner, None)) is not None:
                    remove()
            roots[root] = _hook(attachment, root)
        return result

    bind(stock, fully_shard)


def _hook(attachment: Attachment, module: Any) -> Callable[[], None]:
    """Around the module's forward; returns what takes it off."""
    import torch

    open_passes: list[Any] = []

    def before(*_: Any) -> None:
        if not torch.compiler.is_compiling():
            open_passes.append(passing := _forward(attachment))
            passing.__enter__()

    def after(*_: Any) -> None:
        if open_passes and not torch.compiler.is_compiling():
            open_passes.pop().__exit__(None, None, None)

    handles = (
        module.register_forward_pre_hook(before, prepend=True),
        module.register_forward_hook(after, always_call=True),
    )

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


def _autograd(attachment: Attachment, module: ModuleType) -> None:
    stock = module.backward

    inside: list[bool] = []
    """Of a backward pass, those that recompute what it needs."""

    @functools.wraps(stock)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        session = None if inside else _stepping(attachment)
        if session is None:
            return stock(tensors, *args, **kwargs)
        inside.append(True)
        try:
            with Backward(session, tensors):
                return stock(tensors, *args, **kwargs)
        finally:
            inside.pop()

    module.backward = backward  # type: ignore[attr-defined]  # where Tensor.backward looks for it


class Backward:
    """A backward pass, and behind its last gradient what waits for other ranks: DDP and FSDP2 do that in callbacks at
    the pass's end. One that is queued before theirs, as the pass begins, is called when the gradients are computed."""

    def __init__(self, session: Session, tensors: Any) -> None:
        import torch

        self._compute, self._sync = session.timers("backward-compute"), session.timers("all-grads-sync")
        self._root = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        self._engine = torch.autograd.Variable._execution_engine
        self._hook: Any = None
        self._computed = False

    def __enter__(self) -> None:
        if self._root is not None and self._root.requires_grad:
            self._hook = self._root.register_hook(lambda _: self._engine.queue_callback(self._gradients_are_there))
        self._compute.start()

    def _gradients_are_there(self) -> None:
        self._computed = True
        self._compute.stop()
        self._sync.start()

    def __exit__(self, *_: object) -> None:
        (self._sync if self._computed else self._compute).stop()
        if self._hook is not None:
            self._hook.remove()


def _stepping(attachment: Attachment) -> Session | None:
    """The session, in a step, where steps are seen here; else None."""
    from megatronapp.trainer.attach.session import Bounds
    from megatronapp.trainer.plugins.base import Degree

    session = attachment.session
    if session is None or session.degree is Degree.FULL:
        return None
    session.begin(Bounds.OPTIMIZER)
    return session


def _optimizers(attachment: Attachment, module: ModuleType) -> None:
    steps = OptimizerSteps(attachment)
    module.register_optimizer_step_pre_hook(steps.before)
    module.register_optimizer_step_post_hook(steps.after)


class OptimizerSteps:
    """Torch calls it around each step of any optimizer; the steps that one consists of are part of it."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._timed: Any = nullcontext()
        self._first: Callable[[], Any] = lambda: None
        self._outermost: Callable[[], Any] = lambda: None
        """That steps now."""

    def before(self, optimizer: Any, *_: Any) -> None:
        import torch.distributed as dist

        if self._outermost() not in (None, optimizer):
            return
        self._outermost = weakref.ref(optimizer)
        if self._attachment.session is None and dist.is_initialized():
            from megatronapp.trainer.plugins.base import Degree

            self._attachment.open(Degree.COLLECTIVES)
        session = _stepping(self._attachment)
        self._timed = nullcontext() if session is None else session.timed("optimizer")
        self._timed.__enter__()

    def after(self, optimizer: Any, *_: Any) -> None:
        from megatronapp.core.trace.values import Progress
        from megatronapp.trainer.attach.session import Bounds
        from megatronapp.trainer.plugins.base import Degree

        if self._outermost() is not optimizer:
            return
        self._outermost = lambda: None
        self._timed.__exit__(None, None, None)
        self._timed = nullcontext()
        session = self._attachment.session
        if session is None or session.degree is Degree.FULL:
            return
        if self._first() is None:
            self._first = weakref.ref(optimizer)
        if self._first() is optimizer:
            rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
            known = Progress(learning_rate=rate) if isinstance(rate, float) else None  # a tensor's is not waited for
            session.end(Bounds.OPTIMIZER, known)


def _loaders(attachment: Attachment, module: ModuleType, name: str = "DataLoader") -> None:
    kind = getattr(module, name)
    stock = kind.__iter__

    @functools.wraps(stock)
    def __iter__(self: Any) -> Any:  # noqa: N807
        from megatronapp.trainer.plugins.base import Degree

        iterator = stock(self)
        session = attachment.session
        if session is None or session.degree is Degree.FULL:
            return iterator
        return _OpensStep(attachment, session.chain.data(iterator))

    kind.__iter__ = __iter__


class _OpensStep:
    """Waiting for data is part of the step that it is for."""

    def __init__(self, attachment: Attachment, iterator: Any) -> None:
        self._attachment = attachment
        self._iterator = iterator

    def __iter__(self) -> _OpensStep:
        return self

    def __next__(self) -> Any:
        from megatronapp.trainer.attach.session import Bounds

        if (session := self._attachment.session) is not None:
            session.begin(Bounds.OPTIMIZER)
        return next(self._iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


PATCHES: dict[str, Callable[[Attachment, ModuleType], None]] = {
    "torch.distributed.distributed_c10d": _groups,
    "torch.nn.parallel.distributed": _ddp,
    "torch.distributed.fsdp._fully_shard._fully_shard": _fsdp,
    "torch.autograd": _autograd,
    "torch.optim.optimizer": _optimizers,
    "torch.utils.data.dataloader": _loaders,
    "torchdata.stateful_dataloader.stateful_dataloader": functools.partial(_loaders, name="StatefulDataLoader"),
    "torch.serialization": functools.partial(saves, name="save"),
    "torch.distributed.checkpoint.state_dict_saver": functools.partial(saves, name="save"),
}

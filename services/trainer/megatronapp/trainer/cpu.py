"""What megatron-core 0.16 needs to train on a machine without CUDA: all of it here, nothing on a GPU machine.

megatron-core names CUDA directly in some places. Each function below answers one kind of them with the CPU.
No installed file is changed; `install` does nothing when CUDA is there.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

CPU = torch.device("cpu")

# Modules that write device="cuda" into a tensor factory on a path that training takes.
_LITERAL_CUDA = (
    "megatron.core.pipeline_parallel.schedules",  # the token counter
    "megatron.core.optimizer.clip_grads",  # norms and overflow flags
    "megatron.core.optimizer.optimizer",  # found_inf
    "megatron.core.optimizer.grad_scaler",  # the loss scale
    "megatron.core.transformer.utils",  # the causal mask
    "megatron.core.transformer.moe.moe_utils",  # counters of the auxiliary loss
    "megatron.core.dist_checkpointing.exchange_utils",  # scratch tensors of the load exchange
    "megatron.core.dist_checkpointing.strategies.state_dict_saver",
    "megatron.core.utils",
    "megatron.core.models.common.embeddings.rope_utils",  # pinned memory for the place of a context rank
)
_FACTORIES = ("arange", "empty", "empty_like", "full", "ones", "ones_like", "tensor", "zeros", "zeros_like")

_installed = False


def install() -> bool:
    """Make megatron-core run on the CPU; True if it was needed. Call before a model is built; idempotent."""
    global _installed
    if torch.cuda.is_available():
        return False
    if not _installed:
        _answer_device_queries()
        _redirect_literal_devices()
        _keep_tensors_where_they_are()
        _name_types_as_on_cuda()
        _use_the_cpu_generator()
        _installed = True
    return True


def _answer_device_queries() -> None:
    """torch.cuda.current_device() and its like raise without a driver; buffers are placed by them."""
    torch.cuda.current_device = _answer(lambda: CPU)
    torch.cuda.synchronize = _answer(lambda: None)
    torch.cuda.nvtx.range_push = _answer(lambda: 0)
    torch.cuda.nvtx.range_pop = _answer(lambda: 0)


def _answer(value: Callable[[], Any]) -> Callable[..., Any]:
    """A function that takes anything and answers `value()`."""
    return lambda *_, **__: value()


class _TorchOnCpu(types.ModuleType):
    """The name `torch` inside one module: the same library, with factories that read "cuda" as the CPU."""

    def __init__(self) -> None:
        super().__init__("torch")
        for name in _FACTORIES:
            setattr(self, name, _on_cpu(getattr(torch, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    def build(*args: Any, **options: Any) -> Any:
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = CPU
        options.pop("pin_memory", None)
        return factory(*args, **options)

    return build


def _redirect_literal_devices() -> None:
    for name in _LITERAL_CUDA:
        module = importlib.import_module(name)
        if hasattr(module, "torch"):
            module.torch = _TorchOnCpu()  # type: ignore[attr-defined]


def _keep_tensors_where_they_are() -> None:
    """Tied embeddings over pipeline stages and broadcast_data call tensor.cuda()."""
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]


def _name_types_as_on_cuda() -> None:
    """The optimizer sorts parameters by `tensor.type() == "torch.cuda.FloatTensor"`; nobody else is answered so."""
    stock = torch.Tensor.type

    def type_(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **options: Any) -> Any:
        if dtype is not None:
            return stock(self, dtype, non_blocking, **options)
        name = stock(self)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return name.replace("torch.", "torch.cuda.", 1) if caller.startswith("megatron.core.optimizer") else name

    torch.Tensor.type = type_  # type: ignore[assignment, method-assign]


def _use_the_cpu_generator() -> None:
    """Dropout's generator is the CPU's; the tracker's check that it stays untouched falls away with that."""
    from megatron.core.tensor_parallel import random as megatron_random

    torch.cuda.manual_seed = lambda seed: torch.manual_seed(seed)  # type: ignore[assignment]
    torch.cuda.get_rng_state = _answer(torch.get_rng_state)
    torch.cuda.set_rng_state = lambda new_state, *_, **__: torch.set_rng_state(new_state)
    megatron_random._get_cuda_rng_state = _answer(torch.get_rng_state)
    megatron_random._set_cuda_rng_state = torch.cuda.set_rng_state

    class CpuStatesTracker(megatron_random.CudaRNGStatesTracker):
        @contextlib.contextmanager
        def fork(self, name: str = megatron_random._MODEL_PARALLEL_RNG_TRACKER_NAME) -> Iterator[None]:
            outer_name = self._current_state_name  # type: ignore[has-type]
            outer_state = torch.get_rng_state()
            torch.set_rng_state(self.states_[name])
            self._current_state_name = name
            try:
                yield
            finally:
                self.states_[name] = torch.get_rng_state()
                torch.set_rng_state(outer_state)
                self._current_state_name = outer_name

    megatron_random.CudaRNGStatesTracker = CpuStatesTracker

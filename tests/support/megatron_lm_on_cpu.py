"""Runs one of Megatron-LM's scripts, unmodified, on a machine without CUDA: `megatron_lm_on_cpu.py SCRIPT [flag …]`.

The trainer's shims answer for CUDA in megatron-core; those below, in Megatron-LM's own modules. triton, six and regex,
which its scripts import on every path and call on none that a test takes, have stand-ins where they are not installed.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import runpy
import sys
import types
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from unittest.mock import MagicMock

import torch

from megatronapp.trainer import cpu
from megatronapp.trainer.checkpoint_writing import collect_in_process

OPTIONAL = ("triton", "triton.language", "six", "regex")


class StandIn(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


def import_megatron_lm(*modules: str) -> None:
    """It, and these modules."""
    absent = [name for name in OPTIONAL if find_spec(name.partition(".")[0]) is None]
    sys.modules.update({name: StandIn(name) for name in absent})
    for name in ("megatron.training.training", *modules):
        importlib.import_module(name)
    for name in absent:
        del sys.modules[name]


def answer_for_cuda() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith(("megatron.training", "megatron.core.rerun_state_machine")) and hasattr(module, "torch"):
            module.torch = cpu._TorchOnCpu()  # type: ignore[attr-defined]
    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = lambda *_: None
    torch.cuda.Stream = MagicMock  # type: ignore[misc]
    torch.cuda.current_stream = lambda *_: MagicMock()
    torch.cuda.stream = lambda *_: contextlib.nullcontext()  # type: ignore[assignment]
    torch.cuda.memory_stats = lambda *_: collections.defaultdict(int)
    device = types.SimpleNamespace(major=9, minor=0, total_memory=1 << 30)
    torch.cuda.get_device_properties = lambda *_: device  # type: ignore[assignment]
    torch.cuda.get_device_capability = lambda *_: (device.major, device.minor)


def allow_no_cuda() -> None:
    from megatron.training import initialize, training

    initialize._compile_dependencies = lambda: None  # CUDA kernels; the wheel of megatron-core has the rest built
    training.set_jit_fusion_options = lambda: None  # warms fused kernels up
    training.initialize_megatron = functools.partial(training.initialize_megatron, allow_no_cuda=True)


def prepare(*modules: str) -> None:
    """Megatron-LM, and modules that import it."""
    cpu.install()
    import_megatron_lm(*modules)
    answer_for_cuda()
    allow_no_cuda()
    collect_in_process()  # a process of its own would import the script without the stand-ins


def run_script() -> None:
    """The one that the arguments name, with those behind it."""
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    prepare()
    run_script()

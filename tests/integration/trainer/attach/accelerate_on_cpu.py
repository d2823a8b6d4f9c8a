"""Runs a script on Accelerate's own Megatron-LM plug-in on a machine without CUDA: `accelerate_on_cpu.py SCRIPT`.

No line of the plug-in is changed. Accelerate 1.15 expects two things elsewhere than Megatron-LM core_v0.16.1 has them:
`gpt_builders` inside `megatron.training`, and seven values of `train_step`; it has eight.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from types import SimpleNamespace
from typing import Any

import torch

from megatronapp.trainer import cpu
from tests.support import megatron_lm_on_cpu


def as_accelerate_expects() -> None:
    from megatron.training import training

    stock = training.train_step

    @functools.wraps(stock)
    def train_step(*args: Any, **kwargs: Any) -> Any:
        return stock(*args, **kwargs)[:7]

    training.train_step = train_step
    sys.modules["megatron.training.gpt_builders"] = importlib.import_module("gpt_builders")


def answer_for_cuda() -> None:
    from accelerate import state
    from accelerate.utils import DistributedType, megatron_lm

    state.PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
    state.PartialState.set_device = lambda self: setattr(self, "device", torch.device("cpu"))
    megatron_lm._compile_dependencies = lambda: None
    megatron_lm.set_jit_fusion_options = lambda: None
    megatron_lm.torch = cpu._TorchOnCpu()
    megatron_lm.torch.cuda = SimpleNamespace(is_available=lambda: True, current_device=torch.cuda.current_device)


if __name__ == "__main__":
    os.environ["ACCELERATE_USE_MEGATRON_LM"] = "true"  # as `accelerate launch --use_megatron_lm` says
    megatron_lm_on_cpu.prepare("gpt_builders")
    as_accelerate_expects()
    megatron_lm_on_cpu.import_megatron_lm("accelerate")
    answer_for_cuda()
    megatron_lm_on_cpu.run_script()

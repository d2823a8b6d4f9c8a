"""The training loop: steps, evaluations, checkpoints, and a clean end."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.utils import get_batch_on_this_cp_rank
from megatronapp.core.errors import TrainingError
from megatronapp.core.logging import get_logger
from megatronapp.trainer import checkpoint
from megatronapp.trainer.batches import Batches
from megatronapp.trainer.checkpoint import Claim, TrainingState
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.metrics import EvaluationReport, Reporter, StepReport
from megatronapp.trainer.plugins.chain import PluginChain
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)

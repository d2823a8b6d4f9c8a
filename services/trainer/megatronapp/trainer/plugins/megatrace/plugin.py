"""--nccl-trace: NCCL loads the plug-in of megatronapp-nccl, whose memory goes to the rank's agent.

NCCL looks for its plug-in once, with the first communicator: all is set up before. What stands in the way of it never
stands in the way of the training: one line says so, and the run goes on without.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import ClassVar, Self

import torch

from megatronapp.core.errors import PluginMissingError, UsageError
from megatronapp.core.logging import get_logger
from megatronapp.trainer.agent.megatrace_log import MegatraceSettings
from megatronapp.trainer.agent.segment import Segment
from megatronapp.trainer.plugins.base import Plugin, PluginContext, Preparation
from megatronapp.trainer.plugins.megatrace.sampling import Sampling

log = get_logger(__name__)

VARIABLE = "NCCL_PROFILER_PLUGIN"
LEVELS = ("calls", "times", "all")
LEVEL_OF_MEGATRACE = "times"
"""Where Megatrace's own variables ask for it (agent/megatrace_log.py)."""
LANES = 2048
"""Communicators, and pairs of ranks in each direction, of one process."""
LEAST_RING_MIB, MOST_RING_MIB = 1, 512
SHARE_OF_MEMORY = 8
"""The ring is at most the container's memory over this."""
LOWERED = "records were overwritten before the agent read them: a larger --nccl-trace-ring-mib holds more"
_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class MegatracePlugin(Plugin):
    name: ClassVar[str] = "megatrace"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("megatrace", "every collective and message of NCCL, whoever calls it")
        group.add_argument(
            "--nccl-trace",
            nargs="?",
            choices=LEVELS,
            const="times",
            help="record NCCL's operations: calls, also their times on the GPU (default), or all: also what their "
            "network transfers wait for",
        )
        group.add_argument(
            "--nccl-trace-ring-mib", type=int, default=8, help="memory for records that no agent has read yet, in MiB"
        )

    @classmethod
    def prepare(cls, args: argparse.Namespace, preparation: Preparation) -> Preparation:
        if args.nccl_trace is None and (megatrace := MegatraceSettings.of(os.environ)):
            args.nccl_trace = LEVEL_OF_MEGATRACE
            if megatrace.remark and preparation.environment.rank == 0:
                log.warning("megatrace_time", reason=megatrace.remark)
        if args.nccl_trace is None:
            return preparation
        ring_mib = args.nccl_trace_ring_mib
        if not LEAST_RING_MIB <= ring_mib <= MOST_RING_MIB or ring_mib & ring_mib - 1:
            raise UsageError(f"--nccl-trace-ring-mib {ring_mib}: a power of two, {LEAST_RING_MIB} to {MOST_RING_MIB}")
        native = _native()
        version = _nccl_version()
        level, why = native.supported_level(version, native.Level[args.nccl_trace.upper()]) if version else (0, "")
        if reason := _obstacle(native, version, ring_mib << 20) or ("" if level else why):
            log.warning("nccl_trace_off", reason=reason)
            return preparation
        if why:
            log.warning("nccl_trace_reduced", reason=why)
        try:
            operations_fd = native.open_segment(ring_mib << 20, LANES)
        except OSError as error:
            log.warning("nccl_trace_off", reason=str(error))
            return preparation
        native.ask_for(level)
        variables = {**preparation.variables, VARIABLE: str(native.LIBRARY)}
        return replace(preparation, variables=variables, operations_fd=operations_fd)

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        return cls(args.nccl_trace, context) if context.channel.operations_fd >= 0 else None

    def __init__(self, level: str, context: PluginContext) -> None:
        self._native = _native()
        self._level, _ = self._native.supported_level(_nccl_version(), self._native.Level[level.upper()])
        self._in_force = self._level
        self._channel = context.channel
        self._sampling = Sampling([each for each in self._native.Level if self._native.Level.OFF < each <= self._level])
        self._segment = Segment(os.dup(context.channel.operations_fd))

    def step_begin(self, step: int) -> None:
        """What the trace control asks for: off leaves the calls, from which a hang is known. Less where the agent does
        not come after."""
        if self._sampling.step(self._segment.sent):
            level = self._native.Level(self._sampling.level).name.lower()
            log.warning("nccl_trace_lowered", level=level, lost=self._segment.sent, reason=LOWERED)
        enabled = self._channel.line is None or self._channel.line.enabled()
        wanted = self._native.Level(self._sampling.level) if enabled else self._native.Level.CALLS
        if wanted != self._in_force:
            self._in_force = wanted
            self._native.ask_for(wanted)

    def close(self) -> None:
        self._native.ask_for(self._native.Level.OFF)
        self._segment.close()


def _native() -> ModuleType:
    try:
        return import_module("megatronapp.nccl")
    except ImportError as error:
        raise PluginMissingError("--nccl-trace needs the plug-in for NCCL: pip install megatronapp-nccl") from error


def _nccl_version() -> tuple[int, ...]:
    """Of PyTorch's NCCL; empty where it has none."""
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return ()
    return tuple(torch.cuda.nccl.version())


def _obstacle(native: ModuleType, version: tuple[int, ...], ring_bytes: int) -> str:
    """Why nothing can be recorded; empty where nothing is in the way."""
    other = os.environ.get(VARIABLE, "")
    if other not in ("", str(native.LIBRARY)):
        return f"{VARIABLE}={other} is set, and NCCL takes one plug-in: unset it, or leave --nccl-trace out"
    if not version:
        return "this PyTorch has no NCCL"
    memory = _memory_limit()
    if memory is not None and ring_bytes > memory // SHARE_OF_MEMORY:
        return (
            f"a ring of {ring_bytes >> 20} MiB is too much for a container of {memory >> 20} MiB: give a smaller "
            "--nccl-trace-ring-mib, or the container more memory"
        )
    return ""


def _memory_limit() -> int | None:
    """Of the container, in bytes; None where there is none."""
    for file in _MEMORY_LIMITS:
        try:
            return int(file.read_text())
        except (OSError, ValueError):  # "max"
            continue
    return None

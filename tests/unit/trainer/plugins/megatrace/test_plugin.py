"""What --nccl-trace sets up before process groups exist, and what stands in its way without stopping the training."""

from __future__ import annotations

import argparse
import os
from typing import Any

import pytest

from megatronapp.core.errors import PluginMissingError, UsageError
from megatronapp.trainer.agent.kept_operations import KeptOperations
from megatronapp.trainer.agent.segment import Segment
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.plugins.base import PluginContext, Preparation
from megatronapp.trainer.plugins.channel import AgentChannel
from megatronapp.trainer.plugins.megatrace import MegatracePlugin, plugin

native = pytest.importorskip("megatronapp.nccl", reason="the plug-in's wheel is not installed: pip install native/nccl")
asked: list[int] = []


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL 2.28 and no limit of memory; the recorder of this process is left alone."""
    asked.clear()
    monkeypatch.setattr(plugin, "_nccl_version", lambda: (2, 28, 9))
    monkeypatch.setattr(plugin, "_memory_limit", lambda: None)
    monkeypatch.setattr(native, "open_segment", lambda ring, lanes: 77)
    monkeypatch.setattr(native, "ask_for", asked.append)
    monkeypatch.delenv(plugin.VARIABLE, raising=False)


@pytest.fixture
def segment(monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the recorder of this process, which is told of all, and whose records were read."""
    monkeypatch.undo()
    descriptor: int = native.open_segment(1 << 16, 4096)
    native.ask_for(native.Level.ALL)
    before = KeptOperations(Segment(os.dup(descriptor)))
    before.read()
    before.close()
    monkeypatch.setattr(plugin, "_nccl_version", lambda: (2, 28, 9))
    monkeypatch.setattr(native, "ask_for", asked.append)
    return descriptor


def prepare(*flags: str) -> Preparation:
    parser = argparse.ArgumentParser()
    MegatracePlugin.add_arguments(parser)
    unread: Any = None
    preparation = Preparation(environment=Environment.read(), config=unread, world=unread)
    return MegatracePlugin.prepare(parser.parse_args(flags), preparation)


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (["--nccl-trace"], native.Level.TIMES),
        (["--nccl-trace", "all"], native.Level.ALL),
        (["--nccl-trace", "calls"], native.Level.CALLS),
    ],
)
def test_nccl_is_told_of_the_plug_in_and_the_agent_gets_its_memory(flags, level):
    prepared = prepare(*flags)

    assert prepared.variables == {"NCCL_PROFILER_PLUGIN": str(native.LIBRARY)}
    assert prepared.operations_fd == 77
    assert asked == [level]


def test_without_the_flag_nothing_is_set_up():
    prepared = prepare()

    assert (prepared.variables, prepared.operations_fd, asked) == ({}, -1, [])


@pytest.mark.parametrize(
    ("version", "memory", "other", "why"),
    [
        ((), None, "", "no NCCL"),
        ((2, 27, 7), None, "", "2.28"),
        ((2, 28, 9), 32 << 20, "", "a smaller --nccl-trace-ring-mib"),
        ((2, 28, 9), None, "inspector", "NCCL takes one plug-in"),
    ],
)
def test_what_stands_in_the_way_is_one_line_and_training_goes_on(monkeypatch, capsys, version, memory, other, why):
    monkeypatch.setattr(plugin, "_nccl_version", lambda: version)
    monkeypatch.setattr(plugin, "_memory_limit", lambda: memory)
    monkeypatch.setenv(plugin.VARIABLE, other)

    prepared = prepare("--nccl-trace")

    assert (prepared.variables, prepared.operations_fd, asked) == ({}, -1, [])
    (line,) = capsys.readouterr().out.splitlines()
    assert why in line


def test_no_memory_is_one_line_and_training_goes_on(monkeypatch, capsys):
    def refuse(ring: int, lanes: int) -> int:
        raise OSError("no shared memory of 8388608 bytes")

    monkeypatch.setattr(native, "open_segment", refuse)

    assert prepare("--nccl-trace").operations_fd == -1
    assert "no shared memory" in capsys.readouterr().out


def test_an_nccl_that_would_slow_down_is_asked_for_calls_and_the_log_says_why(monkeypatch, capsys):
    monkeypatch.setattr(plugin, "_nccl_version", lambda: (2, 31, 2))

    assert prepare("--nccl-trace", "all").operations_fd == 77
    assert asked == [native.Level.CALLS]
    assert "slower" in capsys.readouterr().out


@pytest.mark.parametrize("size", ["0", "3", "1024"])
def test_a_ring_that_cant_be_is_a_usage_error(size):
    with pytest.raises(UsageError, match="a power of two, 1 to 512"):
        prepare("--nccl-trace", "--nccl-trace-ring-mib", size)


def test_without_the_wheel_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(plugin, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))

    with pytest.raises(PluginMissingError, match="pip install megatronapp-nccl"):
        prepare("--nccl-trace")


class Line:
    tracing = True

    def enabled(self) -> bool:
        return self.tracing


def created_with(line: Line, operations_fd: int) -> MegatracePlugin:
    context = PluginContext.__new__(PluginContext)
    object.__setattr__(context, "channel", AgentChannel(operations_fd=operations_fd, line=line))  # type: ignore[arg-type]
    created = MegatracePlugin.create(argparse.Namespace(nccl_trace="all"), context)
    assert created is not None
    return created


def test_where_records_are_overwritten_less_is_recorded_and_the_log_says_so(segment, capsys):
    created = created_with(Line(), segment)
    agent = Segment(os.dup(segment))

    agent.sent = 7
    for step in range(3):
        created.step_begin(step)
    created.close()
    agent.close()

    assert asked == [native.Level.TIMES, native.Level.OFF]
    (line,) = capsys.readouterr().out.splitlines()
    assert "nccl_trace_lowered" in line
    assert "--nccl-trace-ring-mib" in line


def test_the_trace_control_switches_between_steps(segment):
    line = Line()
    created = created_with(line, segment)

    for tracing in (True, False, False, True):
        line.tracing = tracing
        created.step_begin(1)
    created.close()

    assert asked == [native.Level.CALLS, native.Level.ALL, native.Level.OFF]


def test_the_containers_limit_is_read_where_there_is_one(monkeypatch, tmp_path):
    monkeypatch.undo()
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(plugin, "_MEMORY_LIMITS", (tmp_path / "absent", limit))
    read = []
    for text in ("max\n", "1073741824\n"):
        limit.write_text(text)
        read.append(plugin._memory_limit())

    assert read == [None, 1 << 30]

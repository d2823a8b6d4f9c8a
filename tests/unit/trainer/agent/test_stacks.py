"""A process that stands still tells its stack by a signal; one that is stopped, or listens no more, is never harmed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megatronapp.core.errors import DataError
from megatronapp.trainer.agent import stacks
from megatronapp.trainer.agent.stacks import StackSource, StackTaker, Standing
from megatronapp.trainer.plugins.scan.stacks import StackFile
from megatronapp.v1 import trace_pb2

SLEEPER = """
import threading
from megatronapp.trainer.plugins.scan.stacks import StackFile
source = StackFile()
print(source.document()["signal"], source.document()["fd"], flush=True)
def waits_for_its_peer(): threading.Event().wait()
waits_for_its_peer()
"""


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, StackSource]]:
    """A process that waits for ever, on a machine without py-spy."""
    monkeypatch.setattr(stacks.shutil, "which", lambda name: None)
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    number, fd = map(int, process.stdout.readline().split())
    yield process.pid, StackSource(process.pid, {"signal": number, "fd": fd})
    process.kill()
    process.wait()
    process.stdout.close()


def waited_for(ask: Callable[[], trace_pb2.Stack | None]) -> trace_pb2.Stack:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if (found := ask()) is not None:
            return found
        time.sleep(0.05)
    raise AssertionError("no stack has come")


def dumped(taker: StackTaker) -> trace_pb2.Stack:
    return taker.ask() or waited_for(taker.poll)


def test_a_process_that_waits_tells_where_and_goes_on(sleeper: tuple[int, StackSource]) -> None:
    pid, source = sleeper
    taker = StackTaker(pid, source)

    def there() -> trace_pb2.Stack | None:
        return found if "in waits_for_its_peer" in (found := dumped(taker)).text else None

    first, second = (waited_for(there) for _ in range(2))
    taker.close()

    for stack in (first, second):
        assert (stack.state, stack.source) == ("sleeping", "faulthandler")
    assert stacks.process_state(pid) == "sleeping"


def py_spy(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Stands for it on this machine."""
    spy = folder / "py-spy"
    spy.write_text(f"#!/bin/sh\n{script}\n")
    spy.chmod(0o755)
    monkeypatch.setattr(stacks.shutil, "which", lambda name: str(spy) if name == "py-spy" else None)


def test_where_py_spy_is_installed_it_tells_python_and_native_frames(
    sleeper: tuple[int, StackSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, source = sleeper
    py_spy(tmp_path, monkeypatch, 'echo "asked for $*"; echo "ncclAllReduce (libnccl.so)"')
    taker = StackTaker(pid, source)

    stack = dumped(taker)
    taker.close()

    assert (stack.state, stack.source) == ("sleeping", "py-spy")
    assert f"asked for dump --pid {pid} --native" in stack.text
    assert "ncclAllReduce (libnccl.so)" in stack.text


def test_where_py_spy_may_not_look_the_process_tells_its_stack_itself(
    sleeper: tuple[int, StackSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, source = sleeper
    py_spy(tmp_path, monkeypatch, "echo 'Permission denied' >&2; exit 1")
    taker = StackTaker(pid, source)

    def there() -> trace_pb2.Stack | None:
        return found if "in waits_for_its_peer" in (found := dumped(taker)).text else None

    stack = waited_for(there)
    taker.close()

    assert stack.source == "faulthandler"


def test_a_stopped_process_tells_its_state_and_gets_no_signal(sleeper: tuple[int, StackSource]) -> None:
    pid, source = sleeper
    os.kill(pid, signal.SIGSTOP)
    waited_for(lambda: trace_pb2.Stack() if stacks.process_state(pid) == "stopped" else None)
    taker = StackTaker(pid, source)

    stack = dumped(taker)
    taker.close()

    assert (stack.state, stack.text) == ("stopped", "")
    assert not taker.asking


def test_a_process_that_listens_no_more_is_not_ended_by_the_question() -> None:
    file = StackFile()
    source = StackSource(os.getpid(), file.document())
    file.close()

    assert source.ask() is False
    source.close()


@pytest.mark.parametrize(
    "document", [None, 7, {}, {"signal": 9, "fd": 1}, {"signal": 60, "fd": -1}, {"signal": "60", "fd": 1}]
)
def test_what_a_rank_can_not_mean_is_refused(document: object) -> None:
    with pytest.raises(DataError, match="real-time signal"):
        StackSource(os.getpid(), document)


def test_a_descriptor_of_another_file_is_refused() -> None:
    with pytest.raises(DataError, match="another file"):
        StackSource(os.getpid(), {"signal": 60, "fd": 1})


def test_a_rank_is_looked_at_when_it_has_stood_still_and_seldom_again() -> None:
    standing = Standing()

    due = [second for second in range(70) if standing.due("here" if second >= 5 else second, float(second))]

    assert due == [8, 38, 68]

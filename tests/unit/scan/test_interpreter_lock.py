"""The native recorder's thread has no part in the interpreter's lock: it is counted who enters the interpreter while it
resolves a CPU rank's steps. What a device adds stands in device_rank.py, and in tests/gpu/test_recorder.py.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("megatronapp.scan", reason="the recorder's wheel is not installed: pip install native/scan")

from megatronapp.scan import COLUMNS, Recorder, _native
from tests.support.interpreter_threads import Entrances, lock_kept, spin_until, threads_called, threads_with_a_state
from tests.support.segment import SegmentReader

LIBC, LIBC_UNDER_THE_LOCK = ctypes.CDLL(None), ctypes.PyDLL(None)
Body = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
STEPS = 50
SECONDS = 30.0


class ForeignThread:
    """One that Python does not know; its body takes the interpreter's lock."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._body = Body(lambda _: function() and None)
        self._thread = ctypes.c_ulong()
        assert LIBC_UNDER_THE_LOCK.pthread_create(ctypes.byref(self._thread), None, self._body, None) == 0

    def join(self) -> None:
        assert LIBC.pthread_join(self._thread, None) == 0


def test_the_resolver_never_enters_the_interpreter() -> None:
    entrances, before = Entrances(), threads_called("scan-resolver")
    recorder = Recorder(bytes(1), bytes(1), None, 0)
    reader = SegmentReader(recorder.fd)
    (resolver,) = threads_called("scan-resolver") - before

    for number in range(1, STEPS + 1):
        recorder.begin(0)
        recorder.end()
        recorder.end_step((number,))
    states = threads_with_a_state()
    assert recorder.close(SECONDS)

    assert [step.end.step for step in reader.steps(COLUMNS)] == list(range(1, STEPS + 1))
    assert threading.get_native_id() in states
    assert resolver not in states
    assert entrances.count() == 0


def test_a_step_is_resolved_while_the_training_thread_keeps_the_lock() -> None:
    recorder = Recorder(bytes(1), bytes(1), None, 0)
    reader = SegmentReader(recorder.fd)

    with lock_kept():
        recorder.begin(0)
        recorder.end()
        recorder.end_step((1,))
        resolved = spin_until(lambda: reader.ended(1), SECONDS)

    assert resolved
    assert recorder.close(SECONDS)


def test_the_recorders_library_has_no_way_to_let_a_thread_in() -> None:
    library = Path(_native.__file__).read_bytes()

    assert b"\0PyEval_RestoreThread\0" in library  # the names of what it takes from Python are seen
    for way_in in (b"PyGILState_Ensure", b"PyThreadState_New", b"PyEval_AcquireThread", b"PyThreadState_Swap"):
        assert way_in not in library


def test_a_thread_that_took_the_lock_for_a_moment_is_counted() -> None:
    entrances = Entrances()

    for _ in range(3):
        ForeignThread(lambda: None).join()

    assert entrances.count() == 3
    assert entrances.count() == 0


def test_a_thread_that_needs_the_lock_gets_nowhere_while_it_is_kept() -> None:
    ran: list[bool] = []

    with lock_kept():
        thread = ForeignThread(lambda: ran.append(True))
        reached = spin_until(lambda: ran, 0.2)
    thread.join()

    assert not reached
    assert ran


def test_a_thread_within_the_interpreter_is_seen() -> None:
    within, leave = threading.Event(), threading.Event()
    found: list[int] = []

    def stay() -> None:
        found.append(threading.get_native_id())
        within.set()
        leave.wait()

    thread = ForeignThread(stay)
    within.wait()
    states = threads_with_a_state()
    leave.set()
    thread.join()

    assert states >= {threading.get_native_id(), *found}
    assert found[0] not in threads_with_a_state()

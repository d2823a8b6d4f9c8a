"""Which threads of this process take the interpreter's lock.

A thread enters CPython's interpreter by a PyThreadState of its own: without one it can't hold the lock. CPython numbers
an interpreter's states in the order in which they are made, so that a thread is counted also where it came and went
between two looks. And what comes about while a thread keeps the lock, nobody needs the lock for.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PYTHON = ctypes.pythonapi  # its calls keep the lock
_SEARCHED_WORDS = 48
_NEVER_SECONDS = 1e6

for _function in ("PyInterpreterState_Get", "PyInterpreterState_ThreadHead", "PyThreadState_Next", "PyThreadState_Get"):
    getattr(_PYTHON, _function).restype = ctypes.c_void_p
_PYTHON.PyThreadState_GetID.restype = ctypes.c_uint64


class Entrances:
    """Threads that have entered the interpreter since this was made; those that were in it before aren't counted."""

    def __init__(self) -> None:
        self._number = _number_of_a_new_state()

    def count(self) -> int:
        """Since the last call."""
        before, self._number = self._number, _number_of_a_new_state()
        return self._number - before - 1


def threads_with_a_state() -> set[int]:
    """The kernel's ids of the threads that have a PyThreadState now."""
    offset, found = _offset_of_kernel_id(), set[int]()
    with lock_kept():  # states are made and freed under it
        state = _PYTHON.PyInterpreterState_ThreadHead(ctypes.c_void_p(_PYTHON.PyInterpreterState_Get()))
        while state:
            found.add(ctypes.c_ulong.from_address(state + offset).value)
            state = _PYTHON.PyThreadState_Next(ctypes.c_void_p(state))
    return found


def threads_called(name: str) -> set[int]:
    """The kernel's ids of this process's threads of this name."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # ended meanwhile
            if (thread / "comm").read_text().strip() == name:
                found.add(int(thread.name))
    return found


@contextmanager
def lock_kept() -> Iterator[None]:
    """This thread gives the lock away in calls that wait, and nowhere else."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_NEVER_SECONDS)
    time.sleep(0.001)  # those that wait already by the old interval come first
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def spin_until(reached: Callable[[], object], seconds: float) -> bool:
    """Whether it comes about. Within `lock_kept` this keeps the lock, where `reached` does."""
    deadline = time.monotonic() + seconds
    while not (there := bool(reached())) and time.monotonic() < deadline:
        pass
    return there


def _number_of_a_new_state() -> int:
    numbers: list[int] = []

    def note() -> None:
        numbers.append(_PYTHON.PyThreadState_GetID(ctypes.c_void_p(_PYTHON.PyThreadState_Get())))

    thread = threading.Thread(target=note)
    thread.start()
    thread.join()
    return numbers[0]


def _offset_of_kernel_id() -> int:
    """In a PyThreadState, whose layout differs among Python's versions: it follows the thread's identifier."""
    own = _PYTHON.PyThreadState_Get()
    words = (ctypes.c_ulong * _SEARCHED_WORDS).from_address(own)
    pair = (threading.get_ident(), threading.get_native_id())
    return next(8 * (i + 1) for i in range(_SEARCHED_WORDS - 1) if (words[i], words[i + 1]) == pair)

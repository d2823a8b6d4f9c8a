"""Many ranks for one test without many imports: torch is imported once, by a server, and each rank is a fork of it.

The test process itself is never forked: it has threads and gRPC channels, which do not survive that.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from tests.support.parents import end_with_parent
from tests.support.ports import free_port

T = TypeVar("T")

OTHERS_SECONDS = 1.0

PRELOAD = [
    "megatronapp.trainer.launch",
    "megatronapp.trainer.plugins.scan",
    "megatronapp.trainer.plugins.faults",
    "megatronapp.trainer.plugins.dpp",
    "megatronapp.trainer.plugins.fbd",
    "megatronapp.trainer.generate.loaded",
]


class RankFailedError(AssertionError):
    """A rank raised, died or did not end in time; the message holds its traceback."""


class RanksTimeoutError(RankFailedError):
    """They did not end in time."""


def run_forked(
    world_size: int,
    target: Callable[..., T],
    *args: Any,
    timeout: float = 90.0,
    environment: Mapping[str, str] | None = None,
    may_die: Collection[int] = (),
) -> list[T]:
    """Call `target(*args)` in `world_size` processes as torchrun would start them; what each returns, by rank.

    The target sees RANK, WORLD_SIZE, MASTER_PORT and so on, and joins and leaves the process groups itself. Target,
    arguments and results must be picklable. `timeout` is in seconds, for all ranks together. A rank that may die, and
    does, returns None. Raises RankFailedError.
    """
    with Ranks(world_size, environment) as ranks:
        return ranks.call(target, *args, timeout=timeout, may_die=may_die, is_last=True)


class Ranks:
    """Processes for one call of `run_forked` after the other: on GPUs a start takes longer than a tiny training.

    They start with the first call, and anew with the next one behind a failure.
    """

    def __init__(self, world_size: int, environment: Mapping[str, str] | None = None) -> None:
        self._size = world_size
        self._environment = dict(environment or {})
        self._processes: list[BaseProcess] = []
        self._calls: list[Connection] = []
        self._answers: list[Connection] = []

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self,
        target: Callable[..., T],
        *args: Any,
        timeout: float = 90.0,
        may_die: Collection[int] = (),
        is_last: bool = False,
    ) -> list[T]:
        """As `run_forked`. Behind the last call each rank ends with its answer, which others may wait for."""
        try:
            if not self._processes:
                self._start()
            deadline = time.monotonic() + timeout
            port = free_port()
            for calls in self._calls:
                with suppress(BrokenPipeError):  # a death, which the answers tell
                    calls.send((port, target, args))
                if is_last:
                    calls.close()
            return _collect(self._processes, self._answers, deadline, may_die)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for calls in self._calls:
            calls.close()
        for process in self._processes:
            if process.pid is not None:
                process.join(0.5)
                process.kill()
                process.join()
        self._processes, self._calls, self._answers = [], [], []

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        for rank in range(self._size):
            calls, answers = context.Pipe(duplex=False), context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(rank, self._size, self._environment, calls[0], answers[1]))
            self._processes.append(process)
            self._calls.append(calls[1])
            self._answers.append(answers[0])
            process.start()
            calls[0].close()
            answers[1].close()


def _rank(rank: int, world_size: int, environment: Mapping[str, str], calls: Connection, answers: Connection) -> None:
    import torch

    faulthandler.enable()
    end_with_parent()
    torch.set_num_threads(1)
    size = str(world_size)
    os.environ.update(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        | {"MASTER_ADDR": "127.0.0.1"}
    )
    while True:
        try:
            port, target, args = calls.recv()
        except EOFError:
            return
        os.environ.update({"MASTER_PORT": str(port), **environment})
        try:
            answers.send((target(*args), None))
        except BaseException:  # noqa: BLE001
            answers.send((None, traceback.format_exc()))


def _collect(
    ranks: Sequence[BaseProcess], receivers: list[Connection], deadline: float, may_die: Collection[int]
) -> list[Any]:
    """Results in order of rank; the first failure ends the wait, as the other ranks wait for the one that failed."""
    results: dict[int, Any] = {}
    while len(results) < len(receivers):
        open_ranks = {receivers[rank]: rank for rank in range(len(receivers)) if rank not in results}
        ready = wait(list(open_ranks), timeout=max(deadline - time.monotonic(), 0))
        if not ready:
            raise RanksTimeoutError(f"ranks {sorted(open_ranks.values())} did not end in time")
        for receiver in ready:
            assert isinstance(receiver, Connection)
            rank = open_ranks[receiver]
            try:
                result, error = receiver.recv()
            except EOFError:
                if rank in may_die:
                    results[rank] = None
                    continue
                ranks[rank].join(5)
                raise RankFailedError(f"rank {rank} died with exit code {ranks[rank].exitcode}") from None
            if error is not None:
                del open_ranks[receiver]
                raise RankFailedError(f"rank {rank}:\n{error}{_more_errors(open_ranks)}{_deaths(ranks)}")
            results[rank] = result
    return [results[rank] for rank in range(len(receivers))]


def _more_errors(open_ranks: dict[Connection, int]) -> str:
    """Of ranks that fail over one another the first to be read need not be the cause: what the others say, too."""
    said, until = "", time.monotonic() + OTHERS_SECONDS
    while ready := wait(list(open_ranks), timeout=max(until - time.monotonic(), 0)):
        for receiver in ready:
            assert isinstance(receiver, Connection)
            rank = open_ranks.pop(receiver)
            with suppress(EOFError):  # a death
                _, error = receiver.recv()
                said += f"\nrank {rank}:\n{error}" if error is not None else ""
    return said


def _deaths(ranks: Sequence[BaseProcess]) -> str:
    """Of the ranks that died meanwhile, over which others raise."""
    time.sleep(0.2)  # a death is known a little later than what it does to others
    codes = {rank: process.exitcode for rank, process in enumerate(ranks) if process.exitcode}
    return "".join(f"\nrank {rank} died with exit code {code}" for rank, code in codes.items())

"""Runs a TrainingJob to its end: attempts, restarts from the last checkpoint, and nothing left running."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from megatronapp.core.errors import PluginMissingError, UnavailableError
from megatronapp.core.trainingjob import TrainingJob
from megatronapp.trainer.jobs.plan import LocalPlan

KILL_SECONDS = 5.0
LINE_BYTES = 1 << 20
ERROR = b"error: "
"""So begins what the trainer says before it ends for it."""


@dataclass(frozen=True)
class JobEvent:
    """Something to show: `text` is one line.

    note: before the start · start: an attempt begins · line: of the ranks' output · restart: an attempt failed and
    another follows · end: the job has ended.
    """

    kind: Literal["note", "start", "line", "restart", "end"]
    text: str
    attempt: int = 0


@dataclass(frozen=True)
class JobResult:
    """`exit_code` is 0 also for a job that saved and ended because it was asked to."""

    run: str
    exit_code: int
    attempts: int
    stopped: bool


async def run_job(
    job: TrainingJob,
    *,
    work_dir: Path,
    collector_address: str = "",
    gateway_address: str = "",
    token_file: Path | None = None,
    certificates: Mapping[str, str] | None = None,
    storage: Mapping[str, Path] | None = None,
    on_event: Callable[[JobEvent], None] = lambda _: None,
    stop: asyncio.Event | None = None,
) -> JobResult:
    """Run `job` on this machine until it has ended, restarting it as its failure policy says.

    Setting `stop` lets the ranks save and end within the job's grace period; cancelling the task does the same before
    it is passed on. Either way no process is left. Raises UsageError for a job that can't run here and
    UnavailableError when `work_dir` can't be written.
    """
    plan = LocalPlan.make(
        job,
        work_dir,
        storage=storage or {},
        collector_address=collector_address,
        gateway_address=gateway_address,
        token_file=token_file,
        certificates=certificates,
    )
    try:
        plan.write()
    except OSError as error:
        raise UnavailableError(f"{plan.folder}: {error.strerror}") from error
    for note in plan.notes():
        on_event(JobEvent("note", note))
    return await _Supervisor(plan, on_event, stop or asyncio.Event()).run()


class _Supervisor:
    def __init__(self, plan: LocalPlan, on_event: Callable[[JobEvent], None], stop: asyncio.Event) -> None:
        self._plan = plan
        self._on_event = on_event
        self._stop = stop

    async def run(self) -> JobResult:
        policy = self._plan.job.spec.failure_policy
        attempt = 1
        while True:
            code = await self._attempt(attempt)
            if code == 0 or self._stop.is_set():
                return self._end(code, attempt, "saved and stopped" if self._stop.is_set() else "finished")
            if code in {*policy.non_retriable_exit_codes, PluginMissingError.exit_code}:
                return self._end(code, attempt, f"exit code {code} is not retried")
            if attempt > policy.max_restarts:
                return self._end(code, attempt, f"exit code {code} after {policy.max_restarts} restarts")
            self._emit("restart", f"exit code {code}: attempt {attempt + 1} starts from the last checkpoint", attempt)
            attempt += 1

    async def _attempt(self, attempt: int) -> int:
        """Start all ranks and wait for them. Returns the exit code; nothing of the attempt runs any more then."""
        plan = self._plan
        name, ranks = f"{plan.name}, run {plan.run[:8]}", plan.job.spec.world_size
        self._emit("start", f"{name}: attempt {attempt}, {ranks} ranks", attempt)
        async with self._agent(attempt) as process:
            asked = asyncio.create_task(self._ask_to_stop(process))
            try:
                return await process.wait()
            except asyncio.CancelledError:
                self._stop.set()
                await asyncio.shield(process.wait())
                raise
            finally:
                asked.cancel()

    @asynccontextmanager
    async def _agent(self, attempt: int) -> AsyncIterator[asyncio.subprocess.Process]:
        """The agent in a session of its own, its output read until its last descendant is gone.

        The pipes are not asyncio's, whose `wait` would last until every descendant has closed them.
        """
        life_line, held = os.pipe()
        output, into = os.pipe()
        reading = asyncio.create_task(self._forward(output, attempt))
        try:
            process = await asyncio.create_subprocess_exec(
                *self._plan.command(),
                stdin=life_line,
                stdout=into,
                stderr=asyncio.subprocess.STDOUT,
                env=self._plan.environment(os.environ, attempt),
                start_new_session=True,
            )
        finally:
            os.close(into)
            os.close(life_line)
        try:
            yield process
        finally:
            await asyncio.shield(self._kill_rest(process))
            os.close(held)
            await reading

    async def _kill_rest(self, process: asyncio.subprocess.Process) -> None:
        rest = await asyncio.to_thread(self._running)
        _signal(rest, signal.SIGKILL)
        await asyncio.to_thread(psutil.wait_procs, rest, KILL_SECONDS)
        await process.wait()

    async def _ask_to_stop(self, process: asyncio.subprocess.Process) -> None:
        """Once asked: SIGTERM, which the ranks answer by saving; after the grace period SIGKILL."""
        await self._stop.wait()
        _signal(await asyncio.to_thread(self._targets, process), signal.SIGTERM)
        await asyncio.sleep(self._plan.job.spec.termination_grace_period_seconds)
        _signal(await asyncio.to_thread(self._running), signal.SIGKILL)

    def _targets(self, process: asyncio.subprocess.Process) -> list[psutil.Process]:
        """Whom to ask: the ranks; torchrun only while there are none, as it gives ranks 30 s and kills them then."""
        running = self._running()
        return [p for p in running if p.pid != process.pid and _is_rank(p)] or running

    def _running(self) -> list[psutil.Process]:
        """All processes of this run, also those that left the group, as torchrun's ranks do."""
        mine = ("MEGATRONAPP_RUN_ID", self._plan.run)
        return [process for process in psutil.process_iter() if mine in _environment(process).items()]

    async def _forward(self, output: int, attempt: int) -> None:
        """Every line of the ranks' output, from a pipe's end, to the log file and to the listener.

        An error that all ranks meet reaches the listener once: from the rank that met it first.
        """
        errors: set[bytes] = set()
        reader = asyncio.StreamReader(limit=LINE_BYTES)
        loop = asyncio.get_running_loop()
        with os.fdopen(output, "rb") as pipe, self._plan.log_file(attempt).open("ab") as log:
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
            while line := await _read_line(reader):
                log.write(line)
                log.flush()
                if line in errors:
                    continue
                if line.startswith(ERROR):
                    errors.add(line)
                self._emit("line", line.decode(errors="replace").rstrip(), attempt)
            transport.close()

    def _end(self, code: int, attempt: int, text: str) -> JobResult:
        self._emit("end", f"{self._plan.name}: {text}", attempt)
        return JobResult(self._plan.run, code, attempt, self._stop.is_set())

    def _emit(self, kind: Literal["start", "line", "restart", "end"], text: str, attempt: int) -> None:
        self._on_event(JobEvent(kind, text, attempt))


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or so much of an endless one as fits; empty at the end."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.read(error.consumed)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:  # another user's, or gone
        return {}


def _is_rank(process: psutil.Process) -> bool:
    return "RANK" in _environment(process)


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def run_job_until_signal(
    job: TrainingJob,
    *,
    work_dir: Path,
    collector_address: str = "",
    gateway_address: str = "",
    token_file: Path | None = None,
    certificates: Mapping[str, str] | None = None,
    storage: Mapping[str, Path] | None = None,
    on_event: Callable[[JobEvent], None] = lambda _: None,
) -> JobResult:
    """`run_job` for a program that does nothing else; SIGTERM and SIGINT let the ranks save and end."""

    async def body() -> JobResult:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return await run_job(
            job,
            work_dir=work_dir,
            collector_address=collector_address,
            gateway_address=gateway_address,
            token_file=token_file,
            certificates=certificates,
            storage=storage,
            on_event=on_event,
            stop=stop,
        )

    return asyncio.run(body())

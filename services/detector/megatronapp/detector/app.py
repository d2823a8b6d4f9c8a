"""The service: bus in, findings and metrics out. All judgement is in the engine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Collection, Sequence

from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry

from megatronapp.core.bus import Bus, Message, Topic, read_kept
from megatronapp.core.bus.base import READ_COUNT
from megatronapp.core.errors import DataError, UnavailableError
from megatronapp.core.findings import Finding
from megatronapp.core.findings_store import FindingsStore, MemoryBackend
from megatronapp.core.logging import get_logger
from megatronapp.core.quarantine import Quarantine
from megatronapp.core.trace.columns import Columns
from megatronapp.core.trace.senders import sender_of
from megatronapp.core.trace.validate import check_sent
from megatronapp.core.trace.values import Identity
from megatronapp.detector.backlog import Awaited, Backlog
from megatronapp.detector.containment import SUSPENDED_SECONDS, Suspensions
from megatronapp.detector.engine import Engine, Engines
from megatronapp.detector.exposition import Exposition
from megatronapp.detector.findings import refuted
from megatronapp.detector.outbox import FindingsOutbox
from megatronapp.detector.ownership import ROUND_SECONDS, Ownership
from megatronapp.detector.refutations import Refutations
from megatronapp.detector.settings import DetectorSettings
from megatronapp.detector.share import Share
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)

NS = 1e-9
RETRY_SECONDS = 0.5
TURN_SECONDS = 0.01
"""Messages are judged for so long before others have their turn."""
RELEASED_SECONDS = 5.0
"""How often records that a person has handed back are looked for."""
STUCK_SECONDS = 10.0
"""Not ready when nothing has gone on for so long."""


class Detector:
    """Judges every job whose steps are on the bus.

    What it has found is in the store (outbox.py). What else it knows it has learnt from the messages, so each start
    reads all that the bus still keeps, and tells only what is new (backlog.py). A record or an engine that fails
    concerns its own job alone (containment.py), in the backlog too.
    """

    def __init__(
        self,
        settings: DetectorSettings,
        bus: Bus,
        registry: CollectorRegistry,
        store: FindingsStore | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        """`store` None: one in memory, that ends with the detector. `ownership` None: all runs."""
        self._settings = settings
        self._bus = bus
        self._engines = Engines(settings.start_patience_seconds, self._told_before)
        replica = settings.replica or socket.gethostname()
        self._exposition = Exposition(registry, self._engines, settings.top_ranks, replica, self._is_shown)
        self._quarantine = Quarantine(settings.quarantine_dir, self._exposition.quarantined, self._exposition.series)
        self._suspensions = Suspensions()
        self._heard_at: dict[str, float] = {}
        """When each run was heard of last, of the monotonic clock."""
        self._share = Share(ownership or Ownership(), 2 * settings.keep_silent_seconds)
        self._reading = asyncio.Lock()
        """Held by who judges messages: those that come, or those that are kept of runs that were gained."""
        self._backlog: Backlog | None = None
        """While what was kept is read."""
        self._awaited = Awaited()
        self._caught_up = asyncio.Event()
        """All that was kept has been read."""
        self._started_unix_ns = 0
        self._read_id, self._arrived_unix_ns = "", 0
        """Of the newest message that was read: its id, and when it arrived."""
        store = store or FindingsStore(MemoryBackend(), settings.findings_limits, registry)
        self._outbox = FindingsOutbox(store, bus)
        self._refutations = Refutations(bus, self._outbox, self._refute)
        self._ticked = 0.0
        """When time was looked at last, of the monotonic clock."""
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to read. Nothing listens here but the health server."""
        self._ticked = time.monotonic()
        self.tasks = [
            asyncio.create_task(self._read(), name="steps"),
            asyncio.create_task(self._tick(), name="tick"),
            asyncio.create_task(self._take_released(), name="released"),
            asyncio.create_task(self._take_refutations(), name="refutations"),
            asyncio.create_task(self._outbox.expire_for_ever(), name="expire"),
        ]
        if self._share.of_many:
            self.tasks.append(asyncio.create_task(self._keep_share(), name="share"))

    async def stop(self) -> None:
        # More than once: asyncio.wait_for, in which redis-py writes, may lose a cancellation (Python 3.11, bpo-37658).
        while going := [task for task in self.tasks if not task.done()]:
            for task in going:
                task.cancel()
            await asyncio.wait(going, timeout=RETRY_SECONDS)
        self.tasks = []
        await self._outbox.send()
        await self._share.leave()

    def ready(self) -> bool:
        going = bool(self.tasks) and not any(task.done() for task in self.tasks)
        return going and time.monotonic() - self._ticked < STUCK_SECONDS

    async def _read(self) -> None:
        newest = "" if self._share.of_many else await self._begin()
        async for messages in self._bus.follow(Topic.STEPS):
            async with self._reading:
                await self._take_all(messages, newest)

    async def _take_all(self, messages: Sequence[Message], newest: str) -> None:
        """Judge those that are for this detector; newest: the last one of the backlog."""
        turn_until = 0.0
        of_many = self._share.of_many
        for message in messages:
            arrived_unix_ns = self._take(message.value) if not of_many or self._share.note(message.key) else 0
            self._read_id = message.id
            if arrived_unix_ns > self._arrived_unix_ns:
                self._arrived_unix_ns = arrived_unix_ns
            if self._backlog and (message.id == newest or arrived_unix_ns >= self._started_unix_ns):
                self._settle(self._backlog)
            if self._outbox.has_news:
                await self._outbox.send()
            # Many messages come at once, and time must be looked at between them.
            if time.monotonic() >= turn_until:
                await asyncio.sleep(0)
                turn_until = time.monotonic() + TURN_SECONDS
        if self._backlog and len(messages) < READ_COUNT:
            # All there is has been read, also where the newest was lost meanwhile and clocks were set back.
            self._settle(self._backlog)

    async def _take_refutations(self) -> None:
        if not self._share.of_many:
            await self._caught_up.wait()
        await self._refutations.follow()

    def _is_shown(self, run: str) -> bool:
        """Whether what is known of the run is of now."""
        return self._backlog is None or (self._share.of_many and run not in self._share.gained)

    async def _begin(self, runs: Collection[str] | None = None) -> str:
        """Learn what was published before, of these runs or of all, and ask who is there: of large jobs the bus does
        not keep the Hellos for long. Returns the id of the newest message that waits to be read, empty: none."""
        while True:
            try:
                newest, published = await self._bus.newest(Topic.STEPS), await self._outbox.found_before()
                await self._bus.publish(Topic.HELLO_REQUEST, "", b"")
            except UnavailableError as error:
                log.warning("bus_or_findings_unavailable", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._started_unix_ns = time.time_ns()
            self._engines.gates.learn(published)
            self._backlog = Backlog(finding for finding in published if runs is None or finding.run in runs)
            if not newest:
                self._settle(self._backlog)
            return newest

    async def _keep_share(self) -> None:
        """Judge this replica's share of the runs, as it grows and shrinks."""
        async with asyncio.TaskGroup() as tasks:
            catching_up = tasks.create_task(self._find_open())
            while True:
                for run in await self._share.renew():
                    self._drop(run)
                if self._share.gained and catching_up.done():
                    catching_up = tasks.create_task(self._catch_up(self._share.gained))
                await asyncio.sleep(ROUND_SECONDS)

    async def _find_open(self) -> None:
        """Runs of which something is open are somebody's, also where the bus holds nothing of them."""
        self._share.know(await self._outbox.open_runs())

    async def _catch_up(self, runs: frozenset[str]) -> None:
        """Read what the bus keeps of runs that were gained, as at a start; what comes meanwhile waits."""
        async with self._reading:
            await self._begin(runs)
            try:
                async for message in read_kept(self._bus, Topic.STEPS):
                    if message.key in runs and self._share.owns(message.key):
                        self._take(message.value)
            except UnavailableError as error:
                log.warning("past_not_read", error=str(error))
            if self._backlog:
                self._settle(self._backlog)
            self._share.catch_up(runs)
        with contextlib.suppress(UnavailableError):
            await self._refutations.read_again(runs)

    def _drop(self, run: str) -> None:
        """Another replica judges the run from now on: nothing is said of it any more."""
        engine = self._engines.drop(run)
        self._heard_at.pop(run, None)
        self._awaited.forget(run)
        self._outbox.forget(run)
        if engine is not None:
            self._exposition.forget(engine)

    def _take(self, value: bytes) -> int:
        """Judge one message; returns when it arrived, 0 if it can't be read."""
        try:
            message = trace_pb2.SentMessage.FromString(value)
            who = sender_of(message.sender)
            kind, columns = check_sent(who, message)
        except (DecodeError, DataError) as error:
            self._set_aside(value, error)
            return 0
        troubles = self._suspensions.troubles
        if not troubles or not self._suspensions.covers(who.run, who.job, who.attempt):
            self._judge(value, message, who, kind, columns)
        return message.received_unix_ns

    def _judge(
        self, value: bytes, message: trace_pb2.SentMessage, who: Identity, kind: str | None, columns: Columns
    ) -> None:
        """Judge a message that may be true. Whatever it makes fail is its own job's trouble."""
        run = who.run
        try:
            if news := self._engines.take(who, message, kind, columns):
                self._note(news)
            if run in self._awaited:
                self._take_over(run)
            if kind == "summary" and not self._backlog:
                self._exposition.observe(self._engines.running.get(run))
        except Exception as error:
            log.exception("message_not_judged", job=who.job, run=run, rank=who.rank)
            self._set_aside(value, error)
            self._failed(who.run, who.job, who.attempt)
            return
        age_seconds = max(0.0, (self._started_unix_ns - message.received_unix_ns) * NS) if self._backlog else 0.0
        self._heard_at[run] = time.monotonic() - age_seconds
        if self._suspensions.troubles and (over := self._suspensions.end(run)):
            self._exposition.resume(over.job)

    def _set_aside(self, value: bytes, error: Exception) -> None:
        """With what can be read of its sender."""
        message = trace_pb2.RankMessage()
        with contextlib.suppress(DecodeError):
            message.ParseFromString(value)
        who, reason = message.identity, f"{type(error).__name__}: {error}"
        self._quarantine.put(value, run=who.run, job=who.job, attempt=who.attempt, rank=who.rank, reason=reason)

    def _failed(self, run: str, job: str, attempt: int) -> None:
        """The run's engine has failed; after some such failures it is left out."""
        if self._suspensions.failed(run, job, attempt, time.monotonic()):
            log.error("job_suspended", job=job, run=run, attempt=attempt, seconds=SUSPENDED_SECONDS)
            self._exposition.suspend(job)
            self._end(run)

    def _settle(self, backlog: Backlog) -> None:
        """All that was kept has been read: from now on there is news."""
        self._backlog = None
        news = backlog.settle(self._engines.running, time.time_ns())
        waiting = [*self._awaited.all, *backlog.unheard_of]
        self._awaited = Awaited(waiting, time.monotonic() + self._settings.return_seconds)
        for engine in self._engines.running.values():
            self._know(engine, news)
        self._note(news)
        self._caught_up.set()

    def _told_before(self, run: str) -> list[Finding]:
        """What was open of a run when this process began, as far as that is not settled."""
        return (self._backlog or self._awaited).told_of(run)

    def _take_over(self, run: str) -> None:
        """Go on with what was open of a run that is heard of for the first time since the start."""
        engine = self._engines.running.get(run)
        if engine is not None:
            news = self._awaited.take_over(engine, time.time_ns())
            self._know(engine, news)
            self._note(news)

    def _know(self, engine: Engine, news: list[Finding]) -> None:
        """What is open and no news was counted before."""
        heard_of = {finding.id for finding in news}
        for finding in engine.ledger.open:
            if finding.id not in heard_of:
                self._exposition.know(finding)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._settings.tick_seconds)
            self._ticked = time.monotonic()
            if self._backlog:
                continue
            read_until_unix_ns = await self._read_until()
            for engine in list(self._engines.running.values()):
                if self._share.owns(engine.run):
                    self._let_time_pass(engine, read_until_unix_ns)
            await self._resume()
            self._note(self._awaited.give_up(time.monotonic(), time.time_ns()))
            await self._outbox.send()

    async def _read_until(self) -> int:
        """All that had arrived by then was read. What waits on the bus, since this service or Redis is slow, is not
        missing: a step must not be judged without it."""
        try:
            newest = await self._bus.newest(Topic.STEPS)
        except UnavailableError:
            return self._arrived_unix_ns
        return time.time_ns() if newest == self._read_id else self._arrived_unix_ns

    def _let_time_pass(self, engine: Engine, read_until_unix_ns: int) -> None:
        try:
            self._note(engine.tick(read_until_unix_ns))
            self._exposition.observe(engine)
            if self._is_over(engine):
                self._end(engine.run)
        except Exception:
            log.exception("steps_not_judged", job=engine.job, run=engine.run)
            self._failed(engine.run, engine.job, engine.attempt)

    async def _resume(self) -> None:
        """Judge again those that were left out for long enough; their Hellos have passed by meanwhile."""
        over = self._suspensions.expire(time.monotonic())
        for trouble in over:
            log.info("job_resumed", job=trouble.job)
            self._exposition.resume(trouble.job)
        if over:
            with contextlib.suppress(UnavailableError):
                await self._bus.publish(Topic.HELLO_REQUEST, "", b"")

    async def _take_released(self) -> None:
        """Take in, as if they came now, records that were set aside and that a person has handed back. Those of a run
        that is left out wait until it is judged again."""
        while True:
            await asyncio.sleep(RELEASED_SECONDS)
            if self._backlog:
                continue
            for released in await asyncio.to_thread(self._quarantine.take_released):
                who = released.entry
                if self._share.owns(who.run) and not self._suspensions.covers(who.run, who.job, who.attempt):
                    self._take(released.record)
                    released.done()

    def _refute(self, finding: Finding) -> None:
        """Accuse its devices of the like only where they are clearly worse, and resolve it where it is judged here."""
        self._engines.gates.of(finding.job).shut(finding)
        if not self._share.judges(finding.run):
            return
        engine, now = self._engines.running.get(finding.run), time.time_ns()
        over = engine.refute(finding, now) if engine is not None else refuted(finding, now, None)
        self._awaited.drop(finding)
        self._engines.gates.of(finding.job).shut(over)
        self._exposition.refute(over)
        self._note([over])

    def _note(self, findings: list[Finding]) -> None:
        if not findings:
            return
        findings = [finding for finding in findings if self._share.owns(finding.run)]
        if self._backlog:
            self._backlog.note(findings)
            return
        for finding in findings:
            self._exposition.note(finding)
            log.info(
                "finding",
                job=finding.job,
                state=str(finding.state),
                kind=str(finding.kind),
                cause=str(finding.cause),
                ranks=list(finding.ranks),
                page=finding.page,
                summary=finding.summary,
            )
            self._outbox.put(finding)

    def _is_over(self, engine: Engine) -> bool:
        """Whether nothing has been heard of the run for long enough."""
        settings, now = self._settings, time.monotonic()
        patience = settings.keep_ended_seconds if engine.ended else settings.keep_silent_seconds
        return now - self._heard_at.get(engine.run, now) > patience

    def _end(self, run: str) -> None:
        """Drop what is known of a run; its findings are resolved."""
        engine = self._engines.running.get(run)
        self._heard_at.pop(run, None)
        if engine is None:
            return
        try:
            self._note(self._engines.forget(run, time.time_ns()))
            self._exposition.forget(engine)
        except Exception:
            log.exception("job_not_closed", job=engine.job, run=run)

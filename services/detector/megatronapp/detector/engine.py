"""Engine: what one attempt's messages mean. Deterministic, no I/O, no clock of its own."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

from megatronapp.core.findings import Cause, Finding, Kind
from megatronapp.core.trace.columns import NO_COLUMNS, Columns
from megatronapp.core.trace.membership import Membership, Process
from megatronapp.core.trace.values import Identity
from megatronapp.detector import profiles
from megatronapp.detector.assemble import Assembler
from megatronapp.detector.attribution import OF_ONE_RANK
from megatronapp.detector.findings import Ledger, Moment, identified_as, key_of
from megatronapp.detector.gates import Gate, Gates
from megatronapp.detector.judge import SAVES, STEPS, Judge
from megatronapp.detector.patience import START_SECONDS
from megatronapp.detector.progress import Progress
from megatronapp.detector.rules import hang
from megatronapp.detector.rules.base import Suspicion
from megatronapp.detector.standstill import Standstill
from megatronapp.detector.steps import StepTable
from megatronapp.detector.whatif import cost_ratio
from megatronapp.v1 import trace_pb2

HANG = "hang"
"""A source of suspicions beside the judge's: that no more steps come."""
KEPT_ARRIVALS = 4096
LEARNING = {STEPS: 40, SAVES: 5}
"""Judged steps, and saves, after which an engine knows by itself whether a finding stands: three saves are learnt from,
and two slow ones are evidence."""
LEARNING_SECONDS = 180.0
"""The same of a hang."""
START_UP_STEPS = 5
"""GPU ranks choose kernels, allocate and connect in an attempt's first steps, and differ without a fault."""


class Engine:
    """One attempt of one run. Fed with its RankMessages in order of arrival, and with the time every now and then."""

    def __init__(
        self,
        run: str,
        job: str,
        attempt: int,
        start_patience_seconds: float = START_SECONDS,
        gate: Gate | None = None,
        inherited: Iterable[Finding] = (),
    ) -> None:
        """gate: what has been refuted in the job. inherited: what was open when the attempt before ended."""
        self.run, self.job, self.attempt = run, job, attempt
        self.membership = Membership(attempt)
        self.assembler = Assembler()
        self.judge = Judge(START_UP_STEPS)
        self.progress = Progress(start_patience_seconds)
        self.ledger = Ledger(run, job, attempt, gate, inherited)
        self.newest: StepTable | None = None
        self._judged: Counter[str] = Counter()
        """Steps of each source that told of it."""
        self._arrivals: deque[tuple[int, int]] = deque(maxlen=KEPT_ARRIVALS)

    def feed(self, message: trace_pb2.RankMessage) -> list[Finding]:
        """Take one message; returns the findings that are new or have changed."""
        return self.take(message.identity, as_sent(message), message.message.WhichOneof("body"))

    def take(
        self,
        sender: Identity | trace_pb2.Identity,
        message: trace_pb2.SentMessage,
        kind: str | None,
        columns: Columns = NO_COLUMNS,
    ) -> list[Finding]:
        """The same of a message whose sender and kind are known, and which must not change afterwards. columns: those
        of a summary, where they are known, too."""
        now, body = message.received_unix_ns, message.message
        process = self.membership.take(sender, body, kind, now, lost=message.lost)
        if process is None:
            return []
        changed: list[Finding] = []
        if process.lost_unix_ns and process.lost:
            self.progress.lose(process.rank)
            changed = self._hang(process, now)
        if kind == "heartbeat":
            return changed + self._beat(process, body, now)
        return changed + self._judge(self.assembler.feed(process, message, columns), now)

    def tick(self, unix_ns: int) -> list[Finding]:
        """Let time pass: steps that have waited long enough for a rank are judged without it."""
        return self._judge(self.assembler.expire(unix_ns), unix_ns)

    def close(self, unix_ns: int) -> list[Finding]:
        """The attempt is over: its findings are resolved."""
        return self.ledger.close(self._moment(unix_ns))

    @property
    def ended(self) -> bool:
        """All ranks that ever introduced themselves have said goodbye."""
        ranks = self.membership.ranks.values()
        return bool(ranks) and all(process.closed for process in ranks)

    def hand_over(self, unix_ns: int) -> tuple[list[Finding], list[Finding]]:
        """Another attempt begins: the findings that its engine inherits, and those that are resolved."""
        return self.ledger.hand_over(self._moment(unix_ns))

    def refute(self, finding: Finding, unix_ns: int) -> Finding:
        """A person says that a finding of this run is none; returns it resolved."""
        return self.ledger.refute(finding, self._moment(unix_ns))

    def stand_still(self, standstill: Standstill, step_seconds: Iterable[float]) -> list[Finding]:
        """Take what a record, which has no other heartbeats, tells of the attempt's end."""
        changed = [finding for message in standstill.heartbeats for finding in self.feed(message)]
        self.progress.stood_still(standstill.seconds, step_seconds)
        last = standstill.heartbeats[-1]
        process = self.membership.ranks.get(last.identity.rank)
        return changed + (self._hang(process, last.received_unix_ns) if process else [])

    def take_over(self, finding: Finding, unix_ns: int) -> bool:
        """Go on with a finding of this attempt that was told before this engine began. False when it has judged enough
        steps to know that the finding is over."""
        if finding.kind is Kind.HANG:
            self.ledger.adopt(HANG, finding, 0, unix_ns + int(LEARNING_SECONDS * 1e9))
            return True
        known = any(key_of(finding) == key_of(own) for own in self.ledger.open)
        source = SAVES if finding.cause is Cause.CHECKPOINT else STEPS
        left = LEARNING[source] - self._judged[source]
        if not known and left <= 0:
            return False
        self.ledger.adopt(source, finding, left, 0)
        return True

    def _judge(self, tables: list[StepTable], unix_ns: int) -> list[Finding]:
        changed: list[Finding] = []
        for table in tables:
            if self.newest is None:
                changed += self._inherit(table, unix_ns)
            elif table.step <= self.newest.step:
                self._begin_again(unix_ns)
            self._arrivals.append((table.step, table.received_unix_ns or unix_ns))
            self.newest = table
            self.progress.operation_times.note(table)
            for source, suspicions in self.judge.observe(table, self.progress.telemetry).items():
                self._judged[source] += 1
                changed += self.ledger.update(source, suspicions, table.ranks, self._cost, self._moment(unix_ns))
        return changed

    def _inherit(self, first: StepTable, unix_ns: int) -> list[Finding]:
        """Go on with what was open before the attempt, where its devices take part."""
        goes_on, ended = self.ledger.inherit(first.ranks, self._moment(unix_ns))
        for finding in goes_on:
            self.take_over(finding, unix_ns)
            self.judge.resume(finding)
        return goes_on + ended

    def _begin_again(self, unix_ns: int) -> None:
        """The job has gone back to an earlier step: what is usual is learnt anew, and what is open goes on, as in a new
        attempt."""
        self.judge = Judge()
        self._judged.clear()
        self._arrivals.clear()
        for finding in self.ledger.open:
            if finding.kind is not Kind.HANG:
                self.ledger.drop(finding)
                self.take_over(finding, unix_ns)
                self.judge.resume(finding)

    def _beat(self, process: Process, message: trace_pb2.SentTraceMessage, unix_ns: int) -> list[Finding]:
        member = self.assembler.members.get(process.rank)
        if member is None or member.process is not process:
            return []
        heartbeat = message.heartbeat
        if communicators := heartbeat.communicators:
            member.name(communicators)
        if message.seq < process.heartbeat_seq:
            return []
        self.progress.beat(member, heartbeat, unix_ns)
        return self._hang(process, unix_ns)

    def _hang(self, process: Process, unix_ns: int) -> list[Finding]:
        """Look at how things stand, after what was heard of a rank's process."""
        stall = self.progress.stall()
        if stall is None and not self.ledger.holds(HANG):
            return []
        link_is_known = profiles.of_device(process.device).link_is_known
        suspicions, ranks = list(hang.detect(stall, link_is_known=link_is_known)), self.assembler.ranks
        return self.ledger.update(HANG, suspicions, ranks, lambda s: s.cost_ratio, self._moment(unix_ns))

    def _cost(self, suspicion: Suspicion) -> float:
        """What the slowness costs the job, replayed on the newest judged step."""
        if not suspicion.slow or self.judge.view is None:
            return suspicion.cost_ratio
        return cost_ratio(self.judge.view.table, suspicion.slow)

    def _moment(self, unix_ns: int) -> Moment:
        step = self.newest.step if self.newest else 0
        return Moment(step, unix_ns, lambda wanted: self._arrived(wanted, unix_ns))

    def _arrived(self, step: int, fallback: int) -> int:
        return next((at for s, at in self._arrivals if s >= step), fallback)


class Engines:
    """All attempts that are heard of: one engine a run, of its newest attempt."""

    def __init__(
        self,
        start_patience_seconds: float = START_SECONDS,
        told_before: Callable[[str], Iterable[Finding]] = lambda _run: (),
    ) -> None:
        """told_before: of a run, what was open when this process began."""
        self.gates = Gates()
        self._engines: dict[str, Engine] = {}
        self._start_patience_seconds = start_patience_seconds
        self._told_before = told_before

    @property
    def running(self) -> Mapping[str, Engine]:
        """By run."""
        return self._engines

    def feed(self, message: trace_pb2.RankMessage) -> list[Finding]:
        """Take one message of any job. A newer attempt ends the one before, and inherits what is open on its devices;
        messages of older ones are dropped, and so are those of another job: a run belongs to the first that is heard
        of it."""
        return self.take(message.identity, as_sent(message), message.message.WhichOneof("body"))

    def take(
        self,
        who: Identity | trace_pb2.Identity,
        message: trace_pb2.SentMessage,
        kind: str | None,
        columns: Columns = NO_COLUMNS,
    ) -> list[Finding]:
        """The same of a message of which as much is known as Engine.take asks for."""
        engine = self._engines.get(who.run)
        if engine is not None and who.attempt == engine.attempt and who.job == engine.job:
            return engine.take(who, message, kind, columns)
        if engine is not None and (who.attempt < engine.attempt or who.job != engine.job):
            return []
        changed: list[Finding] = []
        inherited: list[Finding] = []
        if engine is not None:
            inherited, changed = engine.hand_over(message.received_unix_ns)
        inherited = _as_told(inherited, self._told_before(who.run), who.attempt)
        gate = self.gates.of(who.job)
        engine = Engine(who.run, who.job, who.attempt, self._start_patience_seconds, gate, inherited)
        self._engines[who.run] = engine
        return changed + engine.take(who, message, kind, columns)

    def drop(self, run: str) -> Engine | None:
        """Forget a run that goes on elsewhere; returns its engine."""
        engine = self._engines.pop(run, None)
        if engine is not None and all(other.job != engine.job for other in self._engines.values()):
            self.gates.forget(engine.job)
        return engine

    def forget(self, run: str, unix_ns: int) -> list[Finding]:
        """Drop what is known of a run that has ended; returns what was open, resolved."""
        engine = self.drop(run)
        return engine.close(unix_ns) if engine else []


def as_sent(message: trace_pb2.RankMessage) -> trace_pb2.SentMessage:
    """The same, with the parts that are seldom looked at as bytes."""
    return trace_pb2.SentMessage.FromString(message.SerializeToString())


def _as_told(inherited: Iterable[Finding], told_before: Iterable[Finding], attempt: int) -> list[Finding]:
    """What an attempt inherits, each under the id by which it was told, and what was told of earlier attempts alone."""
    earlier = {finding.devices: finding for finding in told_before if _outlives(finding, attempt)}
    found = [identified_as(own, earlier.pop(own.devices, own)) for own in inherited]
    return found + list(earlier.values())


def _outlives(finding: Finding, attempt: int) -> bool:
    """Whether a finding of an earlier attempt may go on in this one."""
    return finding.kind in OF_ONE_RANK and bool(finding.devices) and finding.opened_attempt < attempt

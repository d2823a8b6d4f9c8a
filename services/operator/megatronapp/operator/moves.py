"""What to do next with a job's attempts: one small question after the other, the first with an answer wins. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from megatronapp.core.trainingjob import Phase, Reason
from megatronapp.core.trainingjob.status import ExcludedNode
from megatronapp.operator import remediate
from megatronapp.operator.outcome import Ending, Outcome, outcome
from megatronapp.operator.render.job import digest, job_spec
from megatronapp.operator.seen import Seen

UNSCHEDULABLE_SECONDS = 60
"""A job that finds no place for so long gives up an exclusion, or some of its nodes if it is elastic."""


@dataclass(frozen=True)
class Keep:
    """All is as it should be, or on its way there."""


@dataclass(frozen=True)
class Create:
    """Make the attempt's Job."""


@dataclass(frozen=True)
class Start:
    """Let the attempt, made suspended, begin."""


@dataclass(frozen=True)
class Stop:
    """Let the attempt save and end."""

    reason: Reason
    message: str
    excluded: tuple[ExcludedNode, ...] | None = None
    nodes: int | None = None
    leave: str = ""
    """The node that it leaves."""


@dataclass(frozen=True)
class Next:
    """Begin another attempt."""

    reason: Reason
    message: str
    counts: bool
    """As a restart, of which the failure policy allows so many."""
    nodes: int


@dataclass(frozen=True)
class Finish:
    phase: Phase
    reason: Reason
    message: str


@dataclass(frozen=True)
class Trip:
    """The circuit breaker holds a move back."""

    message: str


Move = Keep | Create | Start | Stop | Next | Finish | Trip


def choose(seen: Seen) -> Move:
    questions = (_deadline, _ended, _suspended, _missing, _held, _lost, _resized, _leave, _blamed, _no_place)
    return next((move for question in questions if (move := question(seen)) is not None), Keep())


def _deadline(seen: Seen) -> Move | None:
    limit, running = seen.spec.active_deadline_seconds, seen.since(seen.status.start_time)
    if limit is None or running is None or running < timedelta(seconds=limit):
        return None
    return Finish(Phase.FAILED, Reason.DEADLINE_EXCEEDED, f"the job was active for more than {limit} s")


def _ended(seen: Seen) -> Move | None:
    end = outcome(seen)
    if end is None:
        return None
    if end.ending is Ending.SUCCEEDED:
        return Finish(Phase.SUCCEEDED, end.reason, end.message)
    if end.ending is Ending.FAILED and (last := _last(seen, end)):
        return last
    return Keep() if seen.spec.suspend else _after(seen, end)


def _last(seen: Seen, end: Outcome) -> Finish | None:
    """The failure after which there is no other attempt."""
    limit = seen.spec.failure_policy.max_restarts
    if not end.retriable:
        return Finish(Phase.FAILED, Reason.NON_RETRIABLE_EXIT_CODE, f"{end.message}, which is not retried")
    if seen.status.restarts >= limit:
        return Finish(Phase.FAILED, Reason.RESTARTS_EXHAUSTED, f"{end.message}, after {limit} restarts")
    return None


def _after(seen: Seen, end: Outcome) -> Next:
    """A failure gives the job all its nodes again; a stop for want of place keeps to what there was place for."""
    counts = end.ending is Ending.FAILED
    reason = Reason.RESUMED if end.reason is Reason.SUSPENDED_BY_USER else end.reason
    nodes = seen.spec.nodes if counts else seen.wanted_nodes
    return Next(reason, end.message, counts, nodes)


def _suspended(seen: Seen) -> Move | None:
    if not seen.spec.suspend:
        return None
    job = seen.current
    if job is None:
        return Keep() if seen.spec.scheduling.queue else Create()
    if job.stopped or (job.suspended and not seen.live):
        return Keep()
    return Stop(Reason.SUSPENDED_BY_USER, "the job was suspended")


def _missing(seen: Seen) -> Move | None:
    return Create() if seen.current is None else None


def _held(seen: Seen) -> Move | None:
    """An attempt that is being stopped is waited for; one that was made suspended starts, if it is up to date. A queue
    knows only of attempts that were made for it."""
    job, queue = seen.current, seen.spec.scheduling.queue
    if job is None or job.stopped or job.failing:
        return Keep()
    if not job.suspended or (queue and not job.held):
        return None
    fits = not queue and is_current(seen)
    return Start() if fits else Next(Reason.RESUMED, "the spec was changed", False, seen.wanted_nodes)


def _lost(seen: Seen) -> Move | None:
    if not seen.stuck:
        return None
    pod = seen.stuck[0]
    return Stop(Reason.NODE_LOST, f"{pod.name} is stuck on node {pod.node}, which does not answer")


def _resized(seen: Seen) -> Move | None:
    job = seen.current
    if job is None or job.nodes == seen.wanted_nodes or seen.spec.elastic is None:
        return None
    return Stop(Reason.RESIZED, f"from {job.nodes} to {seen.wanted_nodes} nodes", nodes=seen.wanted_nodes)


def _leave(seen: Seen) -> Move | None:
    """The decision to leave a node stands in the status; it is carried out as long as the attempt is there."""
    nodes = remediate.on_excluded(seen)
    return Stop(Reason.REMEDIATION, f"leaving node {nodes[0]}", leave=nodes[0]) if nodes else None


def _blamed(seen: Seen) -> Move | None:
    found = remediate.verdict(seen)
    if found is None:
        return None
    if not seen.breaker.allows(found.node):
        return Trip(f"not moved away from node {found.node}: the circuit breaker is open")
    excluded = remediate.excluded_with(seen, found.node)
    return Stop(Reason.REMEDIATION, f"leaving {found.text}", excluded=excluded, leave=found.node)


def _no_place(seen: Seen) -> Move | None:
    """Unscheduled for long: without an exclusion, with fewer nodes, or with what the user has changed since."""
    if not seen.waiting:
        return None
    if not is_current(seen):
        return Stop(Reason.UNSCHEDULABLE, "made anew, as what it was made from has changed")
    since = [pod.pending_since for pod in seen.waiting if pod.pending_since]
    if not since or seen.now < min(since) + timedelta(seconds=UNSCHEDULABLE_SECONDS):
        return None
    if seen.excluded:
        text = f"no place for {len(seen.waiting)} pods: the node excluded first is released"
        return Stop(Reason.UNSCHEDULABLE, text, excluded=remediate.oldest_released(seen))
    return _shrink(seen)


def _shrink(seen: Seen) -> Move | None:
    elastic, placed = seen.spec.elastic, len(seen.ranks) - len(seen.waiting)
    if elastic is None or placed < elastic.min_nodes:
        return None
    return Stop(Reason.RESIZED, f"there is place for {placed} of {seen.wanted_nodes} nodes", nodes=placed)


def is_current(seen: Seen) -> bool:
    """Whether the attempt's Job is what would be made of the job now."""
    job = seen.current
    plan = seen.plan(seen.attempt, seen.wanted_nodes, seen.excluded)
    return job is not None and job.digest == digest(job_spec(plan))

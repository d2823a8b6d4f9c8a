"""What to do next with a job's attempts: one small question after the other, the first with an answer wins. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from megatronapp.core.trainingjob import Phase, Reason
from megatronapp.core.trainingjob.status import ExcludedNode
from megatronapp.operator import backoff, remediate, startup
from megatronapp.operator.observation import Observation
from megatronapp.operator.outcome import Ending, Outcome, outcome
from megatronapp.operator.render.job import digest
from megatronapp.operator.snapshots import format_time

UNSCHEDULABLE_SECONDS = 60
"""A job that finds no place for so long gives up an exclusion, or some of its nodes if it is elastic."""


@dataclass(frozen=True)
class NoOp:
    """All is as it should be, or on its way there."""


@dataclass(frozen=True)
class EnsureJob:
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
class Wait:
    """Before the next attempt, as the last one failed."""

    reason: Reason
    message: str
    until: datetime


@dataclass(frozen=True)
class Finish:
    phase: Phase
    reason: Reason
    message: str


@dataclass(frozen=True)
class Trip:
    """The circuit breaker holds a move back."""

    message: str


Move = NoOp | EnsureJob | Start | Stop | Next | Wait | Finish | Trip


def choose(observation: Observation) -> Move:
    changes = (_resized, _leave, _blamed, _no_place)
    questions = (_deadline, _ended, _suspended, _missing, _held, _lost, _interrupted, _not_started, *changes)
    return next((move for question in questions if (move := question(observation)) is not None), NoOp())


def _deadline(observation: Observation) -> Move | None:
    limit, running = observation.spec.active_deadline_seconds, observation.since(observation.status.start_time)
    if limit is None or running is None or running < timedelta(seconds=limit):
        return None
    return Finish(Phase.FAILED, Reason.DEADLINE_EXCEEDED, f"the job was active for more than {limit} s")


def _ended(observation: Observation) -> Move | None:
    end = outcome(observation)
    if end is None:
        return None
    if end.ending is Ending.SUCCEEDED:
        return Finish(Phase.SUCCEEDED, end.reason, end.message)
    if end.ending is Ending.FAILED and (last := _last(observation, end)):
        return last
    return NoOp() if observation.spec.suspend else _after(observation, end)


def _last(observation: Observation, end: Outcome) -> Finish | None:
    """The failure after which there is no other attempt."""
    limit = observation.spec.failure_policy.max_restarts
    if not end.retriable:
        return Finish(Phase.FAILED, end.reason, f"{end.message}, which is not retried")
    if observation.status.restarts >= limit:
        return Finish(Phase.FAILED, Reason.RESTARTS_EXHAUSTED, f"{end.message}, after {limit} restarts")
    return None


def _after(observation: Observation, end: Outcome) -> Next | Wait:
    """A failure gives the job all its nodes again; a stop for want of place keeps to what there was place for."""
    counts = end.ending is Ending.FAILED
    until = backoff.starts_at(observation) if counts else None
    if until is not None and observation.now < until:
        text = f"{end.message}; attempt {observation.attempt + 1} starts at {format_time(until)}"
        return Wait(end.reason, text, until)
    reason = Reason.RESUMED if end.reason is Reason.SUSPENDED_BY_USER else end.reason
    nodes = observation.spec.nodes if counts else observation.wanted_nodes
    return Next(reason, end.message, counts, nodes)


def _suspended(observation: Observation) -> Move | None:
    if not observation.spec.suspend:
        return None
    job = observation.current
    if job is None:
        return NoOp() if observation.spec.scheduling.queue else EnsureJob()
    if job.stopped or (job.suspended and not observation.live):
        return NoOp()
    return Stop(Reason.SUSPENDED_BY_USER, "the job was suspended")


def _missing(observation: Observation) -> Move | None:
    return EnsureJob() if observation.current is None else None


def _held(observation: Observation) -> Move | None:
    """An attempt that is being stopped is waited for; one that was made suspended starts, if it is up to date. A queue
    knows only of attempts that were made for it."""
    job, queue = observation.current, observation.spec.scheduling.queue
    if job is None or job.stopped or job.failing:
        return NoOp()
    if not job.suspended or (queue and not job.held):
        return None
    fits = not queue and is_current(observation)
    return Start() if fits else Next(Reason.RESUMED, "the spec was changed", False, observation.wanted_nodes)


def _lost(observation: Observation) -> Move | None:
    if not observation.stuck:
        return None
    pod = observation.stuck[0]
    return Stop(Reason.NODE_LOST, f"{pod.name} is stuck on node {pod.node}, which does not answer")


def _interrupted(observation: Observation) -> Move | None:
    """A pod that was deleted and ended with 0 counts as completed with Kubernetes: nobody would replace it."""
    pod = next((pod for pod in observation.ranks if pod.interrupted), None)
    return Stop(Reason.PREEMPTED, f"{pod.name} was deleted before its end") if pod else None


def _not_started(observation: Observation) -> Move | None:
    found, until = startup.hindrance(observation), startup.gives_up_at(observation)
    if found is None or until is None or observation.now < until:
        return None
    limit = observation.spec.failure_policy.startup_timeout_seconds
    return Finish(Phase.FAILED, Reason.STARTUP_TIMEOUT, f"not started for {limit} s: {found.reason}: {found.message}")


def _resized(observation: Observation) -> Move | None:
    job = observation.current
    if job is None or job.nodes == observation.wanted_nodes or observation.spec.elastic is None:
        return None
    return Stop(Reason.RESIZED, f"from {job.nodes} to {observation.wanted_nodes} nodes", nodes=observation.wanted_nodes)


def _leave(observation: Observation) -> Move | None:
    """The decision to leave a node stands in the status; it is carried out as long as the attempt is there."""
    nodes = remediate.on_excluded(observation)
    return Stop(Reason.REMEDIATION, f"leaving node {nodes[0]}", leave=nodes[0]) if nodes else None


def _blamed(observation: Observation) -> Move | None:
    found = remediate.verdict(observation)
    if found is None:
        return None
    if not observation.breaker.allows(found.node):
        return Trip(f"not moved away from node {found.node}: the circuit breaker is open")
    excluded = remediate.excluded_with(observation, found.node)
    return Stop(Reason.REMEDIATION, f"leaving {found.text}", excluded=excluded, leave=found.node)


def _no_place(observation: Observation) -> Move | None:
    """Unscheduled for long: without an exclusion, with fewer nodes, or with what the user has changed since."""
    if not observation.waiting:
        return None
    if not is_current(observation):
        return Stop(Reason.UNSCHEDULABLE, "made anew, as what it was made from has changed")
    since = [pod.pending_since for pod in observation.waiting if pod.pending_since]
    if not since or observation.now < min(since) + timedelta(seconds=UNSCHEDULABLE_SECONDS):
        return None
    if observation.excluded:
        text = f"no place for {len(observation.waiting)} pods: the node excluded first is released"
        return Stop(Reason.UNSCHEDULABLE, text, excluded=remediate.oldest_released(observation))
    return _shrink(observation)


def _shrink(observation: Observation) -> Move | None:
    elastic, placed = observation.spec.elastic, len(observation.ranks) - len(observation.waiting)
    if elastic is None or placed < elastic.min_nodes:
        return None
    return Stop(Reason.RESIZED, f"there is place for {placed} of {observation.wanted_nodes} nodes", nodes=placed)


def is_current(observation: Observation) -> bool:
    """Whether the attempt's Job is what would be made of the job now."""
    job = observation.current
    plan = observation.plan(observation.attempt, observation.wanted_nodes, observation.excluded)
    return job is not None and job.digest == digest(plan)

"""observe → **decide** → act: what a job's status should say, what must be done, and when to look again. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from megatronapp.core.trainingjob import Condition, ConditionType, Phase, Status
from megatronapp.core.trainingjob.status import BackendStatus, ExcludedNode, NodesStatus
from megatronapp.operator import attempt, backoff, moves, names, remediate, startup
from megatronapp.operator.actions import Action, Create, Delete, MarkNode, RecordEvent, StartJob, StopJob, TripBreaker
from megatronapp.operator.conditions import conditions_of, phase_of
from megatronapp.operator.moves import UNSCHEDULABLE_SECONDS, Finish, Move, Next, Start, Stop, Trip, Wait
from megatronapp.operator.nodes import mark_for
from megatronapp.operator.observation import Observation
from megatronapp.operator.progress import findings_of, progress_due, progress_of
from megatronapp.operator.render import Plan, render_job, render_network_policy, render_service
from megatronapp.operator.render.gang import pod_group
from megatronapp.operator.render.jobset import render_jobset
from megatronapp.operator.snapshots import ChildJob, format_time, parse_time

ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED})
WARNINGS = frozenset(
    {ConditionType.FAILED, ConditionType.RESTARTING, ConditionType.DEGRADED, ConditionType.INVALID_TEMPLATE}
)


@dataclass(frozen=True)
class Decision:
    """The status is written first, then the actions are done in order: a crash between leaves the wish on record."""

    status: Status
    actions: tuple[Action, ...] = ()
    again_seconds: float | None = field(default=None)
    """When to look again though nothing happens; None: then there is no need to."""


def decide(observation: Observation) -> Decision:
    if observation.status.phase in ENDED:
        return _decide_ended(observation)
    move = moves.choose(observation)
    status = _status(observation, move)
    actions = (*_actions(observation, move), *_events(observation.status, status))
    return Decision(status, actions, _again(observation, status))


# ---- the status


def _status(observation: Observation, move: Move) -> Status:
    before, phase = observation.status, phase_of(observation, move)
    attempt = observation.attempt + isinstance(move, Next)
    nodes = _nodes(observation, move)
    ready = sum(pod.ready and not pod.delete_requested for pod in observation.ranks)
    ended = isinstance(move, Finish)
    return before.model_copy(
        update={
            "observed_generation": observation.job.metadata.generation,
            "phase": phase,
            "conditions": conditions_of(observation, move, phase),
            "attempt": attempt,
            "restarts": before.restarts + (isinstance(move, Next) and move.counts),
            "backend": BackendStatus(
                kind=observation.spec.backend, name=names.child(observation.job.metadata.name, attempt)
            ),
            "nodes": NodesStatus(
                desired=nodes, ready=0 if ended else ready, summary=f"{0 if ended else ready}/{nodes}"
            ),
            "progress": progress_of(observation),
            "findings": None if isinstance(move, Next) else findings_of(observation),
            "excluded_nodes": list(_excluded(observation, move)),
            "start_time": _start_time(observation, phase),
            "completion_time": format_time(observation.now) if ended else None,
            "consecutive_failures": backoff.failures(observation) + (isinstance(move, Next) and move.counts),
            "next_attempt_time": format_time(move.until) if isinstance(move, Wait) else None,
            "startup_failing_since": _startup_failing_since(observation, ended),
        }
    )


def _nodes(observation: Observation, move: Move) -> int:
    if isinstance(move, Next):
        return move.nodes
    if isinstance(move, Stop) and move.nodes is not None:
        return move.nodes
    return observation.wanted_nodes


def _excluded(observation: Observation, move: Move) -> tuple[ExcludedNode, ...]:
    return move.excluded if isinstance(move, Stop) and move.excluded is not None else remediate.kept(observation)


def _startup_failing_since(observation: Observation, ended: bool) -> str | None:
    since = None if ended else startup.failing_since(observation)
    return format_time(since) if since else None


def _start_time(observation: Observation, phase: Phase) -> str | None:
    """When the job became active; a suspended one is not, and its deadline does not come nearer."""
    if phase is Phase.SUSPENDED:
        return None
    return observation.status.start_time or (format_time(observation.now) if phase is not Phase.PENDING else None)


# ---- the actions


def _actions(observation: Observation, move: Move) -> tuple[Action, ...]:
    if isinstance(move, Next):
        return _create(observation, observation.plan(observation.attempt + 1, move.nodes, observation.excluded))
    if isinstance(move, moves.EnsureJob):
        return _create(observation, _plan(observation))
    if isinstance(move, Start):
        return _start(observation)
    if isinstance(move, Stop):
        return (*_mark(observation, move), *(StopJob(part.name, move.reason) for part in observation.parts))
    if isinstance(move, Finish):
        return _clear(observation, move)
    if isinstance(move, Trip) and not observation.breaker.tripped:
        return (TripBreaker(move.message), *_catch_up(observation))
    return _catch_up(observation)


def _plan(observation: Observation) -> Plan:
    return observation.plan(observation.attempt, observation.wanted_nodes, observation.excluded)


def _create(observation: Observation, plan: Plan) -> tuple[Action, ...]:
    if observation.refusal is not None:
        return ()
    # What only pods need waits for them.
    network = () if observation.spec.suspend else _network(observation)
    group = pod_group(plan)
    jobset = observation.spec.backend == "JobSet"
    ranks = [render_jobset(plan)] if jobset else [render_job(part) for part in plan.parts]
    return (*network, *(Create(body) for body in (*([group] if group else []), *ranks)))


def _start(observation: Observation) -> tuple[Action, ...]:
    """Of the attempt made suspended, also what is not there yet."""
    if observation.refusal is not None:
        return ()
    start = (StartJob(part.name) for part in observation.parts)
    return (*_network(observation), *_missing(observation), *start)


def _catch_up(observation: Observation) -> tuple[Action, ...]:
    """What has happened to one of an attempt's Jobs, and not yet to the other."""
    stop = (StopJob(part.name, reason) for part, reason in attempt.to_stop(observation.parts))
    start = (StartJob(part.name) for part in attempt.to_start(observation.parts))
    return (*stop, *_missing(observation), *start)


def _missing(observation: Observation) -> tuple[Create, ...]:
    """The Jobs that an attempt still lacks; none of one that was made of another spec, which goes as a whole."""
    there = {part.role for part in observation.parts}
    wanted = {part.role: part for part in _plan(observation).parts}
    gone = any(part.ending and not part.complete for part in observation.parts)
    if gone or observation.refusal is not None or not there or not there <= wanted.keys():
        return ()
    return tuple(Create(render_job(part)) for role, part in wanted.items() if role not in there)


def _network(observation: Observation) -> tuple[Create, ...]:
    """Before any pod is let run: none is ever there without its policy."""
    # The policy is not watched: every attempt makes sure of it.
    policy = [render_network_policy(observation.job)] if observation.platform.network_policy else []
    service = [] if observation.service else [render_service(observation.job)]
    return tuple(Create(body) for body in (*policy, *service))


def _mark(observation: Observation, move: Stop) -> tuple[Action, ...]:
    node = observation.nodes.get(move.leave)
    if not move.leave or remediate.mode_of(observation) != "Taint" or node is None:
        return ()
    excluded = move.excluded if move.excluded is not None else tuple(observation.status.excluded_nodes)
    entry = next(entry for entry in excluded if entry.name == move.leave)
    since, until = parse_time(entry.since) or observation.now, parse_time(entry.until) or observation.now
    mark = mark_for(node, since, until, f"{observation.job.metadata.namespace}/{observation.job.metadata.name}")
    return (MarkNode(node.name, mark, move.message),) if mark else ()


def _clear(observation: Observation, move: Finish) -> tuple[Action, ...]:
    """What an ended job no longer needs: its pods, and after success the attempts before the last."""
    there = (part for part in observation.parts if not (part.stopped or part.complete or part.failed))
    stop = (StopJob(part.name, move.reason) for part in there)
    old = observation.children if move.phase is Phase.SUCCEEDED else ()
    return (*stop, *(_delete(observation, child) for child in old if child.attempt < observation.attempt))


def _delete(observation: Observation, child: ChildJob) -> Delete:
    name = names.child(observation.job.metadata.name, child.attempt, child.role)
    return Delete(observation.spec.backend, name)


def _delete_network(observation: Observation) -> tuple[Delete, ...]:
    """The Service last: as long as it is there, something may be left to delete."""
    if not observation.service:
        return ()
    kinds = ("NetworkPolicy", "Service") if observation.platform.network_policy else ("Service",)
    return tuple(Delete(kind, names.service(observation.job.metadata.name)) for kind in kinds)


def _decide_ended(observation: Observation) -> Decision:
    """Only what was left undone, and the end of the job's time to live."""
    status = observation.status.model_copy(update={"observed_generation": observation.job.metadata.generation})
    ttl, ended = observation.spec.ttl_seconds_after_finished, parse_time(observation.status.completion_time)
    condition = next(c for c in status.conditions if c.type in {ConditionType.COMPLETE, ConditionType.FAILED})
    actions = _clear(observation, Finish(status.phase, condition.reason, condition.message))
    if ttl is None or ended is None:
        return Decision(status, actions)
    left = (ended + timedelta(seconds=ttl) - observation.now).total_seconds()
    if left > 0:
        return Decision(status, actions, left)
    children = [_delete(observation, child) for child in observation.children]
    return Decision(status, (*children, *_delete_network(observation)))


def _events(before: Status, after: Status) -> tuple[RecordEvent, ...]:
    """An event for each condition that has become true, or is true for another reason; for each restart, also where
    one follows the other for the same reason; and for what keeps pods from starting. That a job is suspended which was
    made so is no news."""
    old = {condition.type: (condition.status, condition.reason) for condition in before.conditions}
    return tuple(
        RecordEvent(
            condition.type in WARNINGS or condition.reason in startup.REASONS, condition.reason, condition.message
        )
        for condition in after.conditions
        if (condition.status == "True" or condition.reason in startup.REASONS)
        and (old.get(condition.type) != (condition.status, condition.reason) or _is_restart(condition, before, after))
        and (before.attempt or condition.type is not ConditionType.SUSPENDED)
    )


def _is_restart(condition: Condition, before: Status, after: Status) -> bool:
    """Told when it is decided: before the wait, where there is one."""
    waits = after.next_attempt_time is not None and before.next_attempt_time is None
    at_once = after.restarts > before.restarts and before.next_attempt_time is None
    return condition.type is ConditionType.RESTARTING and (waits or at_once)


# ---- when to look again


def _again(observation: Observation, status: Status) -> float | None:
    moments = [
        *_deadline(observation, status),
        *(pod.delete_requested + _patience(observation) for pod in observation.live if pod.delete_requested),
        *(
            pod.pending_since + timedelta(seconds=UNSCHEDULABLE_SECONDS)
            for pod in observation.waiting
            if pod.pending_since
        ),
        *([observation.refusal.until] if observation.refusal else []),
        *(moment for entry in observation.excluded if (moment := parse_time(entry.until))),
        *([remediate.cooled_at(observation)] if remediate.cooling(observation) else []),
        *([moment] if (moment := parse_time(status.next_attempt_time)) else []),
        *([moment] if (moment := startup.next_look(observation)) else []),
        *([moment] if (moment := startup.gives_up_at(observation)) else []),
    ]
    # What is past has been looked at just now: only an event can make a difference to it.
    waits = [(moment - observation.now).total_seconds() for moment in moments if moment > observation.now]
    held_back = progress_due(observation, status.progress)
    return min([*waits, *([held_back] if held_back else [])], default=None)


def _deadline(observation: Observation, status: Status) -> list[datetime]:
    started, limit = parse_time(status.start_time), observation.spec.active_deadline_seconds
    return [started + timedelta(seconds=limit)] if started and limit is not None else []


def _patience(observation: Observation) -> timedelta:
    return timedelta(seconds=observation.spec.failure_policy.stuck_termination_seconds)

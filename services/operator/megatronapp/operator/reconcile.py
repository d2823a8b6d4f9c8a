"""observe → **decide** → act: what a job's status should say, what must be done, and when to look again. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from megatronapp.core.trainingjob import ConditionType, Phase, Status
from megatronapp.core.trainingjob.status import BackendStatus, ExcludedNode, NodesStatus
from megatronapp.operator import moves, names, remediate
from megatronapp.operator.actions import Action, Create, Delete, MarkNode, StartJob, StopJob, Tell, TripBreaker
from megatronapp.operator.conditions import conditions_of, phase_of
from megatronapp.operator.moves import UNSCHEDULABLE_SECONDS, Finish, Move, Next, Start, Stop, Trip
from megatronapp.operator.nodes import mark_for
from megatronapp.operator.observed import format_time, parse_time
from megatronapp.operator.progress import findings_of, progress_due, progress_of
from megatronapp.operator.render import Plan, render_job, render_network_policy, render_service
from megatronapp.operator.render.gang import pod_group
from megatronapp.operator.render.jobset import render_jobset
from megatronapp.operator.seen import Seen

ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED})


@dataclass(frozen=True)
class Decision:
    """The status is written first, then the actions are done in order: a crash between leaves the wish on record."""

    status: Status
    actions: tuple[Action, ...] = ()
    again_seconds: float | None = field(default=None)
    """When to look again though nothing happens; None: then there is no need to."""


def decide(seen: Seen) -> Decision:
    if seen.status.phase in ENDED:
        return _decide_ended(seen)
    move = moves.choose(seen)
    status = _status(seen, move)
    actions = (*_actions(seen, move), *_events(seen.status, status))
    return Decision(status, actions, _again(seen, status))


# ---- the status


def _status(seen: Seen, move: Move) -> Status:
    before, phase = seen.status, phase_of(seen, move)
    attempt = seen.attempt + isinstance(move, Next)
    nodes = _nodes(seen, move)
    ready = sum(pod.ready and not pod.delete_requested for pod in seen.ranks)
    ended = isinstance(move, Finish)
    return before.model_copy(
        update={
            "observed_generation": seen.job.metadata.generation,
            "phase": phase,
            "conditions": conditions_of(seen, move, phase),
            "attempt": attempt,
            "restarts": before.restarts + (isinstance(move, Next) and move.counts),
            "backend": BackendStatus(kind=seen.spec.backend, name=names.child(seen.job.metadata.name, attempt)),
            "nodes": NodesStatus(
                desired=nodes, ready=0 if ended else ready, summary=f"{0 if ended else ready}/{nodes}"
            ),
            "progress": progress_of(seen),
            "findings": None if isinstance(move, Next) else findings_of(seen),
            "excluded_nodes": list(_excluded(seen, move)),
            "start_time": _start_time(seen, phase),
            "completion_time": format_time(seen.now) if ended else None,
        }
    )


def _nodes(seen: Seen, move: Move) -> int:
    if isinstance(move, Next):
        return move.nodes
    if isinstance(move, Stop) and move.nodes is not None:
        return move.nodes
    return seen.wanted_nodes


def _excluded(seen: Seen, move: Move) -> tuple[ExcludedNode, ...]:
    return move.excluded if isinstance(move, Stop) and move.excluded is not None else remediate.kept(seen)


def _start_time(seen: Seen, phase: Phase) -> str | None:
    """When the job became active; a suspended one is not, and its deadline does not come nearer."""
    if phase is Phase.SUSPENDED:
        return None
    return seen.status.start_time or (format_time(seen.now) if phase is not Phase.PENDING else None)


# ---- the actions


def _actions(seen: Seen, move: Move) -> tuple[Action, ...]:
    if isinstance(move, Next):
        return _create(seen, seen.plan(seen.attempt + 1, move.nodes, seen.excluded))
    if isinstance(move, moves.Create):
        return _create(seen, seen.plan(seen.attempt, seen.wanted_nodes, seen.excluded))
    if isinstance(move, Start) and seen.current:
        return _start(seen, seen.current.name)
    if isinstance(move, Stop) and seen.current:
        return (*_mark(seen, move), StopJob(seen.current.name, move.reason))
    if isinstance(move, Trip) and not seen.breaker.tripped:
        return (TripBreaker(move.message),)
    if isinstance(move, Finish):
        return _clear(seen, move)
    return ()


def _create(seen: Seen, plan: Plan) -> tuple[Action, ...]:
    if seen.refusal is not None:
        return ()
    # What only pods need waits for them.
    network = () if seen.spec.suspend else _network(seen)
    group = pod_group(plan)
    ranks = render_jobset(plan) if seen.spec.backend == "JobSet" else render_job(plan)
    return (*network, *(Create(body) for body in (*([group] if group else []), ranks)))


def _start(seen: Seen, name: str) -> tuple[Action, ...]:
    return (*_network(seen), StartJob(name)) if seen.refusal is None else ()


def _network(seen: Seen) -> tuple[Create, ...]:
    """Before any pod is let run: none is ever there without its policy."""
    # The policy is not watched: every attempt makes sure of it.
    policy = [render_network_policy(seen.job)] if seen.platform.network_policy else []
    service = [] if seen.service else [render_service(seen.job)]
    return tuple(Create(body) for body in (*policy, *service))


def _mark(seen: Seen, move: Stop) -> tuple[Action, ...]:
    node = seen.nodes.get(move.leave)
    if not move.leave or remediate.mode_of(seen) != "Taint" or node is None:
        return ()
    excluded = move.excluded if move.excluded is not None else tuple(seen.status.excluded_nodes)
    entry = next(entry for entry in excluded if entry.name == move.leave)
    since, until = parse_time(entry.since) or seen.now, parse_time(entry.until) or seen.now
    mark = mark_for(node, since, until, f"{seen.job.metadata.namespace}/{seen.job.metadata.name}")
    return (MarkNode(node.name, mark, move.message),) if mark else ()


def _clear(seen: Seen, move: Finish) -> tuple[Action, ...]:
    """What an ended job no longer needs: its pods, and after success the attempts before the last."""
    job = seen.current
    stop = [] if job is None or job.stopped or job.complete or job.failed else [StopJob(job.name, move.reason)]
    old = seen.children if move.phase is Phase.SUCCEEDED else ()
    return (*stop, *(_delete(seen, child.attempt) for child in old if child.attempt < seen.attempt))


def _delete(seen: Seen, attempt: int) -> Delete:
    return Delete(seen.spec.backend, names.child(seen.job.metadata.name, attempt))


def _delete_network(seen: Seen) -> tuple[Delete, ...]:
    """The Service last: as long as it is there, something may be left to delete."""
    if not seen.service:
        return ()
    kinds = ("NetworkPolicy", "Service") if seen.platform.network_policy else ("Service",)
    return tuple(Delete(kind, names.service(seen.job.metadata.name)) for kind in kinds)


def _decide_ended(seen: Seen) -> Decision:
    """Only what was left undone, and the end of the job's time to live."""
    status = seen.status.model_copy(update={"observed_generation": seen.job.metadata.generation})
    ttl, ended = seen.spec.ttl_seconds_after_finished, parse_time(seen.status.completion_time)
    condition = next(c for c in status.conditions if c.type in {ConditionType.COMPLETE, ConditionType.FAILED})
    actions = _clear(seen, Finish(status.phase, condition.reason, condition.message))
    if ttl is None or ended is None:
        return Decision(status, actions)
    left = (ended + timedelta(seconds=ttl) - seen.now).total_seconds()
    if left > 0:
        return Decision(status, actions, left)
    children = [_delete(seen, child.attempt) for child in seen.children]
    return Decision(status, (*children, *_delete_network(seen)))


def _events(before: Status, after: Status) -> tuple[Tell, ...]:
    """An event for each condition that has become true, or is true for another reason. That a job is suspended which
    was made so is no news."""
    old = {condition.type: (condition.status, condition.reason) for condition in before.conditions}
    warnings = {ConditionType.FAILED, ConditionType.RESTARTING, ConditionType.DEGRADED, ConditionType.INVALID_TEMPLATE}
    return tuple(
        Tell(condition.type in warnings, condition.reason, condition.message)
        for condition in after.conditions
        if condition.status == "True"
        and old.get(condition.type) != ("True", condition.reason)
        and (before.attempt or condition.type is not ConditionType.SUSPENDED)
    )


# ---- when to look again


def _again(seen: Seen, status: Status) -> float | None:
    moments = [
        *_deadline(seen, status),
        *(pod.delete_requested + _patience(seen) for pod in seen.live if pod.delete_requested),
        *(pod.pending_since + timedelta(seconds=UNSCHEDULABLE_SECONDS) for pod in seen.waiting if pod.pending_since),
        *([seen.refusal.until] if seen.refusal else []),
        *(moment for entry in seen.excluded if (moment := parse_time(entry.until))),
        *([remediate.cooled_at(seen)] if remediate.cooling(seen) else []),
    ]
    # What is past has been looked at just now: only an event can make a difference to it.
    waits = [(moment - seen.now).total_seconds() for moment in moments if moment > seen.now]
    held_back = progress_due(seen, status.progress)
    return min([*waits, *([held_back] if held_back else [])], default=None)


def _deadline(seen: Seen, status: Status) -> list[datetime]:
    started, limit = parse_time(status.start_time), seen.spec.active_deadline_seconds
    return [started + timedelta(seconds=limit)] if started and limit is not None else []


def _patience(seen: Seen) -> timedelta:
    return timedelta(seconds=seen.spec.failure_policy.stuck_termination_seconds)

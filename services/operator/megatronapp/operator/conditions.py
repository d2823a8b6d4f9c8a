"""Phase and conditions of a job, from what is there and what is done about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from megatronapp.core.trainingjob import Condition, ConditionType, Phase, Reason
from megatronapp.operator import names
from megatronapp.operator.moves import Create, Finish, Move, Next, Start, Stop, Trip
from megatronapp.operator.observed import format_time
from megatronapp.operator.seen import Seen

Told = tuple[bool, Reason, str]
"""A condition without its times: true or not, why, and in plain words."""

MAX_MESSAGE = 1024


def phase_of(seen: Seen, move: Move) -> Phase:
    if isinstance(move, Finish):
        return move.phase
    if seen.spec.suspend and not seen.live:
        return Phase.SUSPENDED
    if isinstance(move, Stop) or (seen.current is not None and (seen.current.stopped or seen.current.failing)):
        return seen.status.phase if seen.spec.suspend else Phase.RESTARTING
    if isinstance(move, Next) and move.reason is not Reason.RESUMED:
        return Phase.RESTARTING
    if isinstance(move, Create | Next | Start):
        return Phase.RESTARTING if _restarting(seen) else Phase.PENDING
    return _phase_of_pods(seen)


def _phase_of_pods(seen: Seen) -> Phase:
    if _ready(seen) == seen.wanted_nodes or (seen.status.phase is Phase.RUNNING and _placed(seen)):
        return Phase.RUNNING
    if _restarting(seen):
        return Phase.RESTARTING
    return Phase.STARTING if _placed(seen) else Phase.PENDING


def _restarting(seen: Seen) -> bool:
    return seen.status.phase is Phase.RESTARTING


def conditions_of(seen: Seen, move: Move, phase: Phase) -> list[Condition]:
    """All that is true or was true once, each with the time since when it is as it is."""
    told: dict[ConditionType, Told | None] = {
        ConditionType.SUSPENDED: _suspended(seen, phase),
        ConditionType.PODS_READY: _pods_ready(seen, phase),
        ConditionType.RUNNING: _running(seen, phase),
        ConditionType.RESTARTING: _restart(seen, move, phase),
        ConditionType.DEGRADED: _degraded(seen, move),
        ConditionType.COMPLETE: _finished(move, Phase.SUCCEEDED),
        ConditionType.FAILED: _finished(move, Phase.FAILED),
        ConditionType.INVALID_TEMPLATE: _invalid(seen),
    }
    return dated(seen, ((kind, what) for kind, what in told.items() if what is not None))


def dated(seen: Seen, told: Iterable[tuple[ConditionType, Told]]) -> list[Condition]:
    """Conditions with their times: those not told of stay as they were."""
    before = {condition.type: condition for condition in seen.status.conditions}
    found = dict(before)
    for kind, (true, reason, message) in told:
        old, status = before.get(kind), "True" if true else "False"
        if old is None and not true and kind not in ALWAYS:
            continue
        changed = old is None or old.status != status
        found[kind] = Condition(
            type=kind,
            status="True" if true else "False",
            reason=reason,
            message=message[:MAX_MESSAGE],
            last_transition_time=format_time(seen.now) if changed or old is None else old.last_transition_time,
            observed_generation=seen.job.metadata.generation,
        )
    return [found[kind] for kind in ConditionType if kind in found]


ALWAYS = frozenset({ConditionType.PODS_READY, ConditionType.RUNNING})
"""Told from the first day on; the others from when they are true for the first time."""


def _suspended(seen: Seen, phase: Phase) -> Told:
    if phase is Phase.SUSPENDED:
        return True, Reason.SUSPENDED_BY_USER, "spec.suspend is true; no pod runs"
    return False, Reason.RESUMED, "spec.suspend is false" if not seen.spec.suspend else "the ranks save and end"


def _pods_ready(seen: Seen, phase: Phase) -> Told:
    ready, wanted = _ready(seen), seen.wanted_nodes
    if phase in {Phase.SUCCEEDED, Phase.FAILED}:
        return False, Reason.COMPLETED if phase is Phase.SUCCEEDED else Reason.RANK_FAILED, "the job has ended"
    if ready == wanted:
        return True, Reason.PODS_READY, f"all {wanted} pods run"
    if seen.waiting:
        text = f"no place for {len(seen.waiting)} of {wanted} pods: {seen.waiting[0].unschedulable}"
        return False, Reason.UNSCHEDULABLE, text
    if seen.current is not None and seen.current.suspended and seen.spec.scheduling.queue:
        return False, Reason.QUEUED, f"waiting in the queue {seen.spec.scheduling.queue}"
    if not seen.ranks and not seen.spec.suspend:
        name = names.child(seen.job.metadata.name, seen.attempt)
        text = f"no pod was made yet: kubectl describe job {name} tells why, if it stays so"
        return False, Reason.PODS_STARTING, text
    return False, Reason.PODS_STARTING, f"{ready} of {wanted} pods run"


def _running(seen: Seen, phase: Phase) -> Told:
    if phase is not Phase.RUNNING:
        return False, _why_not_running(phase), f"the job is {phase}"
    return True, Reason.TRAINING, f"attempt {seen.attempt} is training"


def _why_not_running(phase: Phase) -> Reason:
    reasons = {
        Phase.SUSPENDED: Reason.SUSPENDED_BY_USER,
        Phase.RESTARTING: Reason.STOPPING,
        Phase.SUCCEEDED: Reason.COMPLETED,
        Phase.FAILED: Reason.RANK_FAILED,
    }
    return reasons.get(phase, Reason.PODS_STARTING)


def _restart(seen: Seen, move: Move, phase: Phase) -> Told | None:
    if isinstance(move, Stop | Next) and phase is Phase.RESTARTING:
        return True, move.reason, move.message
    if phase is Phase.RESTARTING:
        return None
    return False, Reason.RESUMED, f"attempt {seen.attempt} has taken over" if seen.attempt > 1 else ""


def _degraded(seen: Seen, move: Move) -> Told | None:
    if isinstance(move, Trip):
        return True, Reason.SLOW_RANKS, move.message
    if seen.report is None:
        return None
    paging = [s for s in seen.report.suspicions if s.page] if seen.report.attempt == seen.attempt else []
    if not paging:
        return False, Reason.HEALTHY, "no rank is slow"
    worst = max(paging, key=lambda suspicion: suspicion.effect_ratio)
    return True, Reason.SLOW_RANKS, worst.summary or f"{worst.kind} ({worst.cause})"


def _finished(move: Move, phase: Phase) -> Told | None:
    return (True, move.reason, move.message) if isinstance(move, Finish) and move.phase is phase else None


def _invalid(seen: Seen) -> Told:
    if seen.refusal is not None:
        return True, Reason.TEMPLATE_REFUSED, seen.refusal.message
    return False, Reason.ACCEPTED, "the API server takes what the job is made into"


def _ready(seen: Seen) -> int:
    return sum(pod.ready and not pod.delete_requested for pod in seen.ranks)


def _placed(seen: Seen) -> bool:
    return bool(seen.live) and all(pod.node for pod in seen.live)

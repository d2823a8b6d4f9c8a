"""Phase and conditions of a job, from what is there and what is done about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from megatronapp.core.trainingjob import Condition, ConditionType, Phase, Reason
from megatronapp.operator import names, startup
from megatronapp.operator.moves import EnsureJob, Finish, Move, Next, Start, Stop, Trip, Wait
from megatronapp.operator.observation import Observation
from megatronapp.operator.snapshots import format_time

Reported = tuple[bool, Reason, str]
"""A condition without its times: true or not, why, and in plain words."""

MAX_MESSAGE = 1024


def phase_of(observation: Observation, move: Move) -> Phase:
    if isinstance(move, Finish):
        return move.phase
    if observation.spec.suspend and not observation.live:
        return Phase.SUSPENDED
    if isinstance(move, Stop | Wait) or (
        observation.current is not None and (observation.current.stopped or observation.current.failing)
    ):
        return observation.status.phase if observation.spec.suspend else Phase.RESTARTING
    if isinstance(move, Next) and move.reason is not Reason.RESUMED:
        return Phase.RESTARTING
    if isinstance(move, EnsureJob | Next | Start):
        return Phase.RESTARTING if _restarting(observation) else Phase.PENDING
    return _phase_of_pods(observation)


def _phase_of_pods(observation: Observation) -> Phase:
    if _ready(observation) == observation.wanted_nodes or (
        observation.status.phase is Phase.RUNNING and _placed(observation)
    ):
        return Phase.RUNNING
    if _restarting(observation):
        return Phase.RESTARTING
    return Phase.STARTING if _placed(observation) else Phase.PENDING


def _restarting(observation: Observation) -> bool:
    return observation.status.phase is Phase.RESTARTING


def conditions_of(observation: Observation, move: Move, phase: Phase) -> list[Condition]:
    """All that is true or was true once, each with the time since when it is as it is."""
    reported: dict[ConditionType, Reported | None] = {
        ConditionType.SUSPENDED: _suspended(observation, phase),
        ConditionType.PODS_READY: _pods_ready(observation, phase),
        ConditionType.RUNNING: _running(observation, phase),
        ConditionType.RESTARTING: _restart(observation, move, phase),
        ConditionType.DEGRADED: _degraded(observation, move),
        ConditionType.COMPLETE: _finished(move, Phase.SUCCEEDED),
        ConditionType.FAILED: _finished(move, Phase.FAILED),
        ConditionType.INVALID_TEMPLATE: _invalid(observation),
    }
    return dated(observation, ((kind, what) for kind, what in reported.items() if what is not None))


def dated(observation: Observation, reported: Iterable[tuple[ConditionType, Reported]]) -> list[Condition]:
    """Conditions with their times: those not told of stay as they were."""
    before = {condition.type: condition for condition in observation.status.conditions}
    found = dict(before)
    for kind, (true, reason, message) in reported:
        old, status = before.get(kind), "True" if true else "False"
        if old is None and not true and kind not in ALWAYS:
            continue
        changed = old is None or old.status != status
        found[kind] = Condition(
            type=kind,
            status="True" if true else "False",
            reason=reason,
            message=message[:MAX_MESSAGE],
            last_transition_time=format_time(observation.now) if changed or old is None else old.last_transition_time,
            observed_generation=observation.job.metadata.generation,
        )
    return [found[kind] for kind in ConditionType if kind in found]


ALWAYS = frozenset({ConditionType.PODS_READY, ConditionType.RUNNING})
"""Told from the first day on; the others from when they are true for the first time."""


def _suspended(observation: Observation, phase: Phase) -> Reported:
    if phase is Phase.SUSPENDED:
        return True, Reason.SUSPENDED_BY_USER, "spec.suspend is true; no pod runs"
    return False, Reason.RESUMED, "spec.suspend is false" if not observation.spec.suspend else "the ranks save and end"


def _pods_ready(observation: Observation, phase: Phase) -> Reported:
    ready, wanted = _ready(observation), observation.wanted_nodes
    if phase in {Phase.SUCCEEDED, Phase.FAILED}:
        return False, Reason.COMPLETED if phase is Phase.SUCCEEDED else Reason.RANK_FAILED, "the job has ended"
    if ready == wanted:
        return True, Reason.PODS_READY, f"all {wanted} pods run"
    if found := startup.hindrance(observation):
        return False, found.reason, _with_limit(observation, found.message)
    if observation.waiting:
        text = f"no place for {len(observation.waiting)} of {wanted} pods: {observation.waiting[0].unschedulable}"
        return False, Reason.UNSCHEDULABLE, text
    if observation.current is not None and observation.current.suspended and observation.spec.scheduling.queue:
        return False, Reason.QUEUED, f"waiting in the queue {observation.spec.scheduling.queue}"
    if not observation.ranks and not observation.spec.suspend:
        return False, Reason.PODS_STARTING, _why_no_pod(observation)
    return False, Reason.PODS_STARTING, f"{ready} of {wanted} pods run"


def _why_no_pod(observation: Observation) -> str:
    """Names no object that is not there."""
    if observation.refusal is not None:
        return "no pod is made: see the condition InvalidTemplate"
    if observation.current is None:
        return f"the Job {names.child(observation.job.metadata.name, observation.attempt)} is being made"
    return f"no pod was made yet: kubectl describe job {observation.current.name} tells why, if it stays so"


def _with_limit(observation: Observation, message: str) -> str:
    until = startup.gives_up_at(observation)
    shortened = message[: MAX_MESSAGE - 100]
    return f"{shortened} (the job has failed if it is so until {format_time(until)})" if until else shortened


def _running(observation: Observation, phase: Phase) -> Reported:
    if phase is not Phase.RUNNING:
        return False, _why_not_running(phase), f"the job is {phase}"
    return True, Reason.TRAINING, f"attempt {observation.attempt} is training"


def _why_not_running(phase: Phase) -> Reason:
    reasons = {
        Phase.SUSPENDED: Reason.SUSPENDED_BY_USER,
        Phase.RESTARTING: Reason.STOPPING,
        Phase.SUCCEEDED: Reason.COMPLETED,
        Phase.FAILED: Reason.RANK_FAILED,
    }
    return reasons.get(phase, Reason.PODS_STARTING)


def _restart(observation: Observation, move: Move, phase: Phase) -> Reported | None:
    if isinstance(move, Stop | Next | Wait) and phase is Phase.RESTARTING:
        return True, move.reason, move.message
    if phase is Phase.RESTARTING:
        return None
    return False, Reason.RESUMED, f"attempt {observation.attempt} has taken over" if observation.attempt > 1 else ""


def _degraded(observation: Observation, move: Move) -> Reported | None:
    if isinstance(move, Trip):
        return True, Reason.SLOW_RANKS, move.message
    if observation.report is None:
        return None
    paging = (
        [s for s in observation.report.suspicions if s.page]
        if observation.report.attempt == observation.attempt
        else []
    )
    if not paging:
        return False, Reason.HEALTHY, "no rank is slow"
    worst = max(paging, key=lambda suspicion: suspicion.effect_ratio)
    return True, Reason.SLOW_RANKS, worst.summary or f"{worst.kind} ({worst.cause})"


def _finished(move: Move, phase: Phase) -> Reported | None:
    return (True, move.reason, move.message) if isinstance(move, Finish) and move.phase is phase else None


def _invalid(observation: Observation) -> Reported:
    if observation.refusal is not None:
        return True, Reason.TEMPLATE_REFUSED, observation.refusal.message
    return False, Reason.ACCEPTED, "the API server takes what the job is made into"


def _ready(observation: Observation) -> int:
    return sum(pod.ready and not pod.delete_requested for pod in observation.ranks)


def _placed(observation: Observation) -> bool:
    return bool(observation.live) and all(pod.node for pod in observation.live)

"""How an attempt ended, from its Job and its pods. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from megatronapp.core.errors import PluginMissingError
from megatronapp.core.trainingjob import Reason
from megatronapp.operator.attempt import to_stop
from megatronapp.operator.observation import Observation
from megatronapp.operator.snapshots import ChildJob, Pod

ASKED_TO_STOP = 143
"""The launcher's exit code after SIGTERM: the work is saved, not done."""


COUNTED = {Reason.NODE_LOST: "lost a node", Reason.PREEMPTED: "lost a pod, which was deleted before its end"}
"""What the operator stops an attempt for, though it is not the operator's wish."""


class Ending(Enum):
    SUCCEEDED = auto()
    FAILED = auto()
    """Counts as a restart, if there is another attempt."""
    STOPPED = auto()
    """Ended because the operator wanted it."""


@dataclass(frozen=True)
class Outcome:
    ending: Ending
    reason: Reason
    message: str
    retriable: bool = True


def outcome(observation: Observation) -> Outcome | None:
    """None while the attempt goes on, or its pods still end; also while one of its Jobs has yet to follow the other."""
    job = observation.current
    if job is None or to_stop(observation.parts):
        return None
    if job.complete and not _is_cut_short(job, observation):
        # The pods are watched apart: how they ended is on its way.
        done = Outcome(Ending.SUCCEEDED, Reason.COMPLETED, f"attempt {job.attempt} has done all steps")
        return None if observation.live else done
    if job.stopped:
        return None if observation.live else _stopped(job)
    if observation.live:
        return None
    if job.failed or (job.failing and observation.stuck):
        return _failed(job, observation)
    if job.complete:
        return Outcome(Ending.FAILED, Reason.PREEMPTED, f"attempt {job.attempt}: a pod was deleted before its end")
    return None


def _is_cut_short(job: ChildJob, observation: Observation) -> bool:
    """Whether a Job is complete only because pods ended with 0 when they were told to end. Of a Job that was stopped
    all pods must be there as proof of the contrary; of another one the operator would have seen a pod deleted."""
    done = [pod for pod in observation.ranks if pod.phase == "Succeeded" and not pod.interrupted]
    return any(pod.interrupted for pod in observation.ranks) or (bool(job.stopped) and len(done) < job.nodes)


def _stopped(job: ChildJob) -> Outcome:
    reason = Reason(job.stopped)
    if reason in COUNTED:
        return Outcome(Ending.FAILED, reason, f"attempt {job.attempt} {COUNTED[reason]}")
    return Outcome(Ending.STOPPED, reason, f"attempt {job.attempt} was stopped")


def _failed(job: ChildJob, observation: Observation) -> Outcome:
    policy = observation.spec.failure_policy
    if observation.stuck and not any(pod.exit_code for pod in observation.ranks):
        return Outcome(Ending.FAILED, Reason.NODE_LOST, f"attempt {job.attempt} lost {_where(observation.stuck[0])}")
    pod = _first_failed(observation.ranks)
    if pod is None:
        final = job.reason == "PodFailurePolicy"
        reason = Reason.NON_RETRIABLE_EXIT_CODE if final else Reason.RANK_FAILED
        return Outcome(Ending.FAILED, reason, f"attempt {job.attempt} failed: {job.message or job.reason}", not final)
    if pod.disrupted:
        text = f"attempt {job.attempt}: {pod.name} was ended by Kubernetes ({pod.disrupted})"
        return Outcome(Ending.FAILED, Reason.PREEMPTED, text)
    text = f"attempt {job.attempt}: {pod.name} on {_where(pod)} ended with exit code {pod.exit_code}"
    if pod.termination_message:
        text += f" ({pod.termination_message})"
    if pod.exit_code == PluginMissingError.exit_code:
        return Outcome(Ending.FAILED, Reason.PLUGIN_MISSING, text, retriable=False)
    if pod.exit_code in policy.non_retriable_exit_codes:
        return Outcome(Ending.FAILED, Reason.NON_RETRIABLE_EXIT_CODE, text, retriable=False)
    return Outcome(Ending.FAILED, Reason.RANK_FAILED, text)


def _first_failed(pods: tuple[Pod, ...]) -> Pod | None:
    """The pod that tells most: one that Kubernetes ended, else one that failed by itself, else any that failed."""
    failed = sorted((pod for pod in pods if pod.phase == "Failed"), key=lambda pod: pod.name)
    by_itself = (pod for pod in failed if pod.exit_code not in {None, ASKED_TO_STOP} and not pod.delete_requested)
    return next((pod for pod in failed if pod.disrupted), None) or next(by_itself, failed[0] if failed else None)


def _where(pod: Pod) -> str:
    return f"node {pod.node}" if pod.node else "no node"

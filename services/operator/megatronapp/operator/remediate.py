"""Which node a job should leave, and for how long. Pure.

Observe → ExcludeNode (the job's next attempts keep away from the node) → Taint (every job does). A node is left alone
for a time, then tried again; found slow again in as long a time after, it is left alone for twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from megatronapp.core.trainingjob.status import ExcludedNode
from megatronapp.operator.observation import Observation, is_excluded
from megatronapp.operator.snapshots import FindingSummary, format_time, parse_time

MODES = ("Observe", "ExcludeNode", "Taint")
KINDS = frozenset({"slow_gpu", "slow_host", "slow_link", "hang"})
NODE_CAUSES = frozenset({"compute", "memory_bound", "interference", "thermal", "nvlink", "nic", "host_cpu"})
"""Causes that another node would not have; the others travel with the job."""


@dataclass(frozen=True)
class Verdict:
    """A node to leave, and why."""

    node: str
    text: str


def mode_of(observation: Observation) -> str:
    """The job's wish, as far as the installation goes along."""
    return min(observation.spec.remediation.mode, observation.limits.remediation, key=MODES.index)


def verdict(observation: Observation) -> Verdict | None:
    """The node that the strongest confirmed finding blames; None without one, or while the job cools down."""
    if (
        mode_of(observation) == "Observe"
        or observation.report is None
        or observation.report.attempt != observation.attempt
        or cooling(observation)
    ):
        return None
    known = {node.name for node in observation.excluded} | set(observation.spec.scheduling.exclude_nodes)
    found = [s for s in observation.report.suspicions if _confirmed(s, observation) and s.node not in known]
    if not found:
        return None
    worst = max(found, key=lambda suspicion: (suspicion.confidence, suspicion.effect_ratio))
    return Verdict(worst.node, f"{worst.kind} ({worst.cause}) on node {worst.node}, ranks {_list(worst.ranks)}")


def cooling(observation: Observation) -> bool:
    return observation.now < cooled_at(observation)


def cooled_at(observation: Observation) -> datetime:
    """When the job may be moved again."""
    moves = [moment for node in observation.status.excluded_nodes if (moment := parse_time(node.since))]
    pause = timedelta(seconds=observation.spec.remediation.cooldown_seconds)
    return max(moves, default=observation.now - pause) + pause


def excluded_with(observation: Observation, node: str) -> tuple[ExcludedNode, ...]:
    """The job's list with one more node."""
    before = next((entry for entry in observation.status.excluded_nodes if entry.name == node), None)
    seconds = 2 * _seconds(before) if before else observation.limits.exclusion_seconds
    entry = ExcludedNode(
        name=node, since=format_time(observation.now), until=format_time(observation.now + timedelta(seconds=seconds))
    )
    return (*(other for other in kept(observation) if other.name != node), entry)


def kept(observation: Observation) -> tuple[ExcludedNode, ...]:
    """The list without nodes whose probation is over: as long as they were left alone, after their release."""
    return tuple(entry for entry in observation.status.excluded_nodes if not _forgotten(entry, observation.now))


def oldest_released(observation: Observation) -> tuple[ExcludedNode, ...]:
    """The list with the node that was excluded first released now: the job finds no place without it."""
    oldest = min(observation.excluded, key=lambda entry: entry.since)
    released = oldest.model_copy(update={"until": format_time(observation.now)})
    return tuple(released if entry == oldest else entry for entry in observation.status.excluded_nodes)


def on_excluded(observation: Observation) -> tuple[str, ...]:
    """Excluded nodes on which the newest attempt runs: it was not moved yet."""
    nodes = {entry.name for entry in observation.status.excluded_nodes if is_excluded(entry, observation.now)}
    return tuple(sorted({pod.node for pod in observation.live if pod.node in nodes}))


def _confirmed(suspicion: FindingSummary, observation: Observation) -> bool:
    """It pages, is sure enough, and has stood for so many steps; a job that hangs makes no steps. The node is the
    ranks' own word: it counts only where Kubernetes says that a pod of this attempt was there."""
    policy = observation.spec.remediation
    there = suspicion.node in {pod.node for pod in observation.ranks if pod.node}
    blames = suspicion.kind in KINDS and suspicion.cause in NODE_CAUSES and there
    lasting = suspicion.kind == "hang" or suspicion.steps_open >= policy.confirmations
    return blames and suspicion.page and lasting and suspicion.confidence >= policy.min_confidence


def _seconds(entry: ExcludedNode) -> int:
    since, until = parse_time(entry.since), parse_time(entry.until)
    return max(1, int((until - since).total_seconds())) if since and until else 1


def _forgotten(entry: ExcludedNode, now: datetime) -> bool:
    until = parse_time(entry.until)
    return until is not None and now >= until + timedelta(seconds=_seconds(entry))


def _list(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"

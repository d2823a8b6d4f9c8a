"""Which node a job should leave, and for how long. Pure.

Observe → ExcludeNode (the job's next attempts keep away from the node) → Taint (every job does). A node is left alone
for a time, then tried again; found slow again in as long a time after, it is left alone for twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from megatronapp.core.trainingjob.status import ExcludedNode
from megatronapp.operator.observed import Suspicion, format_time, parse_time
from megatronapp.operator.seen import Seen, is_excluded

MODES = ("Observe", "ExcludeNode", "Taint")
KINDS = frozenset({"slow_gpu", "slow_host", "slow_link", "hang"})
NODE_CAUSES = frozenset({"compute", "memory_bound", "interference", "thermal", "nvlink", "nic", "host_cpu"})
"""Causes that another node would not have; the others travel with the job."""


@dataclass(frozen=True)
class Verdict:
    """A node to leave, and why."""

    node: str
    text: str


def mode_of(seen: Seen) -> str:
    """The job's wish, as far as the installation goes along."""
    return min(seen.spec.remediation.mode, seen.limits.remediation, key=MODES.index)


def verdict(seen: Seen) -> Verdict | None:
    """The node that the strongest confirmed finding blames; None without one, or while the job cools down."""
    if mode_of(seen) == "Observe" or seen.report is None or seen.report.attempt != seen.attempt or cooling(seen):
        return None
    known = {node.name for node in seen.excluded} | set(seen.spec.scheduling.exclude_nodes)
    found = [s for s in seen.report.suspicions if _confirmed(s, seen) and s.node not in known]
    if not found:
        return None
    worst = max(found, key=lambda suspicion: (suspicion.confidence, suspicion.effect_ratio))
    return Verdict(worst.node, f"{worst.kind} ({worst.cause}) on node {worst.node}, ranks {_list(worst.ranks)}")


def cooling(seen: Seen) -> bool:
    return seen.now < cooled_at(seen)


def cooled_at(seen: Seen) -> datetime:
    """When the job may be moved again."""
    moves = [moment for node in seen.status.excluded_nodes if (moment := parse_time(node.since))]
    pause = timedelta(seconds=seen.spec.remediation.cooldown_seconds)
    return max(moves, default=seen.now - pause) + pause


def excluded_with(seen: Seen, node: str) -> tuple[ExcludedNode, ...]:
    """The job's list with one more node."""
    before = next((entry for entry in seen.status.excluded_nodes if entry.name == node), None)
    seconds = 2 * _seconds(before) if before else seen.limits.exclusion_seconds
    entry = ExcludedNode(
        name=node, since=format_time(seen.now), until=format_time(seen.now + timedelta(seconds=seconds))
    )
    return (*(other for other in kept(seen) if other.name != node), entry)


def kept(seen: Seen) -> tuple[ExcludedNode, ...]:
    """The list without nodes whose probation is over: as long as they were left alone, after their release."""
    return tuple(entry for entry in seen.status.excluded_nodes if not _forgotten(entry, seen.now))


def oldest_released(seen: Seen) -> tuple[ExcludedNode, ...]:
    """The list with the node that was excluded first released now: the job finds no place without it."""
    oldest = min(seen.excluded, key=lambda entry: entry.since)
    released = oldest.model_copy(update={"until": format_time(seen.now)})
    return tuple(released if entry == oldest else entry for entry in seen.status.excluded_nodes)


def on_excluded(seen: Seen) -> tuple[str, ...]:
    """Excluded nodes on which the newest attempt runs: it was not moved yet."""
    nodes = {entry.name for entry in seen.status.excluded_nodes if is_excluded(entry, seen.now)}
    return tuple(sorted({pod.node for pod in seen.live if pod.node in nodes}))


def _confirmed(suspicion: Suspicion, seen: Seen) -> bool:
    """It pages, is sure enough, and has stood for so many steps; a job that hangs makes no steps. The node is the
    ranks' own word: it counts only where Kubernetes says that a pod of this attempt was there."""
    policy = seen.spec.remediation
    there = suspicion.node in {pod.node for pod in seen.ranks if pod.node}
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

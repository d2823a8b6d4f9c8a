"""What the operator writes on nodes that are slow, and when it takes it away. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from megatronapp.operator.names import DOMAIN
from megatronapp.operator.snapshots import Node, SlowMark

TAINT = f"{DOMAIN}/slow-gpu"
EFFECT = "NoSchedule"
MARK = f"{DOMAIN}/slow-gpu"
CONDITION = "SlowGPU"


def marked(body: Mapping[str, Any], mark: SlowMark) -> dict[str, Any]:
    """Merge patch: the platform's own taint beside those of others, and until when."""
    taints = [*_others(body), {"key": TAINT, "value": "true", "effect": EFFECT}]
    return _patch(body, taints, {"annotations": {MARK: mark.text()}})


def released(body: Mapping[str, Any]) -> dict[str, Any]:
    """Merge patch: the taint goes. The mark stays, so that a node found slow again is known."""
    return _patch(body, _others(body), {})


def condition(slow: bool, message: str, now: str) -> dict[str, Any]:
    """Strategic merge patch of a node's status."""
    found = {
        "type": CONDITION,
        "status": "True" if slow else "False",
        "reason": "SlowRanksFound" if slow else "OnProbation",
        "message": message,
        "lastTransitionTime": now,
    }
    return {"status": {"conditions": [found]}}


def mark_for(node: Node, since: datetime, until: datetime, job: str) -> SlowMark | None:
    """The node's new mark; twice as long as the last one during probation. None when it has a longer one."""
    before = node.mark
    if before is None:
        return SlowMark(since, until, job)
    if is_tainted(node) and before.until >= until:
        return None
    lasted = before.until - before.since
    on_probation = before.until <= since < before.until + lasted
    return SlowMark(since, max(until, since + 2 * lasted) if on_probation else until, job)


def is_tainted(node: Node) -> bool:
    return (TAINT, EFFECT) in node.taints


def is_due(node: Node, now: datetime) -> bool:
    """Whether the node's time is up. A taint without the operator's mark is somebody else's."""
    return node.mark is not None and is_tainted(node) and now >= node.mark.until


def acted_since(nodes: Iterable[Node], since: datetime) -> set[str]:
    return {node.name for node in nodes if node.mark is not None and node.mark.since >= since}


def breaker_limit(nodes: int, at_least: int, ratio: float) -> int:
    """How many nodes may be acted on in the breaker's window."""
    return max(at_least, int(nodes * ratio))


def window_start(now: datetime, seconds: int) -> datetime:
    return now - timedelta(seconds=seconds)


def _others(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    taints = (body.get("spec") or {}).get("taints") or []
    return [taint for taint in taints if (taint["key"], taint["effect"]) != (TAINT, EFFECT)]


def _patch(body: Mapping[str, Any], taints: list[dict[str, Any]], metadata: dict[str, Any]) -> dict[str, Any]:
    """The list of taints is written whole, so only onto the version that was read."""
    version = {"resourceVersion": body["metadata"]["resourceVersion"]}
    return {"metadata": {**version, **metadata}, "spec": {"taints": taints or None}}

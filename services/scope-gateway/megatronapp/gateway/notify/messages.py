"""An incident or a report as text for people. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import quote

from megatronapp.gateway.notify.incidents import Incident, Reason
from megatronapp.gateway.notify.levels import Level

TITLES: dict[Reason, str] = {"opened": "", "worse": "now worse: ", "still": "still open: ", "resolved": "resolved: "}


@dataclass(frozen=True, slots=True)
class Message:
    kind: Literal["incident", "report"]
    reason: Reason
    level: Level
    title: str
    facts: tuple[tuple[str, str], ...]
    """(name, value), in the order to show them."""
    text: str
    """What is beside the facts; of a report, Markdown."""
    link: str
    """An http(s) address, or ""; so is the runbook's."""
    runbook: str = ""
    incident: Incident | None = None


def of_incident(incident: Incident, reason: Reason, page_url: str) -> Message:
    state = incident.state
    facts = {
        "job": "/".join(filter(None, (state.namespace, state.training_job))),
        "node": state.node,
        "ranks": ", ".join(state.ranks[:16]) + (" …" if len(state.ranks) > 16 else ""),
        "GPU": ", ".join(state.gpu_uuids[:4]) + (" …" if len(state.gpu_uuids) > 4 else ""),
        "component": state.component,
        "cause": state.cause,
        "since": moment(incident.opened),
        "lasted": duration((incident.resolved or 0) - incident.opened) if reason == "resolved" else "",
        "came back": f"{incident.flaps} times" if incident.flaps else "",
    }
    return Message(
        kind="incident",
        reason=reason,
        level=state.level,
        title=f"[{state.level}] {TITLES[reason]}{state.summary}",
        facts=tuple((name, value) for name, value in facts.items() if value),
        text=state.description,
        link=address(f"{page_url.rstrip('/')}/health"),
        runbook=address(state.runbook),
        incident=incident,
    )


def address(url: str) -> str:
    """An http(s) address in which nothing can end a link or begin markup; "" for what is none."""
    return quote(url, safe="%:/?#[]@!$&'()*+,;=~") if url.startswith(("https://", "http://")) else ""


def moment(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float) -> str:
    """`93780` → `1 d 2 h 3 min`; the two largest units, as people say it."""
    whole = max(0, int(seconds))
    parts = ((whole // 86_400, "d"), (whole // 3_600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s"))
    return " ".join(f"{number} {unit}" for number, unit in [part for part in parts if part[0]][:2]) or "0 s"

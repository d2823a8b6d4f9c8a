"""The weekly report: what happened, how long it lasted, who was it again. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from statistics import mean
from typing import Literal

from pydantic import Field

from megatronapp.gateway.models import Model
from megatronapp.gateway.notify.incidents import Incident
from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.messages import duration
from megatronapp.gateway.notify.settings import Weekday

_LITERAL = {ord(mark): f"&#{ord(mark)};" for mark in "&<>[]*`~|\\"}
"""Marks as character references, which stand for nothing but themselves."""
WEEK_SECONDS = 7 * 86_400.0
LATE_SECONDS = 86_400.0
"""A report that could not be sent for so long is not sent any more."""
OFFENCES = 2
"""Incidents that make a node, GPU or job a repeat offender."""
MAX_OFFENDERS = 20
TREND_SPANS = 4


class LevelCount(Model):
    level: Level
    incidents: int
    open: int = Field(description="not resolved at the end")
    mean_seconds_to_resolve: float | None = Field(description="resolved − opened, of those that are resolved")


class CauseCount(Model):
    cause: str = Field(description="the finding's cause, else the alert's name")
    incidents: int


class Offender(Model):
    """Somebody whom several incidents name."""

    kind: Literal["node", "gpu", "job"]
    name: str
    incidents: int
    alerts: tuple[str, ...]


class WeekCount(Model):
    """One of the weeks, or spans of the report's length, up to the report's end."""

    to_unix_seconds: float
    incidents: int
    by_level: dict[Level, int] = Field(description="all four")
    mean_seconds_to_resolve: float | None


class Report(Model):
    """Incidents that opened in a span of time."""

    from_unix_seconds: float
    to_unix_seconds: float
    incidents: int
    open: int
    mean_seconds_to_resolve: float | None
    levels: tuple[LevelCount, ...] = Field(description="all four, the most urgent first")
    causes: tuple[CauseCount, ...] = Field(description="the most frequent first")
    repeat_offenders: tuple[Offender, ...] = Field(description="named by two incidents or more, the worst first")
    trend: tuple[WeekCount, ...] = Field(description="four spans of this length, the last of them this one")


def report(incidents: Iterable[Incident], start: float, end: float) -> Report:
    """Of the incidents that opened in [start, end), as they stood at its end."""
    everything = list(incidents)
    chosen = _opened(everything, start, end)
    return Report(
        from_unix_seconds=start,
        to_unix_seconds=end,
        incidents=len(chosen),
        open=len(_open(chosen, end)),
        mean_seconds_to_resolve=_mean_seconds(chosen, end),
        levels=tuple(_level(level, [i for i in chosen if i.state.level is level], end) for level in Level),
        causes=tuple(CauseCount(cause=cause, incidents=number) for cause, number in _causes(chosen)),
        repeat_offenders=_offenders(chosen),
        trend=tuple(
            _week(everything, end - back * (end - start), end - start) for back in reversed(range(TREND_SPANS))
        ),
    )


def _opened(incidents: Iterable[Incident], start: float, end: float) -> list[Incident]:
    return [incident for incident in incidents if start <= incident.opened < end]


def _week(incidents: Sequence[Incident], end: float, seconds: float) -> WeekCount:
    """As it stood at its own end."""
    chosen = _opened(incidents, end - seconds, end)
    return WeekCount(
        to_unix_seconds=end,
        incidents=len(chosen),
        by_level={level: sum(incident.state.level is level for incident in chosen) for level in Level},
        mean_seconds_to_resolve=_mean_seconds(chosen, end),
    )


def due_end(now: float, weekday: Weekday | None, hour: int) -> float | None:
    """The end of the week whose report is due: the last `weekday` at `hour` UTC, unless that is long ago."""
    if weekday is None:
        return None
    today = datetime.fromtimestamp(now, UTC)
    end = today.replace(hour=hour, minute=0, second=0, microsecond=0)
    end -= timedelta(days=(today.weekday() - weekday.number) % 7)
    if end > today:
        end -= timedelta(days=7)
    return end.timestamp() if now - end.timestamp() < LATE_SECONDS else None


def markdown(found: Report) -> str:
    """The report for people."""
    start, end = (_day(seconds) for seconds in (found.from_unix_seconds, found.to_unix_seconds))
    return "\n".join([f"# Incidents from {start} to {end}", "", *_lines(found)]) + "\n"


def _lines(found: Report) -> Iterator[str]:
    if not found.incidents:
        yield "Nothing happened."
        yield from _trend(found)
        return
    lasted = _time(found.mean_seconds_to_resolve)
    yield f"{found.incidents} incidents, {found.open} still open, resolved after {lasted} on average."
    yield from ("", "| level | incidents | open | mean time to resolve |", "|---|---|---|---|")
    for row in found.levels:
        yield f"| {row.level} | {row.incidents} | {row.open} | {_time(row.mean_seconds_to_resolve)} |"
    yield from ("", "| cause | incidents |", "|---|---|")
    yield from (f"| {_cell(row.cause)} | {row.incidents} |" for row in found.causes)
    if found.repeat_offenders:
        yield from ("", "| again and again | | incidents | alerts |", "|---|---|---|---|")
        for who in found.repeat_offenders:
            yield f"| {who.kind} | {_cell(who.name)} | {who.incidents} | {', '.join(map(_cell, who.alerts))} |"
    yield from _trend(found)


def _trend(found: Report) -> Iterator[str]:
    if not any(week.incidents for week in found.trend[:-1]):
        return
    yield from (
        "",
        f"| until | incidents | {' | '.join(Level)} | mean time to resolve | |",
        "|---|---|---|---|---|---|---|---|",
    )
    before = None
    for week in found.trend:
        counts = " | ".join(str(week.by_level[level]) for level in Level)
        change = "" if before is None else f"{week.incidents - before:+d}"
        lasted = _time(week.mean_seconds_to_resolve)
        yield f"| {_day(week.to_unix_seconds)} | {week.incidents} | {counts} | {lasted} | {change} |"
        before = week.incidents


def _level(level: Level, incidents: Sequence[Incident], end: float) -> LevelCount:
    return LevelCount(
        level=level,
        incidents=len(incidents),
        open=len(_open(incidents, end)),
        mean_seconds_to_resolve=_mean_seconds(incidents, end),
    )


def _open(incidents: Sequence[Incident], end: float) -> list[Incident]:
    return [incident for incident in incidents if incident.resolved is None or incident.resolved > end]


def _mean_seconds(incidents: Sequence[Incident], end: float) -> float | None:
    resolved = [i.resolved - i.opened for i in incidents if i.resolved is not None and i.resolved <= end]
    return mean(resolved) if resolved else None


def _causes(incidents: Sequence[Incident]) -> list[tuple[str, int]]:
    counted = Counter(incident.state.cause or incident.state.name for incident in incidents)
    return sorted(counted.items(), key=lambda item: (-item[1], item[0]))


def _offenders(incidents: Sequence[Incident]) -> tuple[Offender, ...]:
    alerts: dict[tuple[Literal["node", "gpu", "job"], str], list[str]] = {}
    for incident in incidents:
        for who in _named(incident):
            alerts.setdefault(who, []).append(incident.state.name)
    again = [(who, names) for who, names in alerts.items() if len(names) >= OFFENCES]
    again.sort(key=lambda item: (-len(item[1]), item[0]))
    return tuple(
        Offender(kind=kind, name=name, incidents=len(names), alerts=tuple(sorted(set(names))))
        for (kind, name), names in again[:MAX_OFFENDERS]
    )


def _named(incident: Incident) -> Iterator[tuple[Literal["node", "gpu", "job"], str]]:
    state = incident.state
    if state.node:
        yield "node", state.node
    for gpu in state.gpu_uuids:
        yield "gpu", gpu
    if state.training_job:
        yield "job", f"{state.namespace}/{state.training_job}"


def _cell(text: str) -> str:
    """A name as it is, in a table: it makes no markup, no link and no mention, in Markdown and in Feishu's cards."""
    return " ".join(text.split()).translate(_LITERAL)


def _day(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else duration(seconds)

"""The one place where notifications do something: reads and writes the topic of incidents, and speaks to receivers."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable

import httpx
from pydantic import SecretStr

from megatronapp.core.bus import Bus, Message, Topic
from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.gateway.metrics import GatewayMetrics
from megatronapp.gateway.notify import heartbeat, messages
from megatronapp.gateway.notify.events import (
    AlertReceived,
    AnyEvent,
    Claimed,
    GroupState,
    MonitoringHeard,
    NotificationSent,
    parse,
)
from megatronapp.gateway.notify.incidents import REPORT, Due, Incident, Incidents, Rules
from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.receivers import receivers
from megatronapp.gateway.notify.receivers.base import SEND_SECONDS, post
from megatronapp.gateway.notify.report import WEEK_SECONDS, due_end, markdown, report
from megatronapp.gateway.notify.settings import NotifySettings

log = get_logger(__name__)

TICK_SECONDS = 1.0
ASK_AGAIN_SECONDS = 5.0
"""A claim that has not come back from the bus yet is not published twice within so long."""
RETRY_SECONDS = 1.0


class Notifier:
    """Folds the incidents' events, claims what is due, and tells receivers. Run it in every gateway.

    What one event or one receiver makes fail is counted and logged, and concerns no other.
    """

    def __init__(
        self, settings: NotifySettings, bus: Bus, metrics: GatewayMetrics, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._metrics = metrics
        self._clock = clock
        self._receivers = {receiver.name: receiver for receiver in receivers(settings)}
        self._known = Incidents(
            Rules(
                levels={name: receiver.level for name, receiver in self._receivers.items()},
                repeat_seconds=settings.notify_repeat_seconds,
                flap_seconds=settings.notify_flap_seconds,
                reporters=frozenset(name for name, receiver in self._receivers.items() if receiver.reports),
            )
        )
        self._mine: dict[str, tuple[Due, float]] = {}
        """Claims that this gateway has published and not heard of yet: claim → (what, when)."""
        self._changed = asyncio.Event()
        self._started = clock()
        self._judged = 0.0
        """When it last said whether monitoring is silent: its words take a moment to come back from the bus."""

    @property
    def incidents(self) -> list[Incident]:
        """All that are known, the one opened last first."""
        return sorted(self._known.incidents.values(), key=lambda incident: -incident.opened)

    async def on_alert(self, state: GroupState) -> None:
        """Take in what Alertmanager says. Raises UnavailableError when it could not be kept; it must be said again."""
        if state.name == heartbeat.ALWAYS_FIRES:
            if state.firing:
                await self._bus.publish(Topic.INCIDENTS, heartbeat.GROUP, _bytes(MonitoringHeard(at=self._clock())))
            return
        await self._say(state)

    async def _say(self, state: GroupState) -> None:
        await self._bus.publish(Topic.INCIDENTS, state.group, _bytes(AlertReceived(at=self._clock(), state=state)))

    async def run(self) -> None:
        """Work until cancelled."""
        async with httpx.AsyncClient(timeout=SEND_SECONDS) as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(client, tasks))
            tasks.create_task(self._claim_for_ever())
            if self._settings.heartbeat_url is not None:
                tasks.create_task(self._beat_for_ever(client, self._settings.heartbeat_url))

    async def _follow(self, client: httpx.AsyncClient, tasks: asyncio.TaskGroup) -> None:
        async for batch in self._bus.follow(Topic.INCIDENTS):
            for message in batch:
                due = self._fold(message)
                if due is not None:
                    tasks.create_task(self._notify(client, *due))
            self._count()
            self._changed.set()

    def _fold(self, message: Message) -> tuple[str, Due] | None:
        """Take in one event; the claim and what it is for, when it is this gateway's turn to notify."""
        try:
            event = parse(message.value)
            counts = self._known.apply(event, self._week(event.at))
        except Exception as error:  # noqa: BLE001  one event must not end the notification of all others
            self._metrics.bad_messages.labels(Topic.INCIDENTS).inc()
            log.warning("message_not_understood", topic=Topic.INCIDENTS, error=str(error))
            return None
        if not isinstance(event, Claimed):
            return None
        mine = self._mine.pop(event.claim, None)
        return (event.claim, mine[0]) if mine and counts else None

    async def _claim_for_ever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), TICK_SECONDS)
            self._changed.clear()
            try:
                await self._judge_silence()
                await self._claim_due()
            except UnavailableError as error:
                log.warning("incidents_wait_for_the_bus", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                log.exception("incidents_not_claimed")
                await asyncio.sleep(RETRY_SECONDS)

    async def _claim_due(self) -> None:
        now = self._clock()
        self._mine = {claim: (due, at) for claim, (due, at) in self._mine.items() if now - at < ASK_AGAIN_SECONDS}
        asked = {(due.subject, due.receiver) for due, _ in self._mine.values()}
        for due in self._known.due(now, self._week(now)):
            if (due.subject, due.receiver) not in asked:
                claim = Claimed(at=now, claim=secrets.token_hex(8), subject=due.subject, receiver=due.receiver)
                self._mine[claim.claim] = (due, now)
                await self._bus.publish(Topic.INCIDENTS, due.subject, _bytes(claim))

    @property
    def _heard(self) -> float | None:
        """When monitoring was last heard, or could have been."""
        return None if self._known.heard is None else max(self._known.heard, self._started)

    async def _judge_silence(self) -> None:
        known = self._known.incidents.get(self._known.latest.get(heartbeat.GROUP, ""))
        state = heartbeat.news(self._heard, known, self._clock(), self._settings.silent_seconds)
        if state is not None and self._clock() - self._judged >= ASK_AGAIN_SECONDS:
            self._judged = self._clock()
            await self._say(state)

    async def _beat_for_ever(self, client: httpx.AsyncClient, url: SecretStr) -> None:
        while True:
            try:
                await self._beat(client, url)
            except UnavailableError as error:
                log.warning("heartbeat_not_sent", error=str(error))
            await asyncio.sleep(self._settings.heartbeat_seconds)

    async def _beat(self, client: httpx.AsyncClient, url: SecretStr) -> None:
        heard = self._heard
        if heard is None or self._clock() - heard >= self._settings.silent_seconds:
            return
        await self._bus.ping()
        await post(client, "the heartbeat's service", url, {"heard_unix_seconds": heard}, {})

    async def _notify(self, client: httpx.AsyncClient, claim: str, due: Due) -> None:
        incident = self._known.incidents.get(due.subject)
        if incident is None and not due.subject.startswith(REPORT):
            return
        delivered = await self._deliver(client, due, incident)
        self._metrics.notifications.labels(due.receiver, "sent" if delivered else "failed").inc()
        sent = NotificationSent(
            at=self._clock(),
            claim=claim,
            subject=due.subject,
            receiver=due.receiver,
            delivered=delivered,
            level=incident.state.level if incident else Level.P3,
            resolved=due.reason == "resolved",
        )
        await self._publish_sent(sent)

    async def _deliver(self, client: httpx.AsyncClient, due: Due, incident: Incident | None) -> bool:
        """Whether the receiver has taken the message. A receiver may answer anything."""
        try:
            message = self._message(due, incident)
            await self._receivers[due.receiver].deliver(client, message, self._clock())
        except UnavailableError as error:
            log.warning("notification_failed", receiver=due.receiver, subject=due.subject, error=str(error))
            return False
        except Exception as error:  # noqa: BLE001  a receiver may answer anything; its address, a secret, stays unsaid
            error_type = type(error).__name__
            log.error("notification_failed", receiver=due.receiver, subject=due.subject, error=error_type)
            return False
        return True

    async def _publish_sent(self, sent: NotificationSent) -> None:
        """Until the bus takes it: people would be told again otherwise."""
        while True:
            try:
                return await self._bus.publish(Topic.INCIDENTS, sent.subject, _bytes(sent))
            except UnavailableError as error:
                log.warning("incidents_wait_for_the_bus", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    def _message(self, due: Due, incident: Incident | None) -> messages.Message:
        if incident is None:
            return self._report_message(float(due.subject.removeprefix(REPORT)))
        return messages.of_incident(incident, due.reason, self._settings.page_url)

    def _report_message(self, end: float) -> messages.Message:
        found = report(self._known.incidents.values(), end - WEEK_SECONDS, end)
        page_url = self._settings.page_url
        return messages.Message(
            kind="report",
            reason="report",
            level=Level.P3,
            title=f"Weekly report: {found.incidents} incidents",
            facts=(),
            text=markdown(found),
            link=messages.address(f"{page_url.rstrip('/')}/report"),
        )

    def _week(self, now: float) -> str:
        """The report that is due, by its end; "" for none."""
        end = due_end(now, self._settings.report_weekday, self._settings.report_hour)
        return "" if end is None else f"{end:.0f}"

    def _count(self) -> None:
        for level in Level:
            count = sum(incident.open and incident.state.level is level for incident in self._known.incidents.values())
            self._metrics.incidents.labels(level).set(count)


def _bytes(event: AnyEvent) -> bytes:
    return event.model_dump_json().encode()

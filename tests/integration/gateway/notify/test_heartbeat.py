"""When monitoring itself is silent people are told, once by all gateways, and of its return."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import SecretStr

from megatronapp.core.bus import MemoryBus
from megatronapp.gateway.notify import notifier
from tests.integration.gateway.notify.conftest import Inbox, Start
from tests.integration.gateway.notify.test_notifications import receiver_settings, say, webhook


class Clock:
    """The gateways' time."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(notifier, "ASK_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(notifier, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(notifier.Notifier.__init__, "__defaults__", (found,))
    return found


async def test_silence_is_told_once_by_two_gateways_and_so_is_its_end(start: Start, inbox: Inbox, clock: Clock) -> None:
    bus = MemoryBus()
    first, second = [await start(bus=bus, **receiver_settings(inbox, notify_flap_seconds=0.0)) for _ in range(2)]
    assert await say(first, webhook(alertname="Watchdog")) == 204
    clock.now += 800
    await asyncio.sleep(0.2)
    assert inbox.posts == []

    clock.now += 200
    await inbox.until(lambda: len(inbox.bodies("phone")) >= 1)
    clock.now += 60
    await say(second, webhook(alertname="Watchdog"))
    await inbox.until(lambda: len(inbox.bodies("phone")) >= 2)

    assert [body["event"] for body in inbox.bodies("phone")] == ["trigger", "resolve"]
    assert inbox.bodies("phone")[0]["say"] == "[P0] Monitoring is silent: no alert would be heard"


async def test_without_an_alert_that_always_fires_nobody_is_told(start: Start, inbox: Inbox, clock: Clock) -> None:
    await start(**receiver_settings(inbox))

    clock.now += 100_000
    await asyncio.sleep(0.2)

    assert inbox.posts == []


async def test_a_service_outside_is_called_only_while_monitoring_is_heard(
    start: Start, inbox: Inbox, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat = {"heartbeat_url": SecretStr(inbox.url("beat")), "heartbeat_seconds": 5.0}
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: sleep(min(seconds, 0.05)))
    served = await start(**receiver_settings(inbox, **beat))
    await sleep(0.2)
    assert inbox.bodies("beat") == []

    await say(served, webhook(alertname="Watchdog"))
    await inbox.until(lambda: len(inbox.bodies("beat")) >= 2)
    clock.now += 1_000
    await sleep(0.2)
    calls = len(inbox.bodies("beat"))
    await sleep(0.3)

    assert len(inbox.bodies("beat")) == calls

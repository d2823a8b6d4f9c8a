"""Who is told, each in its own words."""

from __future__ import annotations

from megatronapp.gateway.notify.receivers.base import Receiver
from megatronapp.gateway.notify.receivers.feishu import Feishu
from megatronapp.gateway.notify.receivers.phone import Phone
from megatronapp.gateway.notify.receivers.slack import Slack
from megatronapp.gateway.notify.receivers.webhook import Webhook
from megatronapp.gateway.notify.settings import NotifySettings

__all__ = ["Receiver", "receivers"]


def receivers(settings: NotifySettings) -> tuple[Receiver, ...]:
    """Those whose address is set."""
    found: list[Receiver] = []
    if settings.feishu_url:
        found.append(Feishu(settings.feishu_url, settings.feishu_level, settings.feishu_secret))
    if settings.slack_url:
        found.append(Slack(settings.slack_url, settings.slack_level))
    if settings.webhook_url:
        found.append(Webhook(settings.webhook_url, settings.webhook_level, settings.webhook_bearer))
    if settings.phone_url:
        found.append(Phone(settings.phone_url, settings.phone_level, settings.phone_bearer))
    return tuple(found)

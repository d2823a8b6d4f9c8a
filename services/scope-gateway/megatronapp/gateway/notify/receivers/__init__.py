"""Who is told, each in its own words."""

from __future__ import annotations

from megatronapp.gateway.notify.receivers.base import Receiver
from megatronapp.gateway.notify.receivers.feishu import Feishu
from megatronapp.gateway.notify.receivers.feishu_sheet import FeishuSheet, Sheet
from megatronapp.gateway.notify.receivers.mail import Mail, MailServer
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
    if settings.mail_host:
        server = MailServer(
            settings.mail_host,
            settings.mail_port,
            settings.mail_tls,
            settings.mail_ca_file,
            settings.mail_user,
            settings.mail_password,
        )
        found.append(Mail(server, settings.mail_from, settings.mail_to, settings.mail_level))
    if settings.feishu_sheet_app_secret and settings.feishu_sheet_token:
        sheet = Sheet(
            settings.feishu_sheet_api,
            settings.feishu_sheet_app_id,
            settings.feishu_sheet_app_secret,
            settings.feishu_sheet_token,
            settings.feishu_sheet_id,
        )
        found.append(FeishuSheet(sheet, settings.feishu_sheet_level))
    return tuple(found)

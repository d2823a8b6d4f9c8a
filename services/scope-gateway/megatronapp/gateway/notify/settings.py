"""What notifications can be told. A receiver is on when its address is set."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Self

from pydantic import Field, SecretStr, model_validator

from megatronapp.core.settings import Names, ServiceSettings
from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.mail_tls import MailTls


class Weekday(StrEnum):
    MONDAY = "monday"
    TUESDAY = "tuesday"
    WEDNESDAY = "wednesday"
    THURSDAY = "thursday"
    FRIDAY = "friday"
    SATURDAY = "saturday"
    SUNDAY = "sunday"

    @property
    def number(self) -> int:
        """As `date.weekday()`."""
        return list(Weekday).index(self)


class NotifySettings(ServiceSettings):
    alertmanager_token: SecretStr | None = Field(
        default=None, description="token that Alertmanager's webhook sends; absent: the operator token is asked for"
    )
    alertmanager_url: str = Field(
        default="",
        pattern=r"^(https?://[^\s@]+)?$",
        description="Alertmanager's address, for silences made on the page; empty: none can be made",
    )
    alertmanager_bearer: SecretStr | None = Field(
        default=None, description="bearer token for it, where it asks for one"
    )
    page_url: str = Field(default="", description="the page's address for people, put into messages")

    feishu_url: SecretStr | None = Field(default=None, description="webhook of a Feishu group's bot")
    feishu_secret: SecretStr | None = Field(default=None, description="its signing secret, where it has one")
    feishu_level: Level = Field(default=Level.P2, description="Feishu hears of this level and of more urgent ones")
    slack_url: SecretStr | None = Field(default=None, description="incoming webhook of a Slack channel")
    slack_level: Level = Field(default=Level.P2, description="Slack hears of this level and of more urgent ones")
    webhook_url: SecretStr | None = Field(default=None, description="any address that takes JSON")
    webhook_bearer: SecretStr | None = Field(default=None, description="bearer token for it")
    webhook_level: Level = Field(default=Level.P3, description="it hears of this level and of more urgent ones")
    phone_url: SecretStr | None = Field(default=None, description="hook of a service that calls people")
    phone_bearer: SecretStr | None = Field(default=None, description="bearer token for it")
    phone_level: Level = Field(default=Level.P0, description="it calls for this level and for more urgent ones")

    mail_host: str = Field(default="", description="the SMTP server; empty: no mail is sent")
    mail_port: int = Field(default=587, ge=1, le=65535, description="its port")
    mail_tls: MailTls = Field(
        default=MailTls.STARTTLS,
        description="starttls (587), tls from the first byte (465), or none, with no password",
    )
    mail_ca_file: str = Field(default="", description="authorities of its certificate; empty: the system's")
    mail_user: str = Field(default="", description="who logs in to it")
    mail_password: SecretStr | None = Field(default=None, description="their password; absent: nobody logs in")
    mail_from: str = Field(default="", description="the sender's address")
    mail_to: Names = Field(default=(), description="the recipients' addresses")
    mail_level: Level = Field(default=Level.P2, description="mail is sent of this level and of more urgent ones")
    feishu_sheet_app_id: str = Field(default="", description="app that writes an archive into a Feishu sheet")
    feishu_sheet_app_secret: SecretStr | None = Field(default=None, description="its secret")
    feishu_sheet_token: SecretStr | None = Field(default=None, description="the spreadsheet's token, in its address")
    feishu_sheet_id: str = Field(default="", description="the sheet in it, in its address behind `sheet=`")
    feishu_sheet_api: str = Field(
        default="https://open.feishu.cn",
        pattern=r"^https?://[^\s@?#]+$",
        description="Feishu's address, or Lark's, https://open.larksuite.com",
    )
    feishu_sheet_level: Level = Field(default=Level.P3, description="archived are this level and more urgent ones")

    notify_repeat_seconds: float = Field(
        default=86_400, ge=60, description="an incident that is still open after so long is sent again"
    )
    notify_flap_seconds: float = Field(
        default=1_200,
        ge=0,
        description="an incident that comes back sooner is the same one, and is sent again only if it stays open",
    )
    silent_seconds: float = Field(
        default=900,
        ge=120,
        description="monitoring is called silent when the alert that always fires was heard, but not for so long",
    )
    heartbeat_url: SecretStr | None = Field(
        default=None, description="address of a service that tells people when it is not called any more"
    )
    heartbeat_seconds: float = Field(
        default=60, ge=5, description="it is called so often while monitoring is heard and the bus answers"
    )
    report_weekday: Weekday | None = Field(default=None, description="day of the weekly report; absent: none is sent")
    report_hour: int = Field(default=10, ge=0, le=23, description="its hour, UTC")

    @model_validator(mode="after")
    def _receivers_are_whole(self) -> Self:
        if self.mail_host and not (_address(self.mail_from) and self.mail_to and all(map(_address, self.mail_to))):
            raise ValueError("mail_host needs mail_from and mail_to, addresses as name@example.com")
        if self.mail_password and (self.mail_tls is MailTls.NONE or not self.mail_user):
            raise ValueError("mail_password needs mail_user, and mail_tls starttls or tls")
        sheet = (self.feishu_sheet_app_id, self.feishu_sheet_app_secret, self.feishu_sheet_token, self.feishu_sheet_id)
        if any(sheet) and not all(sheet):
            raise ValueError(
                "the archive needs feishu_sheet_app_id, feishu_sheet_app_secret, feishu_sheet_token and feishu_sheet_id"
            )
        return self


def _address(text: str) -> bool:
    return re.fullmatch(r"[^\s@<>,;\"]+@[^\s@<>,;\"]+", text) is not None

"""What notifications can be told. A receiver is on when its address is set."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, SecretStr

from megatronapp.core.settings import ServiceSettings
from megatronapp.gateway.notify.levels import Level


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

    notify_repeat_seconds: float = Field(
        default=86_400, ge=60, description="an incident that is still open after so long is sent again"
    )
    notify_flap_seconds: float = Field(
        default=1_200,
        ge=0,
        description="an incident that comes back sooner is the same one, and is sent again only if it stays open",
    )
    report_weekday: Weekday | None = Field(default=None, description="day of the weekly report; absent: none is sent")
    report_hour: int = Field(default=10, ge=0, le=23, description="its hour, UTC")

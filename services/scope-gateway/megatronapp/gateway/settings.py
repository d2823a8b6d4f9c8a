"""What the gateway can be told."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from megatronapp.core.quarantine import user_folder
from megatronapp.core.settings import Names
from megatronapp.core.tls import ClientTls, ServerTls, server_tls
from megatronapp.gateway.notify.settings import NotifySettings
from megatronapp.gateway.sessions import COOKIE


def _recordings_folder() -> Path:
    return user_folder("gateway").with_name("recordings")


class GatewaySettings(NotifySettings):
    model_config = SettingsConfigDict(env_prefix="MEGATRONAPP_GATEWAY_")

    port: int = Field(default=8080, ge=0, le=65535, description="REST, WebSocket and page; 0: any free port")
    grpc_port: int = Field(
        default=7602, ge=0, le=65535, description="MegaScope's streams of training pods; 0: any free port"
    )
    tls_certificate_file: Path | None = Field(
        default=None,
        description="the gRPC port's certificate in PEM, read anew once renewed; absent: clear text",
    )
    tls_key_file: Path | None = Field(default=None, description="its key")
    tls_client_ca_file: Path | None = Field(
        default=None, description="mutual TLS: clients need a certificate of a CA in this file"
    )
    ui_folder: Path | None = Field(default=None, description="the built page; absent: the one in this package")
    collector_addresses: Names = Field(
        default=("127.0.0.1:7601",), min_length=1, description="host:port of each shard of the trace-collector"
    )
    findings_store: str = Field(
        default="", description="memory, sqlite:PATH or redis; empty: redis where redis_url is set, else memory"
    )
    collector_token: SecretStr | None = Field(default=None, description="token for the trace-collector's queries")
    collector_ca_file: str = Field(
        default="", description="CA of the trace-collector's certificate, in PEM; empty: clear text"
    )
    collector_client_certificate_file: str = Field(
        default="", description="the gateway's own certificate, where the trace-collector asks for one"
    )
    collector_client_key_file: str = Field(default="", description="its key")
    allowed_hosts: Names = Field(
        default=(), description="names that a browser may use for this server, besides the loopback's and `host`"
    )
    allowed_origins: Names = Field(
        default=(),
        description="further origins whose pages may open sessions, write, listen to events, and show the page "
        "in a frame",
    )
    phase_token: SecretStr | None = Field(
        default=None,
        description="token with which the operator tells where TrainingJobs stand; absent: the operator role's token "
        "is asked for",
    )
    people_file: Path | None = Field(
        default=None, description="named tokens, a line each: name role token; read again when it changes"
    )
    user_header: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9-]*$",
        description="header in which a proxy in front names the user, for example X-Forwarded-User; the proxy must "
        "replace what clients send, and nobody may reach the gateway past it. Empty: no header is believed",
    )
    session_cookie: str = Field(
        default=COOKIE,
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="the cookie's name; two gateways of one host need two, as browsers do not tell ports apart",
    )
    session_key: SecretStr | None = Field(
        default=None, description="signs sessions; the same for all replicas, absent: a new one with each start"
    )
    session_seconds: float = Field(default=12 * 3600, gt=0, description="how long a session lasts")
    sign_in_link_seconds: float = Field(default=3600, gt=0, description="how long a one-time sign-in link is good for")
    max_request_bytes: int = Field(default=1 << 20, ge=1024, description="largest accepted request body")
    max_exports: int = Field(default=4, ge=1, description="most traces downloaded at once")
    max_viewers: int = Field(default=200, ge=1, description="most event streams open at once")
    viewer_timeout_seconds: float = Field(
        default=30.0, gt=0, description="a viewer that takes no event for so long is disconnected"
    )
    quarantine_dir: Path = Field(
        default_factory=partial(user_folder, "gateway"), description="records that can't be taken in are set aside here"
    )
    ended_job_seconds: float = Field(default=24 * 3600, ge=0, description="how long a job that ended is listed")

    replica_host: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9.:-]*$",
        description="name or address by which other replicas reach this one, where several share MegaScope's runs over "
        "redis_url; empty: it is the only one",
    )
    replica_tls_name: str = Field(
        default="",
        description="name in the replicas' own certificate, where the gRPC port has one; empty: replica_host",
    )
    scope_max_viewers: int = Field(default=200, ge=1, description="most viewers of MegaScope at once")
    scope_max_ranks: int = Field(default=4096, ge=1, description="most ranks of one run that MegaScope serves")
    scope_max_subscriptions: int = Field(default=16, ge=1, description="most subscriptions of one viewer")
    scope_max_fps: float = Field(default=30.0, gt=0, description="most frames a second of one subscription and layer")
    scope_max_frame_bytes: int = Field(
        default=2 << 20, ge=1 << 12, le=2 << 20, description="larger pictures of MegaScope are refused"
    )
    scope_max_message_bytes: int = Field(
        default=256 << 10, ge=1 << 10, le=1 << 20, description="larger messages of a viewer end its connection"
    )
    scope_max_messages_per_second: float = Field(
        default=60.0, gt=0, description="a viewer that sends more, twice that at once, is disconnected"
    )
    scope_events: int = Field(
        default=2048, ge=16, le=1 << 20, description="MegaScope's events of a run that a viewer can catch up on"
    )
    scope_idle_seconds: float = Field(
        default=60.0, gt=0, description="a viewer of MegaScope that says nothing for so long is disconnected"
    )
    scope_recordings_dir: Path = Field(
        default_factory=_recordings_folder, description="recordings and snapshots of MegaScope, a file each"
    )
    scope_recordings_max_bytes: int = Field(
        default=4 << 30, ge=1 << 20, description="all of them together; beyond it none is begun"
    )
    scope_recordings_days: float = Field(default=90.0, ge=0, description="how long one is kept; 0: until it is deleted")
    scope_max_recording_bytes: int = Field(
        default=256 << 20, ge=1 << 16, le=4 << 30, description="largest recording, made here or uploaded"
    )
    scope_max_recording_seconds: float = Field(
        default=3600.0, gt=0, le=24 * 3600, description="longest recording; it ends by itself"
    )

    @property
    def tls(self) -> ServerTls | None:
        """Of the gRPC port; None for clear text. Raises ConfigError for half of what it takes."""
        return server_tls(self.tls_certificate_file, self.tls_key_file, self.tls_client_ca_file)

    @property
    def collector_tls(self) -> ClientTls:
        return ClientTls(self.collector_ca_file, self.collector_client_certificate_file, self.collector_client_key_file)

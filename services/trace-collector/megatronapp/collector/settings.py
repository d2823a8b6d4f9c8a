"""What the collector can be told."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from megatronapp.core.settings import ServiceSettings
from megatronapp.core.tls import ServerTls, server_tls


def user_data_dir() -> Path:
    """Where files go when nobody says otherwise: the user's data folder."""
    return Path("~/.local/share/megatronapp/collector").expanduser()


class CollectorSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="MEGATRONAPP_COLLECTOR_", extra="forbid", frozen=True)

    grpc_port: int = Field(default=7601, ge=0, le=65535, description="training pods and queries; 0: any free port")
    tls_certificate_file: Path | None = Field(
        default=None,
        description="the gRPC port's certificate in PEM, read anew once renewed; absent: clear text",
    )
    tls_key_file: Path | None = Field(default=None, description="its key")
    tls_client_ca_file: Path | None = Field(
        default=None, description="mutual TLS: clients need a certificate of a CA in this file"
    )
    data_dir: Path = Field(default_factory=user_data_dir, description="journal, store and quarantine")
    return_seconds: float = Field(
        default=30.0,
        gt=0,
        description="after a start, ranks that do not come back within this time count as lost",
    )

    max_message_bytes: int = Field(default=4 << 20, ge=1 << 16, description="larger messages are refused")
    max_pending_bytes: int = Field(
        default=256 << 20, ge=1 << 20, description="intake waits while more than this is neither journalled nor stored"
    )
    max_jobs: int = Field(default=2_000, ge=1, description="runs of jobs traced at once, at most; more are refused")
    max_jobs_per_namespace: int = Field(default=1_000, ge=1, description="the same of one namespace")

    fsync: bool = Field(
        default=True, description="an acknowledged message survives a power loss; false: only a crash of the process"
    )
    segment_bytes: int = Field(default=64 << 20, ge=1 << 12, description="a journal file's size")

    flush_steps: int = Field(default=50, ge=1, description="steps of one job after which the store is written")
    flush_seconds: float = Field(default=15.0, gt=0, description="longest time between writes of the store")
    flush_bytes: int = Field(default=64 << 20, ge=1 << 12, description="detail in memory that has the store written")
    retention_seconds: float = Field(default=14 * 86_400.0, gt=0, description="traces older than this are deleted")
    history_retention_seconds: float = Field(
        default=31 * 86_400.0, gt=0, description="a run's history over its steps, which is small, is kept so long"
    )
    retention_bytes: int = Field(default=50 << 30, ge=1 << 20, description="the oldest traces above this are deleted")

    @property
    def tls(self) -> ServerTls | None:
        """None for clear text. Raises ConfigError for half of what it takes."""
        return server_tls(self.tls_certificate_file, self.tls_key_file, self.tls_client_ca_file)

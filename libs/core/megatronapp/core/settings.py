"""Settings of a service: default < file < environment < flag, read once and passed down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from megatronapp.core.errors import ConfigError
from megatronapp.core.logging import LogFormat
from megatronapp.core.yaml_text import load_yaml


def _listed(value: object) -> object:
    if not isinstance(value, str):
        return value
    return json.loads(value) if value.startswith("[") else [part.strip() for part in value.split(",") if part.strip()]


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]
"""`a,b` or a JSON list, as a flag, the environment or a file gives it."""


class ServiceSettings(BaseSettings):
    """What every service can be told. A subclass sets `env_prefix="MEGATRONAPP_<SERVICE>_"`."""

    model_config = SettingsConfigDict(env_prefix="MEGATRONAPP_", extra="forbid", frozen=True)

    host: str = Field(default="127.0.0.1", description="address to listen on; loopback unless told otherwise")
    http_port: int = Field(default=9090, ge=0, le=65535, description="port of health and metrics; 0: any free port")
    redis_url: SecretStr | None = Field(default=None, description="Redis as the bus; absent: a bus inside this process")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least urgent messages that are logged"
    )
    log_format: LogFormat = Field(default="auto", description="auto: console on a terminal, else json")
    auth: Literal["loopback", "static", "kubernetes"] = Field(
        default="loopback",
        description="loopback: everybody on this machine; static: the tokens below; kubernetes: "
        "training pods by their projected tokens, people by the tokens below",
    )
    token: SecretStr | None = Field(default=None, description="token of training pods (auth static)")
    viewer_token: SecretStr | None = Field(default=None, description="token of people who look")
    operator_token: SecretStr | None = Field(default=None, description="token of people who may change something")

    @field_validator("*", mode="after")
    @classmethod
    def _secrets_are_not_empty(cls, value: Any) -> Any:
        """An empty token would let in whoever sends none. Unset is None."""
        if isinstance(value, SecretStr) and not value.get_secret_value().strip():
            raise ValueError("is set but empty; give it a value, or unset it")
        return value

    @field_validator("redis_url", mode="after")
    @classmethod
    def _redis_password_is_not_empty(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and urlsplit(value.get_secret_value()).password == "":
            raise ValueError("has an empty password between ':' and '@'; put it there, or leave both out")
        return value

    @classmethod
    def load(cls, file: Path | None = None, **flags: Any) -> Self:
        """Read all sources. Raises ConfigError naming the key and where to set it."""
        given = {name: value for name, value in flags.items() if value is not None}
        written = _read(file) if file else {}

        def sources(
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            **_: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, written)

        source = type(cls.__name__, (cls,), {"settings_customise_sources": staticmethod(sources)})
        try:
            settings: Self = source(**given)
        except ValidationError as error:
            first = error.errors()[0]
            key = " ".join(".".join(str(part) for part in first["loc"]).split())
            variable = f"{cls.model_config.get('env_prefix', '')}{key}".upper()
            raise ConfigError(
                f"{key}: {first['msg'].removeprefix('Value error, ')} (flag --{key.replace('_', '-')}, or {variable})"
            ) from error
        except SettingsError as error:
            raise ConfigError(" ".join(str(error).split())) from error
        return settings

    def describe(self) -> dict[str, Any]:
        """All values for the log, secrets masked."""
        return self.model_dump(mode="json")


def _read(file: Path) -> dict[str, Any]:
    try:
        written = load_yaml(file.read_bytes(), str(file))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    if written is not None and not (isinstance(written, dict) and all(isinstance(key, str) for key in written)):
        raise ConfigError(f"{file}: write settings as `name: value`, one a line")
    return written or {}

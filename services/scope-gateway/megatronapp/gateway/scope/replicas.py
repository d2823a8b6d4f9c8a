"""Which of several gateways has a run: one owns it, by a lease in Redis, and the others pass on what comes to them.

Ranks' streams and viewers' WebSockets go to the owner by gRPC, REST by HTTP. An owner that dies loses its leases; the
next replica that a rank or a viewer comes to takes the run over, with the events that were kept.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from pydantic import BaseModel, ConfigDict, ValidationError

from megatronapp.core.errors import ConfigError, MegatronAppError, UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.core.tls import ClientTls
from megatronapp.gateway.settings import GatewaySettings

log = get_logger(__name__)

LEASE_SECONDS = 4.0
RENEW_SECONDS = 1.0
RELAYED = "x-megatronapp-relayed"
"""Header and metadata of what another replica has passed on: it is not passed on once more."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the other replicas reach one. Its text is the name by which it holds leases."""

    host: str
    grpc_port: int
    port: int

    def __str__(self) -> str:
        return f"{self.host}|{self.grpc_port}|{self.port}"

    @classmethod
    def parse(cls, text: str) -> Place:
        host, grpc_port, port = text.split("|")
        return cls(host, int(grpc_port), int(port))

    @property
    def grpc_address(self) -> str:
        return f"{self._name}:{self.grpc_port}"

    @property
    def url(self) -> str:
        return f"http://{self._name}:{self.port}"

    @property
    def _name(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


class ElsewhereError(MegatronAppError):
    """Another replica has the run."""

    def __init__(self, place: Place) -> None:
        super().__init__("another replica of the gateway has this run")
        self.place = place


class Served(BaseModel):
    """A run whose ranks are connected to some replica."""

    model_config = ConfigDict(frozen=True)

    run: str
    job: str
    roles: tuple[str, ...]
    layers: int
    ranks: int

    @property
    def generates(self) -> bool:
        return "generate" in self.roles


class Replicas:
    """Of one gateway among several. Methods raise UnavailableError where Redis does not answer."""

    def __init__(self, settings: GatewaySettings, grpc_port: int, port: int) -> None:
        """Raises ConfigError where something is missing that replicas share."""
        if settings.redis_url is None or settings.session_key is None:
            raise ConfigError("replica_host is set: gateways that share runs also need redis_url and session_key")
        # The extra `redis` is needed only here.
        from megatronapp.core.leases import Leases
        from megatronapp.core.registry import Registry

        url, key = settings.redis_url.get_secret_value(), settings.session_key.get_secret_value()
        self.place = Place(settings.replica_host, grpc_port, port)
        self.secret = hmac.new(key.encode(), b"scope-relay", sha256).hexdigest()
        """By which replicas know each other: whoever has the session key could sign any session in."""
        self.tls = settings.collector_tls if settings.tls else ClientTls()
        self.tls_name = settings.replica_tls_name
        self.tickets = Registry(url, "scope-ticket")
        self.events = Registry(url, "scope-events")
        self._leases = Leases(url, "scope-run", str(self.place), LEASE_SECONDS)
        self._served = Registry(url, "scope-served")

    async def elsewhere(self, run: str) -> Place | None:
        """The other replica that has it; None: this one, or nobody."""
        holder = await self._leases.holder_of(run)
        return None if holder in (None, str(self.place)) else Place.parse(holder)

    async def claim(self, run: str) -> None:
        """Make it this replica's. Raises ElsewhereError for another's."""
        if not await self._leases.hold([run]):
            place = await self.elsewhere(run)
            raise ElsewhereError(place) if place else UnavailableError("the run changes hands just now; try again")

    async def renew(self, runs: Sequence[str]) -> list[str]:
        """Keep them; returns those that another replica has taken meanwhile."""
        kept = await self._leases.hold(runs)
        return [run for run in runs if run not in kept]

    async def release(self, runs: Sequence[str]) -> None:
        await self._leases.release(runs)

    async def announce(self, served: Iterable[Served]) -> None:
        """Say which runs' ranks are connected here."""
        for one in served:
            await self._served.put(one.run, one.model_dump_json().encode(), LEASE_SECONDS)

    async def served(self) -> list[Served]:
        """Of all replicas."""
        found = []
        for value in await self._served.values():
            try:
                found.append(Served.model_validate_json(value))
            except ValidationError:
                log.warning("scope_served_unreadable")  # a newer replica's
        return found

    async def close(self) -> None:
        for each in (self.tickets, self.events, self._leases, self._served):
            await each.close()

"""One operator at a time: it holds a Lease, and ends when it can't renew it.

As Kubernetes' own components do: the holder renews three times within the Lease's duration; another takes over when it
has seen the same renewal for a whole duration, on its own clock. https://kubernetes.io/docs/concepts/architecture/leases/
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.operator import paths
from megatronapp.operator.api import Api, ConflictError, GoneError
from megatronapp.operator.names import DOMAIN

log = get_logger(__name__)

TRIPPED = f"{DOMAIN}/remediation-tripped"


class Lease:
    def __init__(self, api: Api, namespace: str, name: str, identity: str, seconds: int) -> None:
        self._api, self._identity, self._seconds = api, identity, seconds
        self._folder, self._path = paths.leases(namespace), f"{paths.leases(namespace)}/{name}"
        self._name = name
        self._seen: tuple[Any, float] = (None, 0.0)
        self._body: dict[str, Any] = {}

    @property
    def tripped(self) -> bool:
        """Whether the circuit breaker is open, as of the last renewal."""
        return TRIPPED in (self._body.get("metadata", {}).get("annotations") or {})

    async def acquire(self) -> None:
        """Return when the Lease is held."""
        while not await self._try():
            await asyncio.sleep(self._seconds / 7.5)
        log.info("leading", lease=self._path, identity=self._identity)

    async def keep(self, renewed: Any = None) -> None:
        """Renew for as long as that works. Raises UnavailableError when it has not for two thirds of the duration."""
        last = time.monotonic()
        while time.monotonic() - last < self._seconds * 2 / 3:
            if await self._try():
                last = time.monotonic()
                if renewed is not None:
                    renewed()
            await asyncio.sleep(self._seconds / 7.5)
        raise UnavailableError(f"the lease {self._path} could not be renewed; another operator may lead by now")

    async def trip(self, message: str) -> None:
        """Write on the Lease that the circuit breaker is open."""
        body = await self._api.get(self._path)
        annotations = {**(body["metadata"].get("annotations") or {}), TRIPPED: message}
        self._body = await self._api.replace(
            self._path, {**body, "metadata": {**body["metadata"], "annotations": annotations}}
        )

    async def release(self) -> None:
        """Let the next one begin at once."""
        if self._body:
            body = {**self._body, "spec": {**self._body["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}
            await self._api.replace(self._path, body)

    async def _try(self) -> bool:
        """A request that hangs must not outlast the Lease: it is given up in time for others."""
        try:
            async with asyncio.timeout(self._seconds / 3):
                return await self._take()
        except (ConflictError, UnavailableError, TimeoutError) as error:
            log.info("lease_not_renewed", error=str(error) or type(error).__name__)
            return False

    async def _take(self) -> bool:
        try:
            body = await self._api.get(self._path)
        except GoneError:
            self._body = await self._api.create(self._folder, self._fresh())
            return True
        if not self._may_take(body["spec"]):
            return False
        self._body = await self._api.replace(self._path, {**body, "spec": self._spec(body["spec"])})
        return True

    def _may_take(self, spec: dict[str, Any]) -> bool:
        """Ours, nobody's, or not renewed for its whole duration since it was first seen so."""
        holder = spec.get("holderIdentity")
        if not holder or holder == self._identity:
            return True
        sign = (holder, spec.get("renewTime"))
        if sign != self._seen[0]:
            self._seen = (sign, time.monotonic())
        return time.monotonic() - self._seen[1] >= float(spec.get("leaseDurationSeconds") or self._seconds)

    def _fresh(self) -> dict[str, Any]:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": self._spec({}),
        }

    def _spec(self, before: dict[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = before.get("holderIdentity") == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._seconds,
            "renewTime": now,
            "acquireTime": before.get("acquireTime", now) if mine else now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if mine or not before else 1),
        }

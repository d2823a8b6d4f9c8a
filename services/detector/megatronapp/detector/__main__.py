"""`python -m megatronapp.detector`: the service as a process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from megatronapp.core import findings_store
from megatronapp.core.bus import connect
from megatronapp.core.errors import ConfigError
from megatronapp.core.garbage import collect_seldom
from megatronapp.core.service import main, run
from megatronapp.detector.app import Detector
from megatronapp.detector.ownership import LEASE_SECONDS, Ownership
from megatronapp.detector.settings import DetectorSettings

if TYPE_CHECKING:
    from megatronapp.core.leases import Leases

YOUNG_OBJECTS = 50_000
"""The summaries of a step of 10,000 ranks wait for its last one, and none of them is garbage."""


async def serve(settings: DetectorSettings) -> None:
    redis_url = settings.redis_url.get_secret_value() if settings.redis_url else None
    bus, registry = connect(redis_url), CollectorRegistry()
    store = findings_store.connect(settings.findings_store, redis_url, registry, settings.findings_limits)
    leases = _leases(settings.replica, redis_url)
    try:
        await run(Detector(settings, bus, registry, store, Ownership(leases)), settings, registry)
    finally:
        if leases:
            await leases.close()
        await store.close()
        await bus.close()


def _leases(replica: str, redis_url: str | None) -> Leases | None:
    """By which this replica shares the jobs with others; None: it is the only one."""
    if not replica:
        return None
    if not redis_url:
        raise ConfigError("replica is set, but there is no redis_url over which replicas could share the jobs")
    from megatronapp.core.leases import Leases  # the extra `redis` is needed only here

    return Leases(redis_url, "detector", replica, LEASE_SECONDS)


if __name__ == "__main__":
    collect_seldom(YOUNG_OBJECTS)
    sys.exit(main(DetectorSettings, "python -m megatronapp.detector", serve))

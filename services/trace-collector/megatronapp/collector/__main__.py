"""`python -m megatronapp.collector`: the service as a process."""

from __future__ import annotations

import sys

from prometheus_client import CollectorRegistry

from megatronapp.collector.app import Collector
from megatronapp.collector.settings import CollectorSettings
from megatronapp.core.auth import authenticator
from megatronapp.core.bus import connect
from megatronapp.core.service import main, run


async def serve(settings: CollectorSettings) -> None:
    bus = connect(settings.redis_url.get_secret_value() if settings.redis_url else None)
    registry = CollectorRegistry()
    try:
        await run(Collector(settings, bus, registry, authenticator(settings)), settings, registry)
    finally:
        await bus.close()


if __name__ == "__main__":
    sys.exit(main(CollectorSettings, "python -m megatronapp.collector", serve))

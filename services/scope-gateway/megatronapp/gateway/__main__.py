"""`python -m megatronapp.gateway`: the service as a process."""

from __future__ import annotations

import sys

from prometheus_client import CollectorRegistry

from megatronapp.core import findings_store
from megatronapp.core.auth import authenticator
from megatronapp.core.bus import connect
from megatronapp.core.service import main, run
from megatronapp.gateway.app import Gateway
from megatronapp.gateway.settings import GatewaySettings


async def serve(settings: GatewaySettings) -> None:
    redis_url = settings.redis_url.get_secret_value() if settings.redis_url else None
    bus, registry = connect(redis_url), CollectorRegistry()
    store = findings_store.connect(settings.findings_store, redis_url, registry)
    try:
        await run(Gateway(settings, bus, registry, authenticator(settings), store), settings, registry)
    finally:
        await store.close()
        await bus.close()


if __name__ == "__main__":
    sys.exit(main(GatewaySettings, "python -m megatronapp.gateway", serve))

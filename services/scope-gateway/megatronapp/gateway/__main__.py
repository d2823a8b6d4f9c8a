"""`python -m megatronapp.gateway`: the service as a process."""

from __future__ import annotations

import sys

from prometheus_client import CollectorRegistry

from megatronapp.core.auth import authenticator
from megatronapp.core.bus import connect
from megatronapp.core.service import main, run
from megatronapp.gateway.app import Gateway
from megatronapp.gateway.settings import GatewaySettings


async def serve(settings: GatewaySettings) -> None:
    bus = connect(settings.redis_url.get_secret_value() if settings.redis_url else None)
    registry = CollectorRegistry()
    try:
        await run(Gateway(settings, bus, registry, authenticator(settings)), settings, registry)
    finally:
        await bus.close()


if __name__ == "__main__":
    sys.exit(main(GatewaySettings, "python -m megatronapp.gateway", serve))

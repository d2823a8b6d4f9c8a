"""`python -m megatronapp.collector`: the service as a process."""

from __future__ import annotations

import asyncio
import sys

from prometheus_client import CollectorRegistry

from megatronapp.collector.app import Collector
from megatronapp.collector.settings import CollectorSettings
from megatronapp.core import logging
from megatronapp.core.auth import authenticator
from megatronapp.core.bus import connect
from megatronapp.core.errors import MegatronAppError
from megatronapp.core.service import load_settings, run


async def serve(settings: CollectorSettings) -> None:
    bus = connect(settings.redis_url.get_secret_value() if settings.redis_url else None)
    registry = CollectorRegistry()
    try:
        await run(Collector(settings, bus, registry, authenticator(settings)), settings, registry)
    finally:
        await bus.close()


def main() -> int:
    try:
        settings = load_settings(CollectorSettings, "python -m megatronapp.collector")
        logging.configure(settings.log_level, settings.log_format)
        asyncio.run(serve(settings))
    except MegatronAppError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m megatronapp.detector`: the service as a process."""

from __future__ import annotations

import asyncio
import sys

from prometheus_client import CollectorRegistry

from megatronapp.core import logging
from megatronapp.core.bus import connect
from megatronapp.core.errors import MegatronAppError
from megatronapp.core.service import load_settings, run
from megatronapp.detector.app import Detector
from megatronapp.detector.settings import DetectorSettings


async def serve(settings: DetectorSettings) -> None:
    bus = connect(settings.redis_url.get_secret_value() if settings.redis_url else None)
    registry = CollectorRegistry()
    try:
        await run(Detector(settings, bus, registry), settings, registry)
    finally:
        await bus.close()


def main() -> int:
    try:
        settings = load_settings(DetectorSettings, "python -m megatronapp.detector")
        logging.configure(settings.log_level, settings.log_format)
        asyncio.run(serve(settings))
    except MegatronAppError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

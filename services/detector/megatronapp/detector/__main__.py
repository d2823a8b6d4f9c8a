"""`python -m megatronapp.detector`: the service as a process."""

from __future__ import annotations

import sys

from prometheus_client import CollectorRegistry

from megatronapp.core.bus import connect
from megatronapp.core.service import main, run
from megatronapp.detector.app import Detector
from megatronapp.detector.settings import DetectorSettings


async def serve(settings: DetectorSettings) -> None:
    bus = connect(settings.redis_url.get_secret_value() if settings.redis_url else None)
    registry = CollectorRegistry()
    try:
        await run(Detector(settings, bus, registry), settings, registry)
    finally:
        await bus.close()


if __name__ == "__main__":
    sys.exit(main(DetectorSettings, "python -m megatronapp.detector", serve))

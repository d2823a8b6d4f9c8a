"""`python -m megatronapp.detector`: the service as a process."""

from __future__ import annotations

import sys

from prometheus_client import CollectorRegistry

from megatronapp.core import findings_store
from megatronapp.core.bus import connect
from megatronapp.core.service import main, run
from megatronapp.detector.app import Detector
from megatronapp.detector.settings import DetectorSettings


async def serve(settings: DetectorSettings) -> None:
    redis_url = settings.redis_url.get_secret_value() if settings.redis_url else None
    bus, registry = connect(redis_url), CollectorRegistry()
    store = findings_store.connect(settings.findings_store, redis_url, registry, settings.findings_limits)
    try:
        await run(Detector(settings, bus, registry, store), settings, registry)
    finally:
        await store.close()
        await bus.close()


if __name__ == "__main__":
    sys.exit(main(DetectorSettings, "python -m megatronapp.detector", serve))

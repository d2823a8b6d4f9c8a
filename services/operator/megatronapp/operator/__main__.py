"""`python -m megatronapp.operator`: the service as a process."""

from __future__ import annotations

import gc
import sys

import uvloop
from prometheus_client import CollectorRegistry

from megatronapp.core.service import main, run
from megatronapp.operator.app import Operator
from megatronapp.operator.settings import OperatorSettings

YOUNG_OBJECTS = 50_000
"""A list of a thousand jobs makes so many at once, none of them garbage."""


async def serve(settings: OperatorSettings) -> None:
    registry = CollectorRegistry()
    await run(Operator(settings, registry), settings, registry)


def spare_the_collector() -> None:
    """Python's collector would look again and again for garbage among modules and objects just read from the API
    server: a seventh of the processor time of a start."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)


if __name__ == "__main__":
    spare_the_collector()
    sys.exit(main(OperatorSettings, "python -m megatronapp.operator", serve, run_loop=uvloop.run))

"""`python -m megatronapp.operator`: the service as a process."""

from __future__ import annotations

import sys

import uvloop
from prometheus_client import CollectorRegistry

from megatronapp.core.garbage import collect_seldom
from megatronapp.core.service import main, run
from megatronapp.operator.app import Operator
from megatronapp.operator.settings import OperatorSettings

YOUNG_OBJECTS = 50_000
"""A list of a thousand jobs makes so many at once, none of them garbage: looking for it took a seventh of the processor
time of a start."""


async def serve(settings: OperatorSettings) -> None:
    registry = CollectorRegistry()
    await run(Operator(settings, registry), settings, registry)


if __name__ == "__main__":
    collect_seldom(YOUNG_OBJECTS)
    sys.exit(main(OperatorSettings, "python -m megatronapp.operator", serve, run_loop=uvloop.run))

"""`python -m megatronapp.operator`: the service as a process."""

from __future__ import annotations

import sys

import uvloop
from prometheus_client import CollectorRegistry

from megatronapp.core.service import main, run
from megatronapp.operator.app import Operator
from megatronapp.operator.settings import OperatorSettings


async def serve(settings: OperatorSettings) -> None:
    registry = CollectorRegistry()
    await run(Operator(settings, registry), settings, registry)


if __name__ == "__main__":
    sys.exit(main(OperatorSettings, "python -m megatronapp.operator", serve, run_loop=uvloop.run))

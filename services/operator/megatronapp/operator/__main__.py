"""`python -m megatronapp.operator`: the service as a process."""

from __future__ import annotations

import asyncio
import sys

from prometheus_client import CollectorRegistry

from megatronapp.core import logging
from megatronapp.core.errors import MegatronAppError
from megatronapp.core.service import load_settings, run
from megatronapp.operator.app import Operator
from megatronapp.operator.settings import OperatorSettings


async def serve(settings: OperatorSettings) -> None:
    registry = CollectorRegistry()
    stopping = asyncio.Event()
    operator = Operator(settings, registry, stopping)
    await run(operator, settings, registry, stopping)
    if operator.failure is not None:
        raise operator.failure


def main() -> int:
    try:
        settings = load_settings(OperatorSettings, "python -m megatronapp.operator")
        logging.configure(settings.log_level, settings.log_format)
        asyncio.run(serve(settings))
    except MegatronAppError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

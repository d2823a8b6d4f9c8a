"""All collector shards as one: jobs of each, and the shard that holds a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from megatronapp.core.errors import NotFoundError, UnavailableError
from megatronapp.gateway.collector import CollectorClient
from megatronapp.gateway.models import Clock
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.v1 import trace_pb2


class CollectorShards:
    """A job's ranks all speak to one shard, so that shard alone answers for its runs."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises ConfigError when a certificate can't be used."""
        token, tls = settings.collector_token, settings.collector_tls
        self._shards = [CollectorClient(address, token, tls) for address in settings.collector_addresses]
        self._holders: dict[str, CollectorClient] = {}

    async def close(self) -> None:
        await asyncio.gather(*(shard.close() for shard in self._shards))

    async def reachable(self) -> bool:
        """Whether all shards answer."""
        return all(await asyncio.gather(*(shard.reachable() for shard in self._shards)))

    async def jobs(self, run: str = "") -> list[trace_pb2.JobRecord]:
        """Jobs of all shards, or one run's. Raises UnavailableError when a shard does not answer."""
        answers = await asyncio.gather(*(self._jobs_of(shard, run) for shard in self._shards))
        return [record for answer in answers for record in answer]

    async def ranks(self, run: str) -> trace_pb2.ListRanksResponse:
        return await (await self._holder(run)).ranks(run)

    async def steps(self, request: trace_pb2.ListStepsRequest) -> trace_pb2.ListStepsResponse:
        return await (await self._holder(request.run)).steps(request)

    async def step_grid(self, request: trace_pb2.ListStepGridRequest) -> trace_pb2.ListStepGridResponse:
        return await (await self._holder(request.run)).step_grid(request)

    async def history(self, request: trace_pb2.ReadHistoryRequest) -> trace_pb2.ReadHistoryResponse:
        return await (await self._holder(request.run)).history(request)

    async def clocks(self, run: str) -> list[Clock]:
        return await (await self._holder(run)).clocks(run)

    async def export(self, request: trace_pb2.ExportRequest) -> AsyncGenerator[bytes]:
        """The file in pieces, as `CollectorClient.export`."""
        async with aclosing((await self._holder(request.run)).export(request)) as pieces:
            async for piece in pieces:
                yield piece

    async def _holder(self, run: str) -> CollectorClient:
        """Raises NotFoundError when no shard knows the run, UnavailableError when one that might does not answer."""
        if len(self._shards) == 1:
            return self._shards[0]
        if run not in self._holders:
            answers = await asyncio.gather(*(self._jobs_of(shard) for shard in self._shards), return_exceptions=True)
            away = [answer for answer in answers if isinstance(answer, UnavailableError)]
            if run not in self._holders:
                raise away[0] if away else NotFoundError(f"no trace-collector holds traces of run {run!r}")
        return self._holders[run]

    async def _jobs_of(self, shard: CollectorClient, run: str = "") -> Sequence[trace_pb2.JobRecord]:
        records = await shard.jobs(run)
        self._holders.update((record.run, shard) for record in records)
        return records

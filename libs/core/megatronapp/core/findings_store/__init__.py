"""What was found, kept beyond restarts: the truth of which the bus topic `findings` only tells the news.

The detector writes findings, gateways read them and write what people say of them. They lie in memory, in a SQLite file
(a laptop) or in Redis (a cluster).
"""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from megatronapp.core.errors import ConfigError
from megatronapp.core.findings_store.annotations import Annotation, AnnotationKind
from megatronapp.core.findings_store.base import Backend, Row
from megatronapp.core.findings_store.limits import Limits
from megatronapp.core.findings_store.memory import MemoryBackend
from megatronapp.core.findings_store.store import FindingsStore

__all__ = ["Annotation", "AnnotationKind", "Backend", "FindingsStore", "Limits", "MemoryBackend", "Row", "connect"]

SQLITE = "sqlite:"


def connect(
    where: str, redis_url: str | None, registry: CollectorRegistry | None = None, limits: Limits | None = None
) -> FindingsStore:
    """Open the store. `where`: memory, sqlite:PATH, redis (at the bus's URL), or empty for Redis where there is one,
    else memory. `limits` are for the writer to give. Raises ConfigError for any other place, and UnavailableError when
    the file can't be opened.
    """
    return FindingsStore(_backend(where, redis_url), limits, registry)


def _backend(where: str, redis_url: str | None) -> Backend:
    if where.startswith(SQLITE) and (path := where.removeprefix(SQLITE)):
        from megatronapp.core.findings_store.sqlite import SqliteBackend

        return SqliteBackend(Path(path))
    if where == "memory" or (not where and not redis_url):
        return MemoryBackend()
    if where in ("", "redis") and redis_url:
        from megatronapp.core.findings_store.redis import RedisBackend  # the extra `redis` is needed only here

        return RedisBackend(redis_url)
    if where == "redis":
        raise ConfigError("findings_store is redis, but there is no redis_url; set it, or choose sqlite:PATH")
    raise ConfigError(f"findings_store is {where!r}; give memory, sqlite:PATH or redis")

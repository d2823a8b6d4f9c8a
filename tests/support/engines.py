"""Engines of several ranks: in one process, each with threads of its own, or in processes that can be killed."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

rdma = pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

from torch.distributed import HashStore  # noqa: E402

from megatronapp.rdma import Config, Engine, LaneUnavailableError  # noqa: E402

HOST_LANES = ("shm", "tcp", "ucx")


def in_parallel(actions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Results in order; the first error is raised when all have ended."""
    results: list[Any] = [None] * len(actions)
    errors: list[BaseException] = []

    def call(place: int) -> None:
        try:
            results[place] = actions[place]()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def lane_config(lane: str, **settings: Any) -> Config:
    lanes = (lane,) if lane in ("shm", "tcp", "ucx") else ("shm", lane)
    return Config(lanes=lanes, require=(lane,), **settings)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Held:
    """What this process holds that a transport could leave behind. Shared memory has no name: who maps it keeps it."""

    descriptors: int
    mappings: int
    threads: int

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        maps = Path("/proc/self/maps").read_text().splitlines()
        return cls(
            descriptors=sum(1 for _ in Path("/proc/self/fd").iterdir()),
            mappings=sum("memfd:megatronapp-rdma" in line for line in maps),
            threads=_threads_called("rdma-progress"),
        )

    @classmethod
    def after(cls, before: Held) -> Held:
        """Once no more than before is held, or after a while: an ended thread is listed a moment longer."""
        for _ in range(20):
            held = cls.now()
            if held.no_more_than(before):
                break
            time.sleep(0.05)
        return held

    def no_more_than(self, before: Held) -> bool:
        return (
            self.descriptors <= before.descriptors
            and self.mappings <= before.mappings
            and self.threads <= before.threads
        )


def _threads_called(name: str) -> int:
    count = 0
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # ended meanwhile
            count += (thread / "comm").read_text().strip() == name
    return count


def named_sockets(*names: str) -> set[str]:
    """Those of the abstract Unix sockets that somebody still has."""
    listed = Path("/proc/net/unix").read_text()
    return {name for name in names if name in listed}


def require_lane(lane: str) -> None:
    from megatronapp.rdma.capabilities import why_missing

    if reason := why_missing(lane):  # type: ignore[arg-type]
        pytest.skip(f"no lane {lane}: {reason}")


@contextmanager
def engines(lane: str, ranks: int = 2, **settings: Any) -> Iterator[list[Engine]]:
    """Connected with each other, over one lane."""
    require_lane(lane)
    store = HashStore()
    config = lane_config(lane, **({"connect_timeout_seconds": 20} | settings))
    made: list[Engine] = in_parallel([lambda r=r: Engine(r, ranks, store, config=config) for r in range(ranks)])
    try:
        in_parallel([lambda e=e: e.connect(range(ranks)) for e in made])
        yield made
    finally:
        in_parallel([lambda e=e: _close(e) for e in made])


def _close(engine: Engine) -> None:
    """However it stands: some tests leave messages open on purpose."""
    if engine.native.failed() or engine.unfinished:
        engine.abort("the test is over")
    engine.close(10)


__all__ = [
    "HOST_LANES",
    "Held",
    "LaneUnavailableError",
    "engines",
    "in_parallel",
    "lane_config",
    "named_sockets",
    "require_lane",
]

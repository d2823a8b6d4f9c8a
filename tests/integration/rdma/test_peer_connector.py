"""Ranks that find each other, and those that must not."""

from __future__ import annotations

import gc
import resource
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from megatronapp.rdma import (
    Config,
    Engine,
    HandshakeError,
    LaneUnavailableError,
    Spec,
    Tag,
    TransferTimeoutError,
    TransportError,
)
from tests.support.engines import engines, in_parallel


def attempt(action: Any) -> BaseException | None:
    try:
        action()
    except TransportError as error:
        return error
    return None


def pair(store: Any, settings: list[dict[str, Any]], configs: list[Config]) -> list[Engine]:
    return in_parallel(
        [lambda r=r: Engine(r, 2, store, config=configs[r], **settings[r]) for r in range(2)]  # type: ignore[misc]
    )


def outcomes(made: list[Engine]) -> list[BaseException | None]:
    found = in_parallel([lambda e=e: attempt(lambda: e.connect([0, 1])) for e in made])  # type: ignore[misc]
    for engine in made:
        engine.abort("over")
        engine.close()
    return found


QUICK = Config(connect_timeout_seconds=3)


def test_file_is_a_store(tmp_path: Path) -> None:
    made = pair(tmp_path / "store", [{}, {}], [QUICK, QUICK])
    in_parallel([lambda e=e: e.connect([0, 1]) for e in made])  # type: ignore[misc]

    assert str(made[0].lanes()[1]) == "shm"
    receive = made[0].irecv(Spec((2,), torch.int32), 1, Tag(1))
    made[1].isend(torch.tensor([1, 2], dtype=torch.int32), 0, Tag(1)).wait(5)
    receive.wait(5)
    in_parallel([lambda e=e: e.close() for e in made])  # type: ignore[misc]
    assert receive.tensor.tolist() == [1, 2]


def test_secret_that_differs_is_refused_at_once_by_the_caller() -> None:
    brief = Config(connect_timeout_seconds=1)
    made = pair(HashStore(), [{"secret": b"one"}, {"secret": b"another"}], [brief, brief])

    listening, calling = outcomes(made)

    assert isinstance(calling, HandshakeError)
    assert "rank 0 does not know this job's secret" in str(calling)
    assert isinstance(listening, TransferTimeoutError)
    assert "waited in vain for ranks [1]; turned away" in str(listening)


def test_other_attempt_of_the_job_is_not_met() -> None:
    brief = Config(connect_timeout_seconds=0.5)
    made = pair(HashStore(), [{"epoch": 1, "secret": b"s"}, {"epoch": 2, "secret": b"s"}], [brief, brief])

    listening, calling = outcomes(made)

    assert "waited in vain for ranks [1]" in str(listening)
    assert "rank 0 did not appear within" in str(calling)


def test_stranger_on_the_port_does_not_disturb() -> None:
    store = HashStore()
    made = pair(store, [{}, {}], [QUICK, QUICK])
    endpoint = made[0]._listener.endpoint
    with socket.create_connection((endpoint.address, endpoint.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        in_parallel([lambda e=e: e.connect([0, 1]) for e in made])  # type: ignore[misc]
    assert made[0].lanes().keys() == {1}
    in_parallel([lambda e=e: e.close() for e in made])  # type: ignore[misc]


def test_required_lane_that_is_missing_is_an_error_on_both() -> None:
    wants = Config(lanes=("shm", "tcp"), require=("shm",), connect_timeout_seconds=3)
    has_not = Config(lanes=("tcp",), connect_timeout_seconds=3)

    found = outcomes(pair(HashStore(), [{}, {}], [wants, has_not]))

    for error in found:
        assert isinstance(error, LaneUnavailableError)
        assert "lane shm between ranks" in str(error)
        assert "is required: rank 1: not allowed" in str(error)


def test_no_common_lane_is_an_error_on_both() -> None:
    configs = [Config(lanes=("shm",), connect_timeout_seconds=3), Config(lanes=("tcp",), connect_timeout_seconds=3)]

    found = outcomes(pair(HashStore(), [{}, {}], configs))

    assert all(isinstance(error, LaneUnavailableError) and "no lane between" in str(error) for error in found)


def test_different_configurations_are_refused() -> None:
    found = outcomes(pair(HashStore(), [{}, {}], [QUICK, Config(checksum=True, connect_timeout_seconds=3)]))

    assert all(
        isinstance(error, HandshakeError) and "another version or configuration" in str(error) for error in found
    )


def test_rank_that_does_not_come_is_named() -> None:
    engine = Engine(1, 3, HashStore(), secret=b"s", config=Config(connect_timeout_seconds=0.3))

    with pytest.raises(TransferTimeoutError, match="rank 0 did not appear within"):
        engine.connect([0])
    with pytest.raises(TransferTimeoutError, match=r"rank 1 waited in vain for ranks \[2\]"):
        engine.connect([2])
    engine.close()


def test_memory_that_cannot_be_shared_is_an_error_at_once() -> None:
    made = pair(HashStore(), [{}, {}], [QUICK, QUICK])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        found = outcomes(made)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert all("no shared memory with rank" in str(error) for error in found)
    assert any("no memory for shared memory" in str(error) for error in found)


def test_engines_leave_no_descriptor_behind() -> None:
    def opened() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    with engines("shm"):
        pass
    gc.collect()
    before = opened()
    for _ in range(3):
        with engines("shm"), engines("tcp"):
            pass

    gc.collect()
    assert opened() <= before

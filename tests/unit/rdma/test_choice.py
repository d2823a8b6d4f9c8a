"""Which lane is taken, and which configuration is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

from hypothesis import given
from hypothesis import strategies as st

from megatronapp.rdma import Config, LaneUnavailableError, Tag, neighbours
from megatronapp.rdma.config import LANES
from megatronapp.rdma.lanes import Capabilities, choose

OFFER = Capabilities(rank=0, protocol=(1,), host="a", pid_namespace="p", lanes=LANES, require=(), checksum=False)


def route(shared_memory: bool = True, gpus_reach: bool = True, **theirs: Any) -> str:
    return str(choose(OFFER, replace(OFFER, rank=1, **theirs), shared_memory=shared_memory, gpus_reach=gpus_reach))


def test_ranks_of_one_host_share_memory() -> None:
    assert route() == "shm+cuda_ipc"
    assert route(gpus_reach=False) == "shm"


def test_ranks_of_different_hosts_take_tcp_or_rdma() -> None:
    assert route(shared_memory=False) == "tcp"
    rdma = replace(OFFER, has_rdma=True)
    found = choose(rdma, replace(rdma, rank=1), shared_memory=False, gpus_reach=False)
    assert str(found) == "ucx"


def test_gpus_of_different_hosts_are_reached_through_host_memory() -> None:
    there = replace(OFFER, gpu="a")
    elsewhere = replace(OFFER, rank=1, gpu="b")

    assert str(choose(there, elsewhere, shared_memory=False, gpus_reach=False)) == "tcp+staged"
    assert str(choose(there, elsewhere, shared_memory=True, gpus_reach=False)) == "shm"  # refused with a reason instead
    with pytest.raises(LaneUnavailableError, match="cuda_ipc between ranks 0 and 1 is required"):
        choose(replace(there, require=("cuda_ipc",)), elsewhere, shared_memory=False, gpus_reach=False)


def test_lane_must_be_allowed_by_both() -> None:
    assert route(lanes=("tcp",)) == "tcp"


def test_containers_without_a_common_pid_namespace_get_no_gpu_lane() -> None:
    found = choose(OFFER, replace(OFFER, rank=1, pid_namespace="q"), shared_memory=True, gpus_reach=True)

    assert found.cuda is None
    assert "shareProcessNamespace" in found.refused["cuda_ipc"]


def test_required_lane_names_what_is_missing() -> None:
    with pytest.raises(LaneUnavailableError, match=r"cuda_ipc between ranks 0 and 1 is required: the GPUs can't reach"):
        route(gpus_reach=False, require=("cuda_ipc",))
    with pytest.raises(LaneUnavailableError, match="rank 1: no UCX"):
        route(lanes=("tcp", "shm"), require=("ucx",), missing={"ucx": "no UCX"})
    with pytest.raises(LaneUnavailableError, match="shm is faster"):
        route(require=("tcp",))


@given(st.data())
def test_both_ranks_choose_the_same(data: st.DataObject) -> None:
    lanes = st.lists(st.sampled_from(LANES), unique=True).map(tuple)
    offers = [
        replace(
            OFFER,
            rank=rank,
            lanes=data.draw(lanes),
            require=data.draw(lanes),
            has_rdma=data.draw(st.booleans()),
            pid_namespace=data.draw(st.sampled_from("pq")),
        )
        for rank in range(2)
    ]
    facts = {"shared_memory": data.draw(st.booleans()), "gpus_reach": data.draw(st.booleans())}

    def outcome(mine: Capabilities, theirs: Capabilities) -> str:
        try:
            return str(choose(mine, theirs, **facts))
        except LaneUnavailableError:
            return "none"

    assert outcome(offers[0], offers[1]) == outcome(offers[1], offers[0])


def test_offer_survives_the_way() -> None:
    import json

    assert Capabilities.from_json(json.loads(json.dumps(OFFER.to_json()))) == OFFER


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lanes": ("shn",)}, "no lane 'shn': there are shm, cuda_ipc, ucx, tcp"),
        ({"lanes": ("tcp",), "require": ("shm",)}, "required but not allowed: shm"),
        ({"dead_after_seconds": 1.0}, "two heartbeats"),
        ({"deadline_seconds": 0}, "must be positive"),
    ],
)
def test_configuration_that_makes_no_sense_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Config(**settings)


@given(
    st.tuples(
        st.integers(0, 15), st.integers(0, 255), st.integers(0, (1 << 20) - 1), st.integers(0, 4095), st.integers(0, 15)
    ),
    st.integers(0, (1 << 16) - 1),
)
def test_tag_keeps_its_fields(fields: tuple[int, int, int, int, int], source: int) -> None:
    packed = Tag(*fields).pack(source)

    found = (packed >> 60, packed >> 40 & 255, packed >> 20 & 0xFFFFF, packed >> 48 & 4095, packed >> 16 & 15)
    assert found == fields
    assert packed & 0xFFFF == source


def test_neighbours_of_a_ring() -> None:
    assert neighbours([4, 5, 6, 7], 4) == [5, 7]
    assert neighbours([4, 5], 5) == [4]
    assert neighbours([4], 4) == []

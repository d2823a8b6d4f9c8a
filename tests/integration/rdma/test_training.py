"""Training over the native transport has the losses of torch's, bit for bit."""

from __future__ import annotations

import json
import socket

import pytest

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

from torch.distributed import HashStore

from megatronapp.core.errors import TrainingError
from megatronapp.rdma import flags as rdma_flags
from megatronapp.trainer.config import ParallelConfig
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.pipeline.native import connected_engine
from megatronapp.trainer.plugins.scan import ScanPlugin
from tests.support.forked import run_forked
from tests.support.training import TINY, train

PIPELINE = "--pipeline-model-parallel-size 2"
INTERLEAVED = f"{PIPELINE} --num-layers-per-virtual-pipeline-stage 1"


def rank(flags: str, plugins: tuple[type, ...] = ()) -> list[float]:
    return train(f"{TINY} --train-iters 6 {flags}", plugins=plugins).losses


@pytest.mark.parametrize(
    "layout", [pytest.param(PIPELINE, id="1F1B", marks=pytest.mark.long), pytest.param(INTERLEAVED, id="interleaved")]
)
def test_native_transport_changes_no_bit(layout: str) -> None:
    changes_no_bit(layout)


def changes_no_bit(layout: str) -> None:
    evaluated = f"{layout} --eval-interval 3 --eval-iters 1"
    stock = run_forked(2, rank, evaluated)[-1]
    native = run_forked(2, rank, f"{evaluated} --p2p-transport native --workload 4096 --num-gpus 2")[-1]

    assert len(native) == 6
    assert native == stock


def test_tracing_sees_the_messages_of_the_native_transport(tmp_path) -> None:
    trace = f"--trace --trace-dir {tmp_path} --trace-granularity full --trace-interval 2"
    native = run_forked(2, rank, f"{PIPELINE} --p2p-transport native {trace}", (ScanPlugin,))[-1]

    assert len(native) == 6
    assert any(tmp_path.rglob("*.pb"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_gpus": 4}, "--num-gpus 4, but the launcher starts 2 ranks"),
        ({"num_gpus": 2, "world_size": 4}, "add --multi-node"),
        ({"node_ips": ["10.0.0.1"]}, "one for each of 2 ranks"),
        ({"node_ips": ["10.0.0.1", "host"]}, "--node-ips host is no IP address"),
        ({"workload": 1}, "too small"),
    ],
)
def test_flags_that_contradict_are_refused(given, words) -> None:
    with pytest.raises(ValueError, match=words):
        rdma_flags.settings(**({"rank": 1, "world_size": 2, "ranks_per_node": 2} | given))


NOT_OWN = "203.0.113.7"


def test_an_address_that_is_not_this_ranks_is_said_with_the_flag_to_change() -> None:
    config = ParallelConfig(node_ips=("127.0.0.1", NOT_OWN))

    with pytest.raises(
        TrainingError, match=rf"can't listen on {NOT_OWN}: .*; --node-ips must name, for each rank"
    ) as said:
        connected_engine(config, Environment(rank=1, world_size=2), HashStore(), [0])

    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    ("node_ips", "says"),
    [(("127.0.0.1", "127.0.0.1"), "--node-ips must name"), ((), "name one for each rank with --node-ips")],
)
def test_a_rank_that_nobody_reaches_is_said_with_the_flag_to_change(node_ips: tuple[str, ...], says: str) -> None:
    environment, store = Environment(rank=1, world_size=2), HashStore()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    where = {"address": "127.0.0.1", "port": port, "local": "", "host": "another"}
    store.set(f"megatronapp.rdma/{environment.job}/{environment.attempt}/0", json.dumps(where))

    with pytest.raises(TrainingError, match=f"nobody answers at 127.0.0.1:{port}: .*; .*{says}") as said:
        connected_engine(ParallelConfig(node_ips=node_ips), environment, store, [0], "tcp")

    assert "\n" not in str(said.value)


def test_flags_are_translated() -> None:
    found = rdma_flags.settings(
        rank=1,
        world_size=4,
        ranks_per_node=2,
        num_gpus=2,
        multi_node=True,
        workload=1 << 20,
        node_ips=["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"],
    )

    assert found == {"address": "10.0.0.2", "chunk_bytes": 2 << 20}

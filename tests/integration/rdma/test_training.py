"""Training over the native transport has the losses of torch's, bit for bit."""

from __future__ import annotations

import pytest

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

from megatronapp.rdma import flags as rdma_flags
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
        ({"node_ips": ["10.0.0.1", "host"]}, "host"),
        ({"workload": 1}, "too small"),
    ],
)
def test_flags_that_contradict_are_refused(given, words) -> None:
    with pytest.raises(ValueError, match=words):
        rdma_flags.settings(**({"rank": 1, "world_size": 2, "ranks_per_node": 2} | given))


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

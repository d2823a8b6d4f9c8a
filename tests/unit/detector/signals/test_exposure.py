"""Who of several is waited for, where messages run beside passes."""

import numpy as np
import pytest

from megatronapp.detector.formats.rows import make_rows
from megatronapp.detector.signals import exposure, links
from megatronapp.detector.signals.exposure import Exposure
from megatronapp.detector.steps import RankTable, StepTable
from megatronapp.v1 import trace_pb2

REPLICAS, MESSAGE_BYTES = 8, 1 << 25
SUSPECTS = frozenset(range(REPLICAS, 2 * REPLICAS))
FIRST, ONSET, LAST = 1, 41, 45


def step_of(step: int, waited: np.ndarray, send_seconds: float = 1e-6) -> StepTable:
    """Two stages; each rank of the second waits so long for the messages of the first, which sends them."""
    stage = np.arange(REPLICAS)
    world = 2 * REPLICAS
    seconds = np.concatenate([np.full(REPLICAS, send_seconds), waited])
    none = np.zeros(world, int)
    return StepTable(
        step=step,
        ranks=RankTable(
            rank=np.arange(world),
            pipeline=np.arange(world) // REPLICAS,
            data=np.arange(world) % REPLICAS,
            tensor=none,
            context=none,
            expert=none,
            node=np.full(world, "node-0"),
            gpu_uuid=np.full(world, ""),
            device=np.full(world, ""),
            on_cpu=np.zeros(world, bool),
        ),
        rows=make_rows(
            {
                "rank": np.arange(world),
                "operation": np.arange(world) // REPLICAS,
                "peer": np.concatenate([stage + REPLICAS, stage]),
                "count": np.ones(world),
                "duration": seconds,
                "duration_min": seconds,
                "duration_max": seconds,
                "bytes": np.full(world, MESSAGE_BYTES),
            }
        ),
        operations=("forward_send", "forward_recv"),
        kinds=np.full(2, trace_pb2.SPAN_KIND_P2P),
        communicators=(),
        start=np.full(world, np.nan),
        duration=np.ones(world),
        cpu=np.zeros(world),
    )


def observed(excess: np.ndarray, send_seconds: float = 1e-6, seed: int = 0) -> Exposure:
    """Healthy steps, then some in which transfers are slow and ranks are waited for so much longer."""
    random, seen = np.random.default_rng(seed), Exposure()
    for step in range(FIRST, LAST + 1):
        waited = 0.1 + random.normal(0, 0.01, REPLICAS) + (excess if step >= ONSET else 0.0)
        table = step_of(step, waited, send_seconds)
        sent = links.messages(table, np.zeros(len(table.ranks), bool))
        seen.observe(table, sent, slow=step > ONSET)
    return seen


def excess_of(*replicas: int, seconds: float = 0.1) -> np.ndarray:
    return np.where(np.isin(np.arange(REPLICAS), replicas), seconds, 0.0)


@pytest.mark.parametrize("culprits", [(3,), (0, 5)])
def test_whoever_is_waited_for_longer_stands_out(culprits: tuple[int, ...]) -> None:
    seen = observed(excess_of(*culprits))

    assert seen.standing_out(SUSPECTS, ONSET) == {REPLICAS + each for each in culprits}


@pytest.mark.parametrize("seed", range(20))
def test_nobody_stands_out_where_all_are_waited_for_alike(seed: int) -> None:
    seen = observed(excess_of(*range(REPLICAS)), seed=seed)

    assert seen.standing_out(SUSPECTS, ONSET) == frozenset()


def test_messages_that_show_their_own_time_need_no_exposure() -> None:
    seen = observed(excess_of(3), send_seconds=MESSAGE_BYTES / exposure.FASTEST_LINK * 1.1)

    assert not seen.may_tell(SUSPECTS)
    assert seen.standing_out(SUSPECTS, ONSET) == frozenset()


def test_who_has_stood_out_stays_so_while_transfers_are_slow() -> None:
    seen = observed(excess_of(3))
    seen.standing_out(SUSPECTS, ONSET)
    for step in range(LAST + 1, LAST + 20):
        table = step_of(step, np.full(REPLICAS, 0.1))
        seen.observe(table, links.messages(table, np.zeros(len(table.ranks), bool)), slow=True)

    assert seen.standing_out(SUSPECTS, ONSET) == {REPLICAS + 3}


def test_a_new_fault_is_judged_anew() -> None:
    seen = observed(excess_of(3))
    seen.standing_out(SUSPECTS, ONSET)
    healthy = step_of(LAST + 1, np.full(REPLICAS, 0.1))
    sent = links.messages(healthy, np.zeros(len(healthy.ranks), bool))
    seen.observe(healthy, sent, slow=False)
    seen.observe(step_of(LAST + 2, np.full(REPLICAS, 0.1)), sent, slow=True)

    assert seen.standing_out(SUSPECTS, LAST + 2) == frozenset()

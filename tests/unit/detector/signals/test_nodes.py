"""A node that is slow as a whole: one excursion, told once it outlives what ends by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from megatronapp.detector.signals.nodes import Nodes, SlowNode
from megatronapp.detector.statistics.excursions import PAGED, TOLD, USUAL_STEPS, Excursions
from megatronapp.detector.statistics.monitor import Monitor
from megatronapp.detector.statistics.noise import Noise
from megatronapp.detector.steps import Floats, RankTable

RANKS, PER_NODE, SLOWER = 64, 8, 0.05
NOBODY = SlowNode({}, 0, 0)
NOISE = Noise(floor=0.0033, prior=0.01, clip=4.5, allowance=0.05, smallest=0.02, peers=True)


class Job:
    """Of healthy ranks, but for what a step adds."""

    def __init__(self, ranks: int = RANKS) -> None:
        place = np.arange(ranks)
        self.table = RankTable(
            rank=place,
            pipeline=np.zeros(ranks, np.int64),
            data=place,
            tensor=np.zeros(ranks, np.int64),
            context=np.zeros(ranks, np.int64),
            expert=np.zeros(ranks, np.int64),
            node=np.array([f"node-{rank // PER_NODE}" for rank in place]),
            gpu_uuid=np.full(ranks, ""),
            device=np.full(ranks, ""),
            on_cpu=np.zeros(ranks, bool),
        )
        self.nodes, self.monitor, self._step = Nodes(), Monitor(NOISE, log_threshold=16.0), 0
        self._random = np.random.default_rng(3)

    def run(self, steps: int, slower: Floats) -> None:
        for _ in range(steps):
            self._step += 1
            self.monitor.observe(self._step, self.table.rank, slower + self._random.normal(0, 0.004, len(self.table)))
            self.nodes.observe(self.table, {"compute_effect": self.monitor})


def slow(*ranks: int, of: int = RANKS) -> Floats:
    slower = np.zeros(of)
    slower[list(ranks)] = SLOWER
    return slower


def test_a_node_that_is_slow_for_some_steps_is_told_to_nobody() -> None:
    job = Job()
    job.run(40, slow())

    job.run(12, slow(*range(8, 16)))

    assert set(job.nodes.slow["node-1"].ranks) == set(range(8, 16))
    assert not job.nodes.slow["node-1"].opened
    job.run(20, slow())
    assert job.nodes.slow == {}


def test_a_node_that_stays_slow_is_told_then_paged() -> None:
    job, told = Job(), math.ceil(USUAL_STEPS * math.log(TOLD))
    job.run(40, slow())

    job.run(told, slow(*range(8, 16)))

    assert (job.nodes.slow["node-1"].opened, job.nodes.slow["node-1"].paged) == (True, False)
    job.run(math.ceil(USUAL_STEPS * math.log(PAGED)) - told, slow(*range(8, 16)))
    assert job.nodes.slow["node-1"].paged


def test_a_burst_of_a_node_in_an_attempts_first_steps_is_no_slow_rank() -> None:
    job, burst = Job(), 0.4 * slow(*range(8, 16))
    devices = np.random.default_rng(5).normal(0, 0.006, RANKS)
    devices[8:16] = 0.0
    devices[9] = 0.014
    job.run(9, devices)

    job.run(24, devices + burst)

    assert np.flatnonzero(job.monitor.alarmed).tolist() == [9]
    assert np.median(job.monitor.baseline[8:16]) > 0.5 * burst[8]  # the others' histories are of the burst
    assert set(job.nodes.slow["node-1"].ranks) == {9}


@pytest.mark.parametrize(("own", "shared"), [(0.015, True), (0.035, False)])
def test_a_new_rank_of_a_slow_node_is_its_own_where_it_is_slower_than_devices_are(own: float, shared: bool) -> None:
    """Devices differ by 0.4 %: by 1.5 % one of ten thousand, by 3.5 % none."""
    job, devices = Job(512), np.random.default_rng(5).normal(0, 0.004, 512)
    devices[8:16], devices[9] = 0.0, own

    job.run(10, devices + 0.27 * slow(*range(8, 16), of=512))

    assert np.flatnonzero(job.monitor.alarmed).tolist() == [9]
    assert ("node-1" in job.nodes.slow) == shared


def test_what_a_node_has_raised_is_never_its_ranks_own_without_steps_that_show_it_once_the_node_is_fast_again() -> None:
    job, devices = Job(512), np.random.default_rng(5).normal(0, 0.004, 512)
    devices[8:16], devices[9] = 0.0, 0.016
    job.run(12, devices)
    alone, shared = list[int](), list[int]()

    for step in range(28):
        job.run(1, devices + (step < 12) * 0.3 * slow(*range(8, 16), of=512))
        if job.monitor.alarmed[9]:
            (shared if 9 in job.nodes.slow.get("node-1", NOBODY).ranks else alone).append(step)

    assert shared
    assert alone == []


def test_when_a_node_is_fast_again_alarms_of_other_signals_are_judged_anew_too() -> None:
    job, other = Job(), Monitor(NOISE, log_threshold=16.0)
    monitors = {"compute_effect": job.monitor, "own_history": other}
    random, first = np.random.default_rng(4), 0
    for step in range(1, 91):
        burst = slow(*range(8, 16)) if 40 < step <= 52 else slow()
        for monitor, slower in ((job.monitor, burst), (other, slow(9) if step > 40 else slow())):
            monitor.observe(step, job.table.rank, slower + random.normal(0, 0.004, RANKS))
        job.nodes.observe(job.table, monitors)
        if step > 52 and not first and not job.monitor.alarmed[9]:
            first = step
            assert not other.alarmed[9]

    assert first
    assert other.alarmed[9]  # it is slow by itself, and steps since have told
    assert job.nodes.slow == {}


@pytest.mark.parametrize("ranks", [(9,), (9, 10)])
def test_one_or_two_slow_ranks_are_not_their_node(ranks: tuple[int, ...]) -> None:
    job = Job()
    job.run(40, slow())

    job.run(12, slow(*ranks))

    assert np.flatnonzero(job.monitor.alarmed).tolist() == list(ranks)
    assert job.nodes.slow == {}


def test_a_rank_that_stays_slow_when_its_node_is_fast_again_is_its_own() -> None:
    job = Job()
    job.run(40, slow())
    job.run(8, slow(*range(8, 16)))

    job.run(20, slow(9))

    assert job.monitor.alarmed[9]
    assert job.nodes.slow == {}


def test_the_only_node_of_a_job_has_nobody_to_be_compared_with() -> None:
    job = Job(PER_NODE)
    job.run(40, slow(of=PER_NODE))

    job.run(12, slow(0, 1, 2, of=PER_NODE))

    assert job.nodes.slow == {}


def test_patience_is_learnt_from_excursions_that_ended() -> None:
    long, short = Excursions(), Excursions()
    for _ in range(200):
        long.learn(40)
        short.learn(2)

    assert long.outlived_by_one_in(PAGED) == pytest.approx(40 * math.log(PAGED), rel=0.05)
    assert short.outlived_by_one_in(PAGED) < USUAL_STEPS * math.log(PAGED) < long.outlived_by_one_in(PAGED)

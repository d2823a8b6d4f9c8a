from __future__ import annotations

import numpy as np

from bench.scale.feeds import TableFeed
from bench.scale.job import Job, Spec
from bench.scale.layout import Layout
from bench.scale.scenarios import MODELS
from megatronapp.detector.signals import matrix
from megatronapp.detector.signals.compute import effect
from megatronapp.detector.signals.matrix import Compute
from megatronapp.detector.signals.replicas import with_work_of_replicas
from megatronapp.detector.signals.work import WorkModel
from megatronapp.detector.steps import RankTable

STAGES, REPLICAS, MICROBATCHES = 3, 2, 4
SQUARES = np.array([100.0, 300.0])
"""Of a replica's pass."""


def ranks() -> RankTable:
    stage, replica = np.divmod(np.arange(STAGES * REPLICAS), REPLICAS)
    zeros, unknown = np.zeros_like(stage), np.full(len(stage), "")
    return RankTable(
        rank=np.arange(len(stage)),
        pipeline=stage,
        data=replica,
        tensor=zeros,
        context=zeros,
        expert=zeros,
        node=unknown,
        gpu_uuid=unknown,
        device=unknown,
        on_cpu=np.zeros(len(stage), bool),
    )


def compute(telling: tuple[int, ...], starved: tuple[int, ...] = ()) -> Compute:
    """One key; ranks of the stages `telling` say what their microbatches are, those `starved` have lost one pass."""
    table = ranks()
    passes = np.full((len(table), 1), float(MICROBATCHES))
    count = passes - np.isin(table.rank, starved)[:, None]
    tells = np.isin(table.pipeline, telling)[:, None]
    seconds = np.ones_like(passes)
    return Compute(
        operations=("forward",),
        chunks=(0,),
        seconds=seconds,
        count=count,
        tokens=np.where(tells, 10.0 * count, 0.0),
        length_squares=np.where(tells, SQUARES[table.data][:, None] * count, 0.0),
        elapsed=seconds,
        passes=passes,
        fastest=seconds,
    )


def test_stages_that_do_not_read_the_data_have_the_work_of_those_that_do() -> None:
    found = with_work_of_replicas(compute(telling=(0, 2)), ranks())

    assert found.length_squares[:, 0].tolist() == (MICROBATCHES * SQUARES[ranks().data]).tolist()
    assert found.tokens[:, 0].tolist() == [10.0 * MICROBATCHES] * len(ranks())


def test_where_all_tell_or_none_does_nothing_changes() -> None:
    for telling in ((0, 1, 2), ()):
        given = compute(telling)

        assert with_work_of_replicas(given, ranks()) is given


def test_what_waited_for_its_host_neither_gives_nor_is_given() -> None:
    """Rank 0, of replica 0, has left out one of its passes; rank 3, of replica 1, too."""
    found = with_work_of_replicas(compute(telling=(0,), starved=(0, 3)), ranks())

    assert found.length_squares[[2, 4], 0].tolist() == [0.0, 0.0]
    assert found.length_squares[3, 0] == 0.0
    assert found.length_squares[5, 0] == MICROBATCHES * SQUARES[1]


def test_a_middle_stages_effect_does_not_follow_its_data() -> None:
    """Data bucketed by length makes a replica's steps differ by 15 %; its devices vary by less than 1 %."""
    layout, buckets = Layout(pp=4, dp=8, tp=1, microbatches=8), MODELS["buckets"]
    job = Job(Spec(layout, 15.0, buckets.noise, workload=buckets.workload), 1, "replicas")
    feed, work, healthy = TableFeed(job), WorkModel(), np.ones(layout.world, bool)

    effects = []
    for _ in range(40):
        step = job.step()
        list(feed.step(step))
        table = feed.engine.newest
        assert table is not None
        effects.append(effect(table, matrix.compute(table), work, healthy).beside_peers)

    spread = np.std(effects[20:], axis=0).reshape(layout.pp, -1).mean(axis=1)
    assert spread[1:-1].max() < 1.5 * spread[[0, -1]].max()

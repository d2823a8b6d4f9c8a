"""Kernels and gaps of a GPU's timeline."""

from bench.trace_timeline import Kernel, Timeline, compare

REDUCE = "ncclDevKernel_ReduceScatter_Sum_f32"


def test_time_is_that_of_collectives_of_other_kernels_and_of_none() -> None:
    timeline = Timeline.of(
        [Kernel("gemm", 0, 2000), Kernel(REDUCE, 3000, 7000), Kernel("adam", 7500, 8500), Kernel("gemm", 8500, 9000)]
    )

    assert (timeline.collectives_ms, timeline.others_ms, timeline.idle_ms) == (4.0, 3.5, 1.5)
    assert timeline.gaps_ms == {("gemm", REDUCE): 1.0, (REDUCE, "adam"): 0.5}


def test_kernels_beside_each_other_count_once() -> None:
    timeline = Timeline.of([Kernel(REDUCE, 0, 4000), Kernel("gemm", 1000, 3000), Kernel("gemm", 3500, 6000)])

    assert (timeline.collectives_ms, timeline.others_ms, timeline.idle_ms) == (4.0, 2.0, 0.0)


def test_modes_are_compared_by_the_step() -> None:
    usual = Timeline.of([Kernel("gemm", 0, 1000), Kernel(REDUCE, 1000, 2000)])
    other = Timeline.of([Kernel("gemm", 0, 1000), Kernel(REDUCE, 1400, 2800)])

    compared = compare(usual, other, steps=2)

    assert compared["collectives_ms"] == [0.7, 0.2]
    assert compared["idle_ms"] == [0.2, 0.2]
    assert compared["gaps"] == [["gemm", REDUCE, 0.2]]

"""What bench.fbd makes of a recording of torch's profiler."""

from __future__ import annotations

from typing import Any

import pytest

from bench._fbd_kernels import OUTSIDE, lanes_of

HOST, AUTOGRAD = 1, 2


def event(category: str, name: str, begin: int, duration: int, thread: int = HOST, launch: int = 0) -> dict[str, Any]:
    """As the profiler writes it, in microseconds. launch: what joins a kernel with its launch."""
    args = {"correlation": launch} if launch else {}
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": duration, "tid": thread, "args": args}


def lane(name: str, begin: int, duration: int) -> dict[str, Any]:
    return event("user_annotation", f"lane {name}", begin, duration)


def test_a_kernel_belongs_to_the_innermost_lane_that_it_was_launched_in() -> None:
    launches = [
        event("cuda_runtime", "cudaLaunchKernel", 110, 5, launch=1),
        event("cuda_runtime", "cudaLaunchKernel", 150, 5, AUTOGRAD, launch=2),
        event("cuda_runtime", "cudaLaunchKernel", 185, 5, launch=3),
        event("cuda_runtime", "cudaMemcpyAsync", 300, 5, launch=4),
    ]
    on_device = [
        event("kernel", "norm", 500, 30, launch=1),
        event("kernel", "product", 530, 100, launch=2),
        event("kernel", "norm", 630, 40, launch=3),
        event("gpu_memcpy", "copy", 700, 10, launch=4),
    ]

    lanes = lanes_of([lane("B", 100, 100), lane("W", 140, 40), *launches, *on_device])

    assert lanes["B"].kernels == {"norm": 70}
    assert lanes["B"].calls == {"norm": 2}
    assert lanes["W"].kernels == {"product": 100}
    assert lanes[OUTSIDE].kernels == {"copy": 10}
    assert lanes["B"].in_driver == {"cudaLaunchKernel": 10}


def test_the_time_of_the_host_is_the_innermost_lanes() -> None:
    lanes = lanes_of([lane("B", 100, 100), lane("W", 140, 40), lane("W", 185, 10), lane("R", 200, 30)])

    assert {name: each.host for name, each in lanes.items()} == {"B": 50, "W": 50, "R": 30}
    assert {name: each.entered for name, each in lanes.items()} == {"B": 1, "W": 2, "R": 1}


def test_a_device_is_idle_where_none_of_its_streams_runs() -> None:
    times = {1: (200, 50), 2: (210, 10), 3: (270, 5)}
    launches = [event("cuda_runtime", "launch", 110 + number, 1, launch=number) for number in times]
    streams = [event("kernel", f"k{number}", *when, launch=number) for number, when in times.items()]

    lanes = lanes_of([lane("R", 100, 100), *launches, *streams])

    assert lanes["R"].busy == pytest.approx(50 + 10 + 5)
    assert lanes["R"].idle == pytest.approx(20)


def test_operators_within_others_are_not_counted() -> None:
    operators = [
        event("cpu_op", "aten::linear", 110, 20),
        event("cpu_op", "aten::matmul", 112, 10),
        event("cpu_op", "aten::add", 131, 2),
        event("cpu_op", "aten::mul", 132, 2, AUTOGRAD),
    ]

    assert lanes_of([lane("R", 100, 100), *operators])["R"].operators == 3

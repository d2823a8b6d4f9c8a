"""The plug-in as a whole: nothing is hooked without it, nothing stops training, and its trace survives."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist
from megatron.core.pipeline_parallel import p2p_communication, schedules
from megatron.core.tensor_parallel import mappings

from megatronapp.core.trace import file as trace_file
from megatronapp.core.trace.values import Progress
from megatronapp.trainer.plugins.scan import ScanPlugin
from megatronapp.trainer.plugins.scan.memory import READ_EVERY_NS
from megatronapp.v1.trace_pb2 import Heartbeat
from tests.integration.trainer.plugins.scan.traced import losses_of, read
from tests.support.forked import RankFailedError, run_forked
from tests.support.training import TINY, train

HOOKED = (
    (schedules, "forward_step"),
    (schedules, "backward_step"),
    (p2p_communication, "_p2p_ops"),
    (p2p_communication, "_batched_p2p_ops"),
    (dist, "all_reduce"),
    (dist, "_coalescing_manager"),
    (mappings, "dist_all_gather_func"),
)


def hooked_before_and_after(flags: str) -> tuple[bool, bool, set[str]]:
    """(all as it was after the run, a model's forward was rebound in it, modules of the model still rebound)."""
    before = [getattr(owner, name) for owner, name in HOOKED]
    chunks: list[object] = []
    rebound: set[str] = set()

    class Spy(ScanPlugin):
        def models(self, models: object) -> None:
            super().models(models)  # type: ignore[arg-type]
            chunks.extend(models)  # type: ignore[arg-type]

        def step_end(self, step: int, progress: Progress | None) -> None:
            rebound.update(name for name, m in chunks[0].named_modules() if "forward" in vars(m))  # type: ignore[attr-defined]
            super().step_end(step, progress)

    train(f"{TINY} {flags}", plugins=(Spy,))
    left = {name for name, m in chunks[0].named_modules() if "forward" in vars(m)}  # type: ignore[attr-defined]
    return before == [getattr(owner, name) for owner, name in HOOKED], bool(rebound), left


def test_after_the_run_everything_is_as_it_was(tmp_path: Path) -> None:
    ((restored, in_window, left),) = run_forked(
        1, hooked_before_and_after, f"--train-iters 3 --trace --trace-dir {tmp_path}"
    )

    assert restored
    assert in_window
    assert left == set()


def test_at_granularity_base_the_model_carries_nothing(tmp_path: Path) -> None:
    ((_, in_window, _),) = run_forked(
        1, hooked_before_and_after, f"--train-iters 2 --trace --trace-granularity base --trace-dir {tmp_path}"
    )

    assert not in_window


def places_of_memory(read_before_seconds: float, *, optimizer: bool) -> list[str]:
    """What happens in a step whose allocator was asked so long before it; with or without hooks on the optimizer."""
    places: list[str] = []

    class Gauge:
        age_seconds = read_before_seconds

        def poll(self, now_ns: int, after_ns: int = READ_EVERY_NS) -> tuple[int, int, int, int] | None:
            if self.age_seconds * 1e9 < after_ns:
                return None
            self.age_seconds = 0
            places.append("read")
            return 1, 2, 3, 4

    class Noting(ScanPlugin):
        def step_begin(self, step: int) -> None:
            self._memory = Gauge()  # type: ignore[assignment]
            super().step_begin(step)

        def step_end(self, step: int, progress: Progress | None) -> None:
            super().step_end(step, progress)
            places.append("end")

        def optimizer(self, step: Callable[[], object]) -> Callable[[], object]:
            def stepped() -> object:
                places.append("optimizer")
                return step()

            return super().optimizer(stepped) if optimizer else stepped

    train(f"{TINY} --train-iters 1 --trace", plugins=(Noting,))
    return places


@pytest.mark.parametrize(
    ("read_before_seconds", "optimizer", "places"),
    [
        (1.5, True, ["read", "optimizer", "end"]),
        (0.5, True, ["optimizer", "end"]),
        (1.5, False, ["optimizer", "end"]),
        (2.5, False, ["optimizer", "read", "end"]),
    ],
)
def test_memory_is_read_where_the_host_waits_anyway(
    read_before_seconds: float, optimizer: bool, places: list[str]
) -> None:
    assert run_forked(1, partial(places_of_memory, optimizer=optimizer), read_before_seconds) == [places]


def test_with_the_collector_absent_training_runs_as_ever() -> None:
    flags = "--train-iters 3 --pipeline-model-parallel-size 2"

    absent = run_forked(2, losses_of, f"{flags} --trace --collector-address 127.0.0.1:9", (ScanPlugin,))

    assert absent[-1] == run_forked(2, losses_of, flags, ())[-1]


def test_a_killed_rank_leaves_a_readable_file(tmp_path: Path) -> None:
    flags = f"{TINY} --train-iters 20000 --trace --trace-dir {tmp_path}"  # more than it will ever live to see
    process = multiprocessing.get_context("forkserver").Process(
        target=train, args=(flags,), kwargs={"plugins": (ScanPlugin,)}
    )
    process.start()
    path = trace_file.path_for(tmp_path, "local/train", 1, 0)
    deadline = time.monotonic() + 90
    try:
        while not (path.exists() and path.stat().st_size > 30_000):
            assert process.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.kill()
        process.join()

    trace = read(path)
    steps = [summary.step for summary in trace.summaries]
    assert steps == list(range(1, len(steps) + 1))
    assert not any(heartbeat.closing for heartbeat in trace.heartbeats)


def hang(folder: str) -> None:
    """Two ranks; the second never enters its third step's reduction, and goes once the first was seen to wait there."""

    class Hanging(ScanPlugin):
        def step_begin(self, step: int) -> None:
            super().step_begin(step)
            if step == 3 and os.environ["RANK"] == "1":
                while not stuck_beats(trace_file.path_for(Path(folder), "local/train", 1, 0)):
                    time.sleep(0.1)
                os._exit(0)

    flags = f"--train-iters 4 --trace --trace-dir {folder}"
    try:
        train(f"{TINY} {flags}", plugins=(Hanging,))
    except RuntimeError:  # the peer is gone
        os._exit(0)


def stuck_beats(path: Path) -> list[Heartbeat]:
    """Beats come at moments of each rank's own, also while the last step begins and while the peer's death ends it."""
    beats = [message.heartbeat for message in trace_file.read(path)] if path.exists() else []
    return [beat for beat in beats if beat.step == 3 and beat.activity == "all_reduce"]


def test_heartbeats_of_a_hang_tell_who_waits_in_what_and_who_never_came(tmp_path: Path) -> None:
    run_in_background_until_dead(str(tmp_path))

    waiting, absent = (read(trace_file.path_for(tmp_path, "local/train", 1, rank)) for rank in (0, 1))
    stuck = stuck_beats(trace_file.path_for(tmp_path, "local/train", 1, 0))[-1]
    behind = {waiting.communicators[f.communicator].id: f for f in stuck.frontiers if f.completed < f.enqueued}
    assert list(behind) == ["dp_cp:0-1"]
    (frontier,) = behind.values()
    assert frontier.operation == "all_reduce"
    peers = {absent.communicators[f.communicator].id: f for f in absent.heartbeats[-1].frontiers}
    assert peers["dp_cp:0-1"].enqueued < frontier.enqueued


def run_in_background_until_dead(folder: str) -> None:
    with contextlib.suppress(RankFailedError):  # ranks die without a word here
        run_forked(2, hang, folder, timeout=100)

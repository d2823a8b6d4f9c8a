"""Real ranks with real faults: what acts where, and that everything else stays as it is."""

import os
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.trainer.plugins.base import Plugin
from megatronapp.trainer.plugins.faults import FaultsPlugin
from tests.support.forked import RankFailedError, run_forked
from tests.support.training import TINY, train

STEPS = 8
FROM_STEP = 5
SECONDS = 0.2


class Timekeeper(Plugin):
    """Seconds per step spent between two calls of the trainer: under each timer (of processor time, too), for data,
    before work."""

    name: ClassVar[str] = "timekeeper"
    seconds: ClassVar[dict[str, dict[int, float]]] = {}

    @classmethod
    def create(cls, args: Any, context: Any) -> "Timekeeper":
        plugin = cls()
        context.timers.listeners.insert(0, plugin)
        return plugin

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._processor: dict[str, float] = {}
        self._step = 0
        self.seconds.clear()

    def start(self, name: str) -> None:
        self._began[name], self._processor[name] = time.perf_counter(), time.thread_time()
        if "begin" in self._began:
            self._add("host", time.perf_counter() - self._began.pop("begin"))

    def stop(self, name: str) -> None:
        self._add(name, time.perf_counter() - self._began[name])
        self._add(f"{name} of the processor", time.thread_time() - self._processor[name])

    def data(self, iterator: Any) -> Any:
        while True:
            began = time.perf_counter()
            batch = next(iterator, None)
            self._add("data", time.perf_counter() - began)
            if batch is None:
                return
            yield batch

    def step_begin(self, step: int) -> None:
        self._step = step
        self._began["begin"] = time.perf_counter()

    def _add(self, name: str, seconds: float) -> None:
        of_step = self.seconds.setdefault(name, {})
        of_step[self._step] = of_step.get(self._step, 0.0) + seconds


def rank(flags: str) -> tuple[list[float], dict[str, dict[int, float]]]:
    """Losses (of the last rank) and seconds, of one training run."""
    recording = train(f"{TINY} --train-iters {STEPS} {flags}", plugins=(Timekeeper, FaultsPlugin))
    return recording.losses, Timekeeper.seconds


def scenario(folder: Path, fault: str) -> str:
    file = folder / "scenario.yaml"
    file.write_text(f"faults: [{{{fault}, from_step: {FROM_STEP}}}]")
    return f"--fault-scenario {file}"


def slow_and_clean(seconds: dict[int, float]) -> tuple[float, float]:
    """The fastest step with the fault, and the fastest one without: noise only adds to a step."""
    slow = min(value for step, value in seconds.items() if step >= FROM_STEP)
    return slow, min(value for step, value in seconds.items() if step < FROM_STEP)


@pytest.mark.parametrize(
    ("fault", "flags", "world", "where"),
    [
        (f"kind: host_stall, ranks: [0], seconds: {SECONDS}", "", 1, "host"),
        pytest.param(f"kind: data_stall, ranks: [0], seconds: {SECONDS}", "", 1, "data", marks=pytest.mark.long),
        pytest.param(
            f"kind: late_link, ranks: [0], seconds: {SECONDS}", "", 1, "all-grads-sync", marks=pytest.mark.long
        ),
        (
            f"kind: late_link, stages: [0], seconds: {SECONDS}",
            "--pipeline-model-parallel-size 2",
            2,
            "forward-send-backward-recv",
        ),
    ],
    ids=["host_stall", "data_stall", "late_link without a pipeline", "late_link"],
)
def test_a_wait_stands_where_it_belongs(tmp_path: Path, fault: str, flags: str, world: int, where: str) -> None:
    ranks = run_forked(world, rank, f"{flags} {scenario(tmp_path, fault)}")

    slow, clean = slow_and_clean(ranks[0][1][where])
    assert slow > SECONDS / 2 > clean  # a receiver may come to wait later than the message was held back


def test_messages_of_the_native_transport_come_late_and_their_sender_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")
    fault = scenario(tmp_path, f"kind: late_link, stages: [0], seconds: {SECONDS}")

    sender, receiver = run_forked(2, rank, f"--pipeline-model-parallel-size 2 --p2p-transport native {fault}")

    slow, clean = slow_and_clean(receiver[1]["forward-recv"])
    assert slow > SECONDS / 2 > clean  # it may come to wait later than the message was held back
    assert slow_and_clean(sender[1]["forward-send"])[0] < SECONDS


def test_slow_compute_changes_no_loss(tmp_path: Path) -> None:
    fault = scenario(tmp_path, "kind: slow_compute, ranks: [0], effect_ratio: 3")

    [(clean_losses, _)] = run_forked(1, rank, "")
    [(losses, seconds)] = run_forked(1, rank, fault)

    assert losses == clean_losses
    slow, clean = slow_and_clean(seconds["forward-compute of the processor"])
    assert slow > 1.5 * clean


@pytest.mark.parametrize("side", ["device", "host"])
@pytest.mark.long
def test_a_hang_never_ends_a_step(tmp_path: Path, side: str) -> None:
    fault = scenario(tmp_path, f"kind: hang, ranks: [1], side: {side}")
    file = tmp_path / "steps"

    with pytest.raises(RankFailedError):
        run_forked(2, _tell_steps, f"{TINY} --train-iters {STEPS} {fault}", file)

    steps = {int(step) for step in file.read_text().split()}
    assert max(steps) == FROM_STEP - 1


def _tell_steps(flags: str, file: Path) -> None:
    """The rank goes a while after the last step before the fault, in which many more would fit."""

    class Teller(Plugin):
        name: ClassVar[str] = "teller"

        @classmethod
        def create(cls, args: Any, context: Any) -> "Teller":
            return cls()

        def step_end(self, step: int, progress: Any) -> None:
            with file.open("a") as steps:
                steps.write(f"{step}\n")
            if step == FROM_STEP - 1:
                threading.Timer(3.0, os._exit, (0,)).start()

    train(flags, plugins=(FaultsPlugin, Teller))


def test_a_rank_that_no_fault_hits_has_no_plugin(tmp_path: Path) -> None:
    fault = scenario(tmp_path, "kind: slow_compute, node: elsewhere, effect_ratio: 3")

    [(losses, _)] = run_forked(1, rank, fault)
    [(clean_losses, _)] = run_forked(1, rank, "")

    assert losses == clean_losses


def test_a_rank_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RankFailedError, match=f"{UsageError.__name__}.*names rank 7"):
        run_forked(1, rank, scenario(tmp_path, "kind: hang, ranks: [7]"))

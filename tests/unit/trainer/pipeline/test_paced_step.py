"""A stage's step beside a device: each choice knows what came while the operation before it ran, and the device does
not wait for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from megatronapp.core.pipeline import orders
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.core.trace.message_id import Direction
from megatronapp.trainer.pipeline.dynamic_step import Step
from megatronapp.trainer.pipeline.pace import POLL_SECONDS
from megatronapp.trainer.pipeline.port import Handle, PipelineMessages, Post
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad
from megatronapp.trainer.worlds import World
from tests.support.one_stage import replace_passes, step_parts
from tests.support.paced_device import Device

LAYOUT = Layout(stages=2, chunks=1, microbatches=4, split=True)
SECONDS = {Kind.FORWARD: 10e-3, Kind.BACKWARD: 14e-3, Kind.WGRAD: 6e-3}
BUSY_SECONDS = LAYOUT.microbatches * sum(SECONDS.values())
LAUNCH_SECONDS = 2e-4
GRADIENTS_COME = {0: 18e-3, 1: 30e-3, 2: 78e-3, 3: 90e-3}
"""By microbatch: each while the operation runs before which nothing could be known of it."""
HINT = "1f1b"
AS_THEY_COME = "F0 F1 B0 B1 W0 F2 W1 F3 B2 B3 W2 W3"


@dataclass
class Arrivals:
    """A transport on the device's clock: gradients come as they are said to, activations are taken away."""

    device: Device
    at: Mapping[int, float]
    errors: tuple[type[Exception], ...] = ()
    ordered: bool = False
    posted: list[Arrival] = field(default_factory=list)

    def post(self, posts: Sequence[Post], *, batch: bool) -> list[Handle]:
        return [self._posted(post) for post in posts]

    def wait_any(self, timeout_seconds: float) -> None:
        self.device.now = min(each.at for each in self.posted if not each.is_completed())

    def in_flight(self) -> tuple[int, int]:
        return 0, 0

    def lost(self) -> str:
        return ""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def close(self) -> None: ...

    def _posted(self, post: Post) -> Arrival:
        if post.message.sends:
            return Arrival(self.device, 0.0)
        assert post.message.id.direction is Direction.BACKWARD, "stage 0 receives gradients alone"
        self.posted.append(Arrival(self.device, self.at[post.message.id.microbatch]))
        return self.posted[-1]


@dataclass
class Arrival:
    device: Device
    at: float

    def is_completed(self) -> bool:
        return self.device.now >= self.at

    def wait(self) -> None:
        self.device.wait_for(self.at)


class TimedWgrad(DeferredWgrad):
    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__()
        self._run = run

    def run(self, chunk: int, microbatch: int) -> None:
        self._run()


@pytest.fixture
def device() -> Device:
    return Device(launch_seconds=LAUNCH_SECONDS)


@pytest.fixture(autouse=True)
def passes(monkeypatch: pytest.MonkeyPatch, device: Device) -> dict[Kind, float]:
    """What megatron-core's passes take on the device; nothing is computed."""
    seconds = dict(SECONDS)
    replace_passes(monkeypatch, lambda kind: device.launch(seconds[kind]), LAYOUT.stages)
    return seconds


def run_step(
    device: Device,
    seconds: Mapping[Kind, float],
    come: Mapping[int, float] = GRADIENTS_COME,
    *,
    most_launched: int | None = None,
) -> str:
    """What the first of two stages ran, in its order; the device is idle when it begins, and when it returns. With
    `most_launched` the hint is run as it is."""
    device.free_at, device.idle = device.now, 0.0
    transport = Arrivals(device, {microbatch: device.now + at for microbatch, at in come.items()})
    policy = StagePolicy(LAYOUT, 0, orders.all_stages(HINT, LAYOUT)[0], cap=2, strict=most_launched is not None)
    messages = PipelineMessages(transport, SimpleNamespace(), World(ranks=(0, 1), rank=0))  # type: ignore[arg-type]
    wgrad = TimedWgrad(lambda: device.launch(seconds[Kind.WGRAD]))
    pace = device.pace() if most_launched is None else device.given_order(most_launched)
    step = Step(**step_parts(LAYOUT, policy, messages, wgrad, pace))
    step.run()
    device.now = device.free_at
    return " ".join(map(named, step.ran))


def named(operation: Operation) -> str:
    return f"{operation.kind.letter}{operation.microbatch}"


def test_what_comes_while_an_operation_runs_is_chosen_next(device: Device, passes: dict[Kind, float]) -> None:
    learning = run_step(device, passes)

    assert learning != AS_THEY_COME, "before anything is known of durations, choices are hasty"
    assert run_step(device, passes) == AS_THEY_COME


def test_the_device_does_not_wait_for_choices(device: Device, passes: dict[Kind, float]) -> None:
    run_step(device, passes)
    began = device.now

    run_step(device, passes)

    assert device.idle == pytest.approx(LAUNCH_SECONDS)  # of the step's first operation
    assert device.now - began == pytest.approx(BUSY_SECONDS + LAUNCH_SECONDS)


def test_operations_that_end_sooner_than_usual_are_followed_at_once(device: Device, passes: dict[Kind, float]) -> None:
    at_once = dict.fromkeys(range(LAYOUT.microbatches), 0.0)
    run_step(device, passes, at_once)
    passes.update({kind: seconds / 2 for kind, seconds in passes.items()})

    run_step(device, passes, at_once)

    assert device.idle <= LAYOUT.operations * (POLL_SECONDS + LAUNCH_SECONDS)


def test_what_has_an_order_is_launched_before_its_messages_have_come(
    device: Device, passes: dict[Kind, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.HINT", "zb-h1")
    launched = []
    monkeypatch.setattr(device, "wait_for", lambda at: launched.append((device.now, at)))

    assert run_step(device, passes, most_launched=LAYOUT.operations) == "F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3"

    assert len(launched) == LAYOUT.microbatches
    assert all(now < at for now, at in launched), "the host waits for no message: its device does"


def test_what_has_an_order_is_launched_no_further_ahead_than_that(
    device: Device, passes: dict[Kind, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.HINT", "zb-h1")
    ends: list[float] = []
    ahead = []

    def launch(kind: Kind) -> None:
        device.launch(passes[kind])
        ends.append(device.free_at)
        ahead.append(sum(end > device.now for end in ends))

    replace_passes(monkeypatch, launch, LAYOUT.stages)

    run_step(device, passes, most_launched=3)

    assert max(ahead) == 3

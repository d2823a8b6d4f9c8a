"""A training on its way to a loss that is no number, and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable

from megatronapp.v1 import scope_pb2
from tests.support.scoped_job import ScopedJob

EACH_MICROBATCH_OF = [[0] * 4 + [1] * 4, [2] * 4 + [3] * 4]
"""By stage, the layers of its frames."""
NOT_NUMBERS = scope_pb2.ScopePerturbation(place="system", kind="scale", coefficient=1e38, layers="1")
"""From the third layer on: loss and gradients are NaN."""
INFINITE_LOSS = scope_pb2.ScopePerturbation(place="calculation", site="logits", kind="constant", coefficient=1e38)
"""Those of tokens are finite, their sum is not; gradients are what they were."""


def overflow(
    job: ScopedJob, before: Callable[[int], object] = lambda _: None, *perturbations: scope_pb2.ScopePerturbation
) -> int:
    """Steps from here on are shown, and disturbed so. The number of the first."""
    gateway, ranks, step = job.gateway, job.ranks, job.paused_before()
    before(step)
    gateway.show(1, [scope_pb2.ScopeTap(id=1, expression="layers[*].resid_post")], ranks)
    plan = scope_pb2.ScopePerturb(plan="overflow", perturbations=perturbations or [NOT_NUMBERS], seed=1)
    assert {ack.code for ack in gateway.command("overflow", 0, ranks, perturb=plan)} == {""}
    gateway.train("last", 0, ranks, "resume")  # a pause after it would wait for what is shown
    return step


def layers_shown(job: ScopedJob, rank: int, step: int) -> list[int]:
    """Of a rank's frames of the step."""
    return sorted(frame.layer or 0 for frame in job.gateway.frames[rank] if frame.step == step)


def told_of_nonfinite(job: ScopedJob) -> list[scope_pb2.ScopeAlert]:
    events = [event for _, event in job.gateway.events]
    return [event.alert for event in events if event.HasField("alert") and event.alert.kind == "nonfinite"]

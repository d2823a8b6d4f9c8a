"""Many steps under MegaFBD with passes and messages that are late at random, from the fewest slots up."""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace
from typing import Any, Self

from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.fbd.link import Link
from tests.support.disaggregated import Case

CASES = {
    "input, one slot": Case("--fbd-slots 1", forward_pipeline=1),
    "input, VPP 2, one slot": Case("--num-virtual-stages-per-pipeline-rank 2 --fbd-slots 1", forward_pipeline=2),
    "linears, one stage, one slot": Case("--fbd-slots 1", pipeline=1, linears=True),
    "linears, VPP 2, two slots": Case(
        "--num-virtual-stages-per-pipeline-rank 2 --fbd-slots 2", forward_pipeline=1, linears=True
    ),
    "layers, PP 2, one slot": Case("--fbd-mode layers --fbd-slots 1", forward_pipeline=1),
    "linears, PP 2, more slots": Case("--fbd-slots 4", forward_pipeline=1, linears=True),
}
LATE_SECONDS, LATE_SHARE = 0.004, 0.3


class Late(Plugin):
    """Passes, and what is sent to the other world, are late at random."""

    name = "late"

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        plugin = cls()
        plugin.random = random.Random(context.identity.rank)
        send = Link.send

        def late_send(link: Link, *args: Any, **fields: Any) -> Any:
            plugin.sleep()
            return send(link, *args, **fields)

        Link.send = late_send  # type: ignore[assignment]
        return plugin

    random: random.Random

    def forward_step(self, function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.sleep()
            return function(*args, **kwargs)

        return run

    def sleep(self) -> None:
        if self.random.random() < LATE_SHARE:
            time.sleep(self.random.expovariate(1 / LATE_SECONDS))


def assert_delays_change_nothing(name: str, steps: int) -> None:
    """No step hangs, and losses and gradients are stock's."""
    case = CASES[name]
    stock = replace(case, flags=case.flags.partition("--fbd")[0]).stock(steps)
    delayed = case.disaggregated(steps, Late)
    assert [each.gradients for each in delayed] == [each.gradients for each in stock]
    assert delayed[-1].losses == stock[-1].losses
    assert len(delayed[-1].losses) == steps

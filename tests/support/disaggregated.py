"""Training runs whose ranks are forward or backward ones, beside stock's."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

from megatronapp.core.errors import MegatronAppError
from megatronapp.trainer import rank_exit
from megatronapp.trainer.keyed_dropout import KeyedDropout
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.fbd import FbdPlugin
from megatronapp.trainer.plugins.fbd.roles import Grid, Role, Roles
from tests.support.forked import run_forked
from tests.support.varied_orders import Trained, trained

FBD = "--forward-backward-disaggregating"
RECOMPUTE = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


class Keyed(Plugin):
    """Stock, with dropout under the keys that MegaFBD has too."""

    name = "keyed"

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        plugin = cls()
        plugin.dropout = KeyedDropout(args.seed, context.device)
        return plugin

    dropout: KeyedDropout

    def forward_step(self, function: Any) -> Any:
        return self.dropout.wrap(function)

    def step_begin(self, step: int) -> None:
        self.dropout.begin_step(step)


@dataclass(frozen=True)
class Case:
    """`flags` are stock's; `forward` those of the forward ranks."""

    flags: str
    tensor: int = 1
    pipeline: int = 2
    data: int = 1
    context: int = 1
    forward_tensor: int | None = None
    forward_pipeline: int | None = None
    linears: bool = False
    """In *linears* mode, beside stock's schedule without recompute."""

    @property
    def layout(self) -> str:
        return (
            f"--tensor-model-parallel-size {self.tensor} --pipeline-model-parallel-size {self.pipeline} "
            f"--context-parallel-size {self.context} {self.flags}"
        )

    @property
    def forward(self) -> str:
        sizes = {"tensor": self.forward_tensor, "pipeline": self.forward_pipeline}
        return " ".join(f"--forward-{name}-model-parallel-size {size}" for name, size in sizes.items() if size)

    @property
    def asked(self) -> str:
        """Flags of all ranks."""
        return f"{self.layout} {FBD} {'--fbd-mode linears' if self.linears else ''} {self.forward}"

    @property
    def roles(self) -> Roles:
        backward = Grid(tensor=self.tensor, pipeline=self.pipeline, context=self.context)
        forward = replace(
            backward,
            tensor=self.forward_tensor or self.tensor,
            pipeline=self.forward_pipeline or self.pipeline,
        )
        apart = "--fbd-roles-apart" in self.flags
        return Roles(forward=forward, backward=backward, replicas=self.data, apart=apart)

    @property
    def ranks(self) -> int:
        return sum(len(self.roles.ranks(role)) for role in Role)

    def stock(self, steps: int) -> list[Trained]:
        """megatron-core's own schedule, with full recompute beside *input* mode, by rank."""
        keyed: tuple[type[Plugin], ...] = (Keyed,) if "dropout" in self.flags else ()
        recompute = "" if self.linears else RECOMPUTE
        flags = f"{self.layout} {recompute}"
        ranks = self.tensor * self.pipeline * self.context * self.data
        return run_forked(ranks, partial(trained, steps=steps), flags, *keyed, timeout=200 + steps)

    def disaggregated(self, steps: int, *plugins: type[Plugin], more: str = "") -> list[Trained]:
        """The backward ranks, in the order of stock's; the forward ones have no loss and no gradient."""
        run = partial(trained, steps=steps)
        every = run_forked(self.ranks, run, f"{self.asked} {more}", FbdPlugin, *plugins, timeout=200 + 2 * steps)
        for rank in self.roles.ranks(Role.FORWARD):
            assert not every[rank].losses
            assert not every[rank].gradients
        return [every[rank] for rank in self.roles.ranks(Role.BACKWARD)]


def error_of(folder: Path, run: Callable[[], Any]) -> None:
    """Of one rank: notes when its run broke off, and with which error, also of one that was ended for a lost peer."""
    file = folder / os.environ["RANK"]

    def note(reason: str) -> None:
        file.write_text(f"{time.time()} {reason}")

    def end_at_once(error: MegatronAppError) -> NoReturn:
        note(str(error))
        os._exit(1)

    rank_exit.end_at_once = end_at_once
    try:
        run()
    except Exception as error:  # noqa: BLE001  (whoever waits in gloo gets its error)
        note(str(error))


def errors(folder: Path) -> dict[int, tuple[float, str]]:
    """What `error_of` has noted, by rank."""
    noted = {int(file.name): file.read_text().partition(" ") for file in folder.iterdir() if file.name.isdigit()}
    return {rank: (float(at), error) for rank, (at, _, error) in noted.items()}

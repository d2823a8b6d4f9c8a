"""The plug-in. What a scenario is, and with it pydantic, is imported when one is given."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from megatronapp.trainer.plugins.base import Plugin, PluginContext

if TYPE_CHECKING:
    from typing import Self

    from megatronapp.trainer.plugins.faults.injection import Injection


class FaultsPlugin(Plugin):
    """Injects the faults of a scenario that hit this rank; on a rank that none hits it changes nothing."""

    name: ClassVar[str] = "faults"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("Faults")
        group.add_argument("--fault-scenario", type=Path, metavar="FILE", help="inject the faults of this YAML file")

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        if args.fault_scenario is None:
            return None
        from megatronapp.trainer.plugins.faults.injection import Injection

        injection = Injection.of(args.fault_scenario, context)
        return cls(injection) if injection else None

    def __init__(self, injection: Injection) -> None:
        self._injection = injection

    def data(self, iterator: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return self._injection.data(iterator)

    def step_begin(self, step: int) -> None:
        self._injection.step_begin(step)

    def close(self) -> None:
        self._injection.close()

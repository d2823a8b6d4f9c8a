"""A plug-in that all ranks have, and that does something to one of them."""

from __future__ import annotations

import argparse
from typing import ClassVar, Self

from megatronapp.trainer.plugins.base import Plugin, PluginContext


class Victim(Plugin):
    victim: ClassVar[int] = -1
    is_victim = False

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        plugin = cls()
        plugin.is_victim = context.identity.rank == cls.victim
        return plugin

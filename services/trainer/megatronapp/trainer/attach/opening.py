"""From process groups to a session: who this rank is, what it trains, and the plug-ins that its flags turn on."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from megatronapp.core.trace.values import Attached, Identity, Recipe, Schedule, Setting
from megatronapp.trainer.attach.announcement import Announcement
from megatronapp.trainer.attach.messages import say_once
from megatronapp.trainer.attach.scope import LateScope
from megatronapp.trainer.attach.session import Session
from megatronapp.trainer.borders import Borders
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.placement import identity, placement
from megatronapp.trainer.plugins.base import Degree, PluginContext, TimerHub
from megatronapp.trainer.plugins.chain import PluginChain
from megatronapp.trainer.plugins.channel import AgentChannel
from megatronapp.trainer.plugins.faults import FaultsPlugin
from megatronapp.trainer.plugins.scan.plugin import ScanPlugin
from megatronapp.trainer.plugins.scope import flags as scope_flags
from megatronapp.trainer.versions import library_versions
from megatronapp.trainer.worlds import World

KINDS = (ScanPlugin, FaultsPlugin)
FIRST_RANK_SECONDS = 60.0
"""The first rank says who the run is; one that is not attached never does."""


def open_session(flags: argparse.Namespace, degree: Degree, settings: Mapping[str, str]) -> Session | None:
    """None where no flag turns a plug-in on. `settings`: of the recipe, beside those that the script's own flags tell.
    Raises MegatronAppError, and what torch raises."""
    environment = _environment()
    world = World.whole(environment)
    device = _device()
    store = PrefixStore("megatronapp", dist.distributed_c10d._get_default_store())
    whoever = _identity(environment, store)
    timers = TimerHub()
    full = degree is Degree.FULL
    described = _megatron(environment, world, device) if full else None
    looked_into = scope_flags.wanted(flags) and full
    if scope_flags.wanted(flags) and not full:
        say_once("MegaScope is left out: it looks into models that megatron-core's schedules train")
    borders = Borders(store)
    messages = described.messages if described else None
    context = PluginContext(
        identity=whoever,
        placement=described.placement if described else placement(environment, device),
        schedule=described.schedule if described else Schedule(name="none", microbatches=1),
        device=device,
        timers=timers,
        collector_address=environment.collector_address,
        token_file=environment.token_file,
        world=world,
        request_stop=lambda: None,
        request_border=borders.request,
        pipeline=messages,
        recipe=_recipe({**settings, **(described.settings if described else {})}, device),
        store=store,
        channel=AgentChannel(frame_bytes=scope_flags.FRAME_BYTES if looked_into else 0),
        degree=degree,
        attached=Attached.SCHEDULES if full else Attached.PROGRAM,
    )
    chain = PluginChain.create(KINDS, flags, context)
    if not chain.plugins:
        return None
    scope = LateScope(flags, context, borders) if looked_into else None
    return Session(chain, timers, degree, messages, Announcement(whoever), scope)


def _environment() -> Environment:
    """What the launcher said, and of ranks what torch knows: not every launcher sets torchrun's variables."""
    said = Environment.read()
    rank, world = dist.get_rank(), dist.get_world_size()
    local = said.local_rank if "LOCAL_RANK" in os.environ else int(os.environ.get("SLURM_LOCALID", rank))
    return replace(said, rank=rank, world_size=world, local_rank=local)


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _identity(environment: Environment, store: Store) -> Identity:
    if environment.rank:
        store.wait(["run"], timedelta(seconds=FIRST_RANK_SECONDS))
    return identity(environment, store)


def _megatron(environment: Environment, world: World, device: torch.device) -> Any:
    from megatronapp.trainer.attach.described import describe

    return describe(environment, world, device)


def _recipe(settings: Mapping[str, str], device: torch.device) -> Recipe:
    def sorted_by_name(values: Mapping[str, str]) -> tuple[Setting, ...]:
        return tuple(Setting(name=name, value=value) for name, value in sorted(values.items()))

    return Recipe(settings=sorted_by_name(settings), versions=sorted_by_name(library_versions(device)))

"""`python -m megatronapp.trainer --serve --load DIR`: a checkpoint that answers until it is stopped.

Who asks comes from a plug-in that has a port (`Plugin.port`), which sees the model as in training; plug-ins come to
borders between two passes. Without a port, requests come from standard input, as JSON, one a line, and their events go
to standard output.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import torch.distributed as dist
from torch._C._distributed_c10d import Store

import megatronapp.trainer.lean_imports  # noqa: F401  before anything of megatron-core

# isort: split
from megatronapp.core.errors import PluginMissingError, UsageError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import Phase, Schedule
from megatronapp.trainer import cpu, parallel
from megatronapp.trainer.arguments import REQUIRE
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.generate import arguments
from megatronapp.trainer.generate.generator import Generator
from megatronapp.trainer.generate.lines import LinePort
from megatronapp.trainer.generate.loaded import positions
from megatronapp.trainer.generate.resident import ResidentGenerator
from megatronapp.trainer.placement import identity
from megatronapp.trainer.plugins.base import Plugin, PluginContext, Preparation, TimerHub, discover
from megatronapp.trainer.plugins.chain import PluginChain
from megatronapp.trainer.plugins.channel import AgentChannel
from megatronapp.trainer.saved_model import SavedModel
from megatronapp.trainer.worlds import World

SERVE = "--serve"
_STOP_KEY, _BORDERS_KEY = "serve/stop", "serve/borders"
log = get_logger(__name__)


def run(argv: Sequence[str], *, plugins: Sequence[type[Plugin]] | None = None) -> None:
    """Serve as the flags say, to the end of the port or SIGTERM; `plugins` None takes the installed ones. Raises
    MegatronAppError."""
    kinds = [kind for kind in (discover() if plugins is None else plugins) if kind.serves]
    options = _parse(argv, kinds)
    source = arguments.source_of(options)
    saved = SavedModel.find(source.folder, source.parallel, source.tokenizer_files)
    environment = Environment.read()
    layout = saved.layout(environment.world_size)
    world = World.whole(environment)
    asked = Preparation(environment=environment, config=saved.config, world=world, own_layout=layout)
    prepared = PluginChain.prepare(kinds, options, asked)
    os.environ.update(prepared.variables)
    cpu.install()
    device, store = parallel.start(environment, saved.config.parallel, layout, world)
    most = positions(source, saved)
    turns = Turns(store)
    context = PluginContext(
        identity=identity(environment, store),
        placement=parallel.placement(environment, layout.sizes(environment.world_size), device, prepared.role),
        world=world,
        schedule=Schedule(name="none"),
        device=device,
        timers=TimerHub(),
        collector_address=environment.collector_address,
        token_file=environment.token_file,
        recipe=saved.recipe.to_value(),
        request_stop=lambda: None,
        request_border=turns.request_border,
        tokenizer=saved.tokenizer,
        max_positions=most,
        store=store,
        stopping=turns.stopping,
        channel=AgentChannel(prepared.frame_bytes, prepared.operations_fd),
        serving=True,
    )
    chain = turns.chain = PluginChain.create(kinds, options, context)
    try:
        chunks, transformer = saved.build(layout, device, chain)
        generator = Generator(chunks, transformer, saved.tokenizer, most, device)
        chain.generator(generator)
        port = chain.port(generator.limits) if dist.get_rank() == 0 else None
        lines = LinePort(sys.stdin.fileno(), sys.stdout) if dist.get_rank() == 0 and port is None else None
        log.info("serving", folder=str(saved.folder), ranks=layout.world)
        chain.phase_begin(Phase.PAUSE)  # it stands until it is asked, however long: no hang
        with turns, generator.ready():
            ResidentGenerator(generator, port or lines, turns).serve(turns.stopping)
        generator.close()
    finally:
        chain.close()
    parallel.stop()
    if lines is not None and not lines.asked:
        raise UsageError(
            "nobody asked: give requests on standard input, one JSON object a line, or a plug-in that has a port"
        )


class Turns:
    """What ranks agree on between two passes: whether it ends, and borders of the plug-ins (resident.Between)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked = False
        self._borders = 0
        """That were asked for, as far as this rank knows."""
        self.chain = PluginChain()

    def __enter__(self) -> Turns:
        self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._previous)

    def stopping(self) -> bool:
        """Whether any rank got SIGTERM. Asked by every rank in each round, so that a rank's word reaches rank 0."""
        if self._asked:
            self._store.set(_STOP_KEY, "")
        return self._asked or (dist.get_rank() == 0 and self._store.check([_STOP_KEY]))

    def request_border(self) -> None:
        """From any thread of any rank."""
        self._store.add(_BORDERS_KEY, 1)

    def due(self) -> bool:
        due = self.chain.border_due(0)
        if dist.get_rank():
            return False
        asked = int(self._store.add(_BORDERS_KEY, 0))
        due |= asked > self._borders
        self._borders = asked
        return due

    def hold(self) -> None:
        self.chain.border(0)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked = True


def _parse(argv: Sequence[str], kinds: Sequence[type[Plugin]]) -> argparse.Namespace:
    """Raises UsageError, and PluginMissingError for a plug-in that is asked for and can't serve here."""
    parser = arguments.Parser(prog="python -m megatronapp.trainer --serve", allow_abbrev=False)
    parser.add_argument(SERVE, action="store_true", help="answer requests in place of training")
    arguments.add_source(parser.add_argument_group("Model"), "--load", "--checkpoint")
    for kind in kinds:
        kind.add_arguments(parser)
    required = arguments.Parser(add_help=False, allow_abbrev=False)  # first: flags of what is missing are unknown
    required.add_argument(REQUIRE, nargs="+", action="extend", default=[], metavar="NAME")
    asked, left = required.parse_known_args(argv)
    missing = sorted(set(asked.require_plugins) - {kind.name for kind in kinds})
    if missing:
        raise PluginMissingError(f"{REQUIRE} {missing[0]}: no plug-in of this name that can serve is installed here")
    return parser.parse_args(left)

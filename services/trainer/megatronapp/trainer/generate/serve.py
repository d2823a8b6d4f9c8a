"""`python -m megatronapp.trainer --serve --load DIR`: a checkpoint that answers until it is stopped.

Who asks comes from a plug-in that has a port (`Plugin.port`), which sees the model as in training. Without one,
requests come from standard input, as JSON, one a line, and their events go to standard output.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

import megatronapp.trainer.lean_imports  # noqa: F401  before anything of megatron-core

# isort: split
from megatronapp.core.errors import PluginMissingError, UsageError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.values import Schedule
from megatronapp.trainer import cpu, parallel
from megatronapp.trainer.arguments import REQUIRE
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.generate import arguments
from megatronapp.trainer.generate.generator import Generator
from megatronapp.trainer.generate.lines import LinePort
from megatronapp.trainer.generate.loaded import positions
from megatronapp.trainer.generate.resident import ResidentGenerator
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.plugins.base import Plugin, PluginContext, TimerHub, discover
from megatronapp.trainer.plugins.chain import PluginChain
from megatronapp.trainer.saved_model import SavedModel

SERVE = "--serve"
_STOP_KEY = "serve/stop"
log = get_logger(__name__)


def run(argv: Sequence[str], *, plugins: Sequence[type[Plugin]] | None = None) -> None:
    """Serve as the flags say, to the end of the port or SIGTERM; `plugins` None takes the installed ones that have a
    port. Raises MegatronAppError."""
    kinds = [kind for kind in (discover() if plugins is None else plugins) if kind.port is not Plugin.port]
    options = _parse(argv, kinds)
    source = arguments.source_of(options)
    saved = SavedModel.find(source.folder, source.parallel, source.tokenizer_files)
    environment = Environment.read()
    layout = saved.layout(environment.world_size)
    cpu.install()
    device, store = parallel.start(environment, saved.config.parallel, layout)
    most = positions(source, saved)
    chain = PluginChain.create(kinds, options, _context(environment, layout, saved, device, store, most))
    try:
        chunks, transformer = saved.build(layout, device, chain)
        generator = Generator(chunks, transformer, saved.tokenizer, most, device)
        port = chain.port(generator.limits) if dist.get_rank() == 0 else None
        lines = LinePort(sys.stdin.fileno(), sys.stdout) if dist.get_rank() == 0 and port is None else None
        log.info("serving", folder=str(saved.folder), ranks=layout.world)
        with Stopping(store) as stopping, generator.ready():
            ResidentGenerator(generator, port or lines).serve(stopping)
        generator.close()
    finally:
        chain.close()
    parallel.stop()
    if lines is not None and not lines.asked:
        raise UsageError(
            "nobody asked: give requests on standard input, one JSON object a line, or a plug-in that has a port"
        )


class Stopping:
    """Whether any rank got SIGTERM. Called by every rank in each round, so that a rank's word reaches rank 0."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked = False

    def __enter__(self) -> Stopping:
        self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._previous)

    def __call__(self) -> bool:
        if self._asked:
            self._store.set(_STOP_KEY, "")
        return self._asked or self._store.check([_STOP_KEY])

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked = True


def _parse(argv: Sequence[str], kinds: Sequence[type[Plugin]]) -> argparse.Namespace:
    """Raises UsageError, and PluginMissingError for a plug-in that is asked for and has no port here."""
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


def _context(
    environment: Environment, layout: Layout, saved: SavedModel, device: torch.device, store: Store, most: int
) -> PluginContext:
    return PluginContext(
        identity=parallel.identity(environment, store),
        placement=parallel.placement(environment, layout, device),
        schedule=Schedule(name="none"),
        device=device,
        timers=TimerHub(),
        collector_address=environment.collector_address,
        token_file=environment.token_file,
        recipe=saved.recipe.to_value(),
        request_border=lambda: None,
        tokenizer=saved.tokenizer,
        max_positions=most,
        store=store,
    )

"""What watching a generation costs: a model that is served generates text with nobody watching, and watched by what the
page's Generate view shows before anybody has chosen anything, in interleaved blocks of one process.

    python -m bench.generation_overhead                            # a small model
    python -m bench.generation_overhead --preset 1b --rounds 15    # on one GPU

A checkpoint of random weights is written first, of a training of one step, and served as `megatronapp serve` does.
Each request is one as the page makes it: 4 prompts, candidates and the prompts' probabilities with them, as fast as the
model goes. `off` and `control` are alike: nobody watches. For `watched`, each request is asked for together with the
page's first taps of it, which come into force at a border, as the gateway's do. Frames go to the agent, as in any run;
without a gateway it drops them.

A request takes from being asked for to its end: the pass over the prompts, the new tokens, the taps' coming into force.
Blocks are two requests, paired by round; the interval is Student's. Unknown flags go to the training: the model's.
Exit status 1: the interval's upper end is above the goal, or a frame was dropped.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch

from bench import _blocks, _first_look
from bench._blocks import Blocks, Timings
from bench._model import COMMON, PRESETS
from megatronapp.core.generation import Command, Event, Finished, GenerationRequest, Limits, Sampling
from megatronapp.core.generation_json import to_json
from megatronapp.core.generation_port import PortClosedError
from megatronapp.trainer.generate import serve
from megatronapp.trainer.launch import run as train
from megatronapp.trainer.plugins.base import PluginContext
from megatronapp.trainer.plugins.scan import ScanPlugin
from megatronapp.trainer.plugins.scope import ScopePlugin
from megatronapp.trainer.plugins.scope.generation import ScopePort

BLOCKS = Blocks(modes=("off", "control", "watched"), settling=0, length=2)
WARM_UP = ("off", "watched", "off", "watched")
"""Modes of requests that are not counted."""
GOAL = 0.05
PROMPT_TOKENS, NEW_TOKENS = 120, 32
"""Unreduced rows of longer prompts would not fit a frame of the `1b` model."""
ONE_STEP = "--train-iters 1 --micro-batch-size 1 --global-batch-size 1 --no-save-optim --no-save-rng"


@dataclass
class Measured:
    """What comes of the served model."""

    rounds: int
    timings: Timings = field(default_factory=lambda: Timings(BLOCKS))
    device: str = ""
    prompt_tokens: int = 0
    taps: list[str] = field(default_factory=list)
    frames: int = 0
    dropped_frames: int = 0
    taps_that_failed: int = 0

    def modes(self) -> Iterator[str]:
        """Of all requests, one after the other."""
        yield from WARM_UP
        yield from (BLOCKS.mode_of(number)[0] for number in range(1, BLOCKS.steps(self.rounds) + 1))

    def add(self, number: int, seconds: float) -> None:
        """Of a request, which counts from 0."""
        if number >= len(WARM_UP):
            self.timings.add(number - len(WARM_UP) + 1, seconds)

    def report(self) -> dict[str, Any]:
        shown = self._against_off("watched")
        complete = self.frames > 0 and not self.dropped_frames and not self.taps_that_failed
        return {
            "device": self.device,
            "prompts": _first_look.PROMPTS,
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": NEW_TOKENS,
            "taps": self.taps,
            "frames": self.frames,
            "dropped_frames": self.dropped_frames,
            "taps_that_failed": self.taps_that_failed,
            "token_seconds_off": round(self.timings.usual_seconds() / NEW_TOKENS, 6),
            "control": self._against_off("control"),
            "watched": shown,
            "goal": GOAL,
            "ok": complete and shown["interval_95"][1] <= GOAL,
        }

    def _against_off(self, mode: str) -> dict[str, Any]:
        found = self.timings.against_first(mode)
        found["requests"] = found.pop("steps")
        return found


class AskingScope(ScopePlugin):
    """The plug-in, whose port asks by itself: for text, and for what is shown of it."""

    measured: ClassVar[Measured]

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        cls.measured.device = _blocks.device_name(context.device)
        return super().create(args, context)

    def port(self, limits: Limits) -> ScopePort:
        return AskingPort(self, limits)

    def ask(self, number: int, request: str, limits: Limits) -> None:
        """To be shown this request, or nothing: as a demand of the gateway's, which takes force at a border."""
        sites = self._viewer.described(trains=False, generates=True)["sites"]
        taps = _first_look.taps(sites, limits.max_positions, request) if request else []
        if taps:
            self.measured.taps = [tap["expression"] for tap in taps]
        self._listener.publish({"demand": {"revision": number + 1, "taps": taps}})

    def note(self, *, shown: bool) -> None:
        """What has come of a request that has ended."""
        measured, queue = self.measured, self._viewer.queue
        measured.frames, measured.dropped_frames = queue.written, queue.dropped
        measured.taps_that_failed += len(measured.taps) - len(self._viewer.readers) if shown else 0


class AskingPort(ScopePort):
    """Asks one request after the other, and takes its time to its end."""

    def __init__(self, plugin: AskingScope, limits: Limits) -> None:
        super().__init__(plugin._teller.say, plugin._listener.listen)
        self._plugin = plugin
        self._limits = limits
        self._measured = plugin.measured
        self._measured.prompt_tokens = min(PROMPT_TOKENS, limits.max_positions - NEW_TOKENS)
        self._modes = enumerate(self._measured.modes())
        self._number, self._mode = -1, "off"
        self._begun = 0.0
        self._under_way = False

    def next_command(self, timeout_seconds: float) -> Command | None:
        if not self._under_way:
            self._next()
        return super().next_command(timeout_seconds)

    def _next(self) -> None:
        before = self._mode
        found = next(self._modes, None)
        if found is None:
            raise PortClosedError
        self._number, self._mode = found
        request = _request(self._number, self._limits, self._measured.prompt_tokens)
        self._under_way, self._begun = True, time.perf_counter()
        if "watched" in (before, self._mode):
            self._plugin.ask(self._number, request.id if self._mode == "watched" else "", self._limits)
        self.put({"command": to_json(request)})

    def emit(self, event: Event) -> None:
        super().emit(event)
        if isinstance(event, Finished):
            self._under_way = False
            self._measured.add(self._number, time.perf_counter() - self._begun)
            self._plugin.note(shown=self._mode == "watched")


def _request(number: int, limits: Limits, prompt_tokens: int) -> GenerationRequest:
    """As the page asks, but that no row ends early."""
    draws = random.Random(number)
    prompts = [tuple(draws.choices(range(limits.vocabulary - 1), k=prompt_tokens)) for _ in range(_first_look.PROMPTS)]
    return GenerationRequest(
        id=f"request-{number}",
        prompts=tuple(prompts),
        max_new_tokens=NEW_TOKENS,
        sampling=Sampling(temperature=0.8, top_p=0.95),
        seed=1,
        stop_at_end_of_document=False,
        top_candidates=10,
        prompt_log_probabilities=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.generation_overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--preset", choices=tuple(PRESETS), default="tiny")
    parser.add_argument("--rounds", type=int, default=10, help="of a block of each mode; 2 at least")
    options, flags = parser.parse_known_args(argv)
    if options.rounds < 2:
        parser.error("--rounds: give 2 at least, as an interval needs two differences")
    warnings.filterwarnings("ignore")
    AskingScope.measured = measured = Measured(options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        _write_checkpoint(folder, [*PRESETS[options.preset].split(), *flags])
        serve.run(["--serve", "--load", folder, "--scope"], plugins=[ScanPlugin, AskingScope])
    report = measured.report()
    print(json.dumps(report, indent=2), flush=True)
    return 0 if report["ok"] else 1


def _write_checkpoint(folder: str, flags: Sequence[str]) -> None:
    train([*flags, *COMMON.split(), *ONE_STEP.split(), "--save", folder], plugins=())
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())

"""What watching a generation costs: a model that is served generates text with nobody watching, and watched by what the
page's Generate view shows before anybody has chosen anything, in interleaved blocks of one process.

    python -m bench.generation_overhead                            # a small model
    python -m bench.generation_overhead --preset 1b --rounds 20    # on one GPU

A checkpoint of random weights is written first, of a training of one step, and served as `megatronapp serve` does.
Each request is one as the page makes it: 4 prompts, candidates and the prompts' probabilities with them, as fast as
the model goes. `off` and `control` are alike: nobody watches. `watched` is by the page's first taps of the request,
which come into force at a border, as the gateway's do. Frames go to the agent, as in any run; without a gateway it
drops them.

A request's beginning, from being asked for to its first tokens, has one mode, drawn in threes of requests: the taps'
coming into force and the pass over the prompts are in it, as a user has them once a request. The tokens after it come
in a block of each mode, the beginning's first and the others in drawn order; a block's first token pays for the change
of mode, which a user does not have, and is not counted. So a host whose pace wavers is as slow for one mode as for the
next. Differences are of block medians, paired within a request, or of beginnings, within three; of each the mean
without the fifth at either end is taken. `watched` says what a whole request takes longer: its beginning and tokens.

`--limit-seconds 150` begins no further request when the process is so old. Unknown flags go to the training: the
model's. Exit status 1: the interval's upper end is above the goal, or a frame was dropped.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch

from bench import _blocks, _first_look
from bench._blocks import Blocks, Timings
from bench._model import COMMON, PRESETS
from megatronapp.core.generation import Command, Event, Finished, GenerationRequest, Limits, Sampling, Stepped
from megatronapp.core.generation_json import to_json
from megatronapp.core.generation_port import PortClosedError
from megatronapp.trainer.generate import serve
from megatronapp.trainer.launch import run as train
from megatronapp.trainer.plugins.base import PluginContext
from megatronapp.trainer.plugins.scan import ScanPlugin
from megatronapp.trainer.plugins.scope import ScopePlugin
from megatronapp.trainer.plugins.scope.generation import ScopePort

MODES = ("off", "control", "watched")
BEGINNINGS = Blocks(modes=MODES, settling=0, length=1)
TOKENS = Blocks(modes=MODES, settling=1, length=9)
WARM_UP = 3
"""Requests that are not counted, all modes in each."""
GOAL = 0.05
PROMPT_TOKENS, NEW_TOKENS = 120, 1 + TOKENS.steps(1)
"""Unreduced rows of longer prompts would not fit a frame of the `1b` model."""
ONE_STEP = "--train-iters 1 --micro-batch-size 1 --global-batch-size 1 --no-save-optim --no-save-rng"


def mode_of(request: int, step: int) -> tuple[str, bool]:
    """(mode, counted) of the pass to this step's token of a request, which count from 0: step 0 is its beginning."""
    first = BEGINNINGS.mode_of(request + 1)[0]
    others = [mode for mode in MODES if mode != first]
    order = [first, *random.Random(request).sample(others, len(others))]
    block, position = divmod(max(step - 1, 0), TOKENS.length + TOKENS.settling)
    return order[block], step == 0 or position >= TOKENS.settling


@dataclass
class Measured:
    """What comes of the served model."""

    rounds: int
    """Of a request that begins in each mode."""
    limit_seconds: float = math.inf
    beginnings: Timings = field(default_factory=lambda: Timings(BEGINNINGS))
    tokens: Timings = field(default_factory=lambda: Timings(TOKENS))
    device: str = ""
    prompt_tokens: int = 0
    taps: list[str] = field(default_factory=list)
    frames: int = 0
    dropped_frames: int = 0
    taps_that_failed: int = 0

    def goes_on(self, request: int) -> bool:
        """Whether this one is asked for."""
        wanted = WARM_UP + self.rounds * BEGINNINGS.steps(1)
        return request < wanted and _blocks.process_seconds() < self.limit_seconds

    def add(self, request: int, step: int, seconds: float) -> None:
        """Of a step of a request, which count from 0."""
        mode, counted = mode_of(request, step)
        number = request - WARM_UP
        if number < 0 or not counted:
            return
        if step:
            self.tokens.add_to(mode, number, seconds)
        else:
            self.beginnings.add_to(mode, number // BEGINNINGS.steps(1), seconds)

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
            "requests": self.tokens.rounds,
            "beginning_seconds_off": round(self.beginnings.robust_seconds(), 6),
            "token_seconds_off": round(self.tokens.robust_seconds(), 6),
            "control": self._against_off("control"),
            "watched": shown,
            "goal": GOAL,
            "ok": complete and shown["interval_95"][1] <= GOAL,
        }

    def _against_off(self, mode: str) -> dict[str, Any]:
        """Of a whole request, and of its parts."""
        beginning, beginning_half = self.beginnings.robust_difference(mode)
        token, token_half = self.tokens.robust_difference(mode)
        more = NEW_TOKENS - 1
        usual = self.beginnings.robust_seconds() + more * self.tokens.robust_seconds()
        half = math.hypot(beginning_half, more * token_half)
        return {
            **_blocks.as_ratio((beginning + more * token) / usual, half / usual),
            "beginning": self.beginnings.robustly_against_first(mode),
            "token": self.tokens.robustly_against_first(mode),
        }


class AskingScope(ScopePlugin):
    """The plug-in, whose port asks by itself: for text, and for what is shown of it."""

    measured: ClassVar[Measured]
    _revision = 0

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self | None:
        cls.measured.device = _blocks.device_name(context.device)
        _blocks.keep_to_own_cores()
        return super().create(args, context)

    def port(self, limits: Limits) -> ScopePort:
        return AskingPort(self, limits)

    def ask(self, request: str, limits: Limits) -> None:
        """To be shown this request, or nothing: as a demand of the gateway's, which takes force at a border."""
        sites = self._viewer.described(trains=False, generates=True)["sites"]
        taps = _first_look.taps(sites, limits.max_positions, request) if request else []
        if taps:
            self.measured.taps = [tap["expression"] for tap in taps]
        self._revision += 1
        self._listener.publish({"demand": {"revision": self._revision, "taps": taps}})

    def note(self) -> None:
        """What has come of what was watched until now."""
        measured, queue = self.measured, self._viewer.queue
        measured.frames, measured.dropped_frames = queue.written, queue.dropped
        measured.taps_that_failed += len(measured.taps) - len(self._viewer.readers)


class AskingPort(ScopePort):
    """Asks one request after the other, and takes the time of its steps."""

    def __init__(self, plugin: AskingScope, limits: Limits) -> None:
        super().__init__(plugin._teller.say, plugin._listener.listen)
        self._plugin = plugin
        self._limits = limits
        self._measured = plugin.measured
        self._measured.prompt_tokens = min(PROMPT_TOKENS, limits.max_positions - NEW_TOKENS)
        self._number = self._step = 0
        self._mode = "off"
        self._begun = 0.0
        self._under_way = self._at_rest = False

    def next_command(self, timeout_seconds: float) -> Command | None:
        """Between two requests once nothing: what the one before was watched by is taken off."""
        if not self._under_way and not self._at_rest:
            self._at_rest = True
            self._be("off", "")
            return None
        if not self._under_way:
            self._next()
        return super().next_command(timeout_seconds)

    def _next(self) -> None:
        if not self._measured.goes_on(self._number):
            raise PortClosedError
        if self._number == WARM_UP:
            _blocks.freeze_garbage()
        request = _request(self._number, self._limits, self._measured.prompt_tokens)
        self._under_way, self._step, self._begun = True, 0, time.perf_counter()
        self._be(mode_of(self._number, 0)[0], request.id)
        self.put({"command": to_json(request)})

    def _be(self, mode: str, request: str) -> None:
        """In this mode from the next border on."""
        if "watched" in (before := self._mode, mode) and mode != before:
            if before == "watched":
                self._plugin.note()
            self._plugin.ask(request if mode == "watched" else "", self._limits)
        self._mode = mode

    def emit(self, event: Event) -> None:
        super().emit(event)
        if isinstance(event, Stepped):
            now = time.perf_counter()
            self._measured.add(self._number, self._step, now - self._begun)
            self._step, self._begun = self._step + 1, now
            if self._step < NEW_TOKENS:
                self._be(mode_of(self._number, self._step)[0], event.request)
        elif isinstance(event, Finished):
            self._under_way = self._at_rest = False
            self._number += 1


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
    parser.add_argument("--rounds", type=int, default=10, help="of a request that begins in each mode; 2 at least")
    _blocks.add_limit(parser)
    options, flags = parser.parse_known_args(argv)
    if options.rounds < _blocks.FEWEST_ROUNDS:
        parser.error("--rounds: give 2 at least, as an interval needs two differences")
    warnings.filterwarnings("ignore")
    AskingScope.measured = measured = Measured(options.rounds, options.limit_seconds)
    with tempfile.TemporaryDirectory() as folder:
        _write_checkpoint(folder, [*PRESETS[options.preset].split(), *flags])
        serve.run(["--serve", "--load", folder, "--scope"], plugins=[ScanPlugin, AskingScope])
    _blocks.end_without_rounds(measured.beginnings.rounds)
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

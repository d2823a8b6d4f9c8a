"""Probabilities computed for a fused attention, from what its hook is given, are those of the plain softmax."""

from __future__ import annotations

import numpy as np

from megatronapp.core.scope.frame import Frame, unpack
from megatronapp.core.scope.results import Values, of_frame
from megatronapp.core.trace.values import Progress
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.scope.frames import FrameQueue
from megatronapp.trainer.plugins.scope.places import OF_FUSED, Spot, find
from megatronapp.trainer.plugins.scope.taps import Demand
from megatronapp.trainer.plugins.scope.watch import Tap, TapReader
from tests.support.capturing import Looker
from tests.support.forked import run_forked
from tests.support.training import TINY, train

EXPRESSIONS = ("layers[*].attn.probs | head(1) | last(5)", "layers[*].attn.probs | entropy(key)")
written: list[bytes] = []


class Both(Looker):
    """The local attention's own softmax, and beside it what would be shown if it had none (taps from 100 on)."""

    def step_begin(self, step: int) -> None:
        self.queue = FrameQueue(lambda _, frame: written.append(bytes(frame)))
        demands = []
        for spot in [spot for spot in self.taps.spots if spot.site == "attn.probs"]:
            core = find(spot.chunk.decoder.layers[spot.layer], "self_attention.core_attention")  # type: ignore[index,union-attr]
            fused = Spot(spot.site, spot.layer, OF_FUSED[spot.site], core, spot.chunk)
            for first, place in ((1, spot), (101, fused)):
                taps = [Tap.parse({"id": first + n, "expression": text}, 0.0) for n, text in enumerate(EXPRESSIONS)]
                readers = [TapReader(tap, self.queue) for tap in taps]
                for reader in readers:
                    reader.due = True
                demands.append((place, Demand(readers=[reader.read for reader in readers])))
        self.taps.set(demands)
        self.position.step, self.position.active = step, True

    def step_end(self, step: int, progress: Progress | None) -> None:
        super().step_end(step, progress)
        self.queue.flush()


def frames() -> list[bytes]:
    grouped = "--position-embedding-type rope --group-query-attention --num-query-groups 2"
    train(f"{TINY} --train-iters 1 {grouped}", plugins=(Both,))
    return written


def test_probabilities_of_a_fused_attention_are_those_of_the_plain_softmax() -> None:
    [data] = run_forked(1, frames)
    by_place: dict[tuple[int, int | None, int | None], Frame] = {}
    for frame in map(unpack, data):
        by_place[frame.subscription, frame.layer, frame.microbatch] = frame

    plain = [place for place in by_place if place[0] < 100]
    assert len(plain) == len(EXPRESSIONS) * 4 * 4
    for tap, layer, microbatch in plain:
        expected, found = (of_frame(by_place[number, layer, microbatch]) for number in (tap, tap + 100))
        assert isinstance(expected, Values)
        assert isinstance(found, Values)
        np.testing.assert_array_equal(found.absent, expected.absent)
        np.testing.assert_allclose(found.array, expected.array, atol=1e-6)

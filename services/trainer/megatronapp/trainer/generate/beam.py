"""Beam search over one prompt, as a pure state: what the model says of each beam goes in, what to feed next comes out.

A beam's score is its log-probability divided by its length to the power of `length_penalty`, as of Megatron-LM's and
Hugging Face's BeamHypotheses; lengths count drawn tokens, a stop token among them. The search ends when no beam under
way can score better than the worst of the `width` finished ones, or at `most` tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """A way on from the prompt; `parent` is the place of the beam that it continues, among those before."""

    ids: tuple[int, ...]
    log_probability: float
    parent: int = 0


@dataclass(frozen=True)
class BeamSearch:
    width: int
    most: int
    length_penalty: float
    ends: Callable[[tuple[int, ...]], bool]
    """Whether a way with these ids ends with its last one."""
    open: tuple[Way, ...] = (Way((), 0.0),)
    """Best first; the beams to feed next."""
    finished: tuple[Way, ...] = ()
    """Best first, at most `width`."""

    def score(self, way: Way) -> float:
        return self._score(way.log_probability, len(way.ids))

    def _score(self, log_probability: float, length: int) -> float:
        return log_probability / max(length, 1) ** self.length_penalty

    @property
    def done(self) -> bool:
        if not self.open or len(self.open[0].ids) >= self.most:
            return True
        if len(self.finished) < self.width:
            return False
        return max(self._best(way) for way in self.open) <= self.score(self.finished[-1])

    def _best(self, way: Way) -> float:
        """What it may come to at best: no token lifts its log-probability, and its length may be any up to `most`."""
        lengths = (len(way.ids) + 1, self.most)
        return max(self._score(way.log_probability, length) for length in lengths)

    @property
    def best(self) -> tuple[Way, ...]:
        """The finished ways, with those under way once the search has come to its length; best first."""
        ways = self.finished
        if self.open and len(self.open[0].ids) >= self.most:
            ways += self.open
        return tuple(sorted(ways, key=self.score, reverse=True))[: self.width]

    def advance(self, candidates: Sequence[Sequence[tuple[int, float]]]) -> BeamSearch:
        """By one token. `candidates`: of each open beam the likeliest ids with their log-probabilities, 2 x width of
        them or as many as there are: half of them may end."""
        ways = [
            Way((*beam.ids, token), beam.log_probability + log_probability, parent)
            for parent, beam in enumerate(self.open)
            for token, log_probability in candidates[parent]
        ]
        ways.sort(key=lambda way: way.log_probability, reverse=True)
        going: list[Way] = []
        ended = list(self.finished)
        for way in ways[: 2 * self.width]:
            if self.ends(way.ids):
                ended.append(way)
            elif len(going) < self.width:
                going.append(way)
        ended.sort(key=self.score, reverse=True)
        return BeamSearch(
            self.width, self.most, self.length_penalty, self.ends, tuple(going), tuple(ended[: self.width])
        )

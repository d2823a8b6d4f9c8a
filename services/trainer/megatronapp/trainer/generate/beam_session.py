"""One request under way by beam search: prompt after prompt, each with the beams as the rows of its cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from megatronapp.core.errors import TrainingError
from megatronapp.core.generation import Beam, BeamsMoved, Event, GenerationRequest, RowFinished, Started
from megatronapp.trainer.generate.beam import BeamSearch, Way
from megatronapp.trainer.generate.cache import Cache
from megatronapp.trainer.generate.engine import Engine, ranked
from megatronapp.trainer.generate.rows import Row
from megatronapp.trainer.generate.stops import TextUntilStop


class BeamSession:
    """As Session: `step` until `done`."""

    def __init__(self, engine: Engine, request: GenerationRequest, rows: Sequence[Row], cache: Cache) -> None:
        self.request = request
        self.cache = cache
        self.rows = rows
        self._engine = engine
        self._steps = 0
        self._open = list(rows)
        self._search = self._begin()

    def start(self) -> list[Event]:
        return [Started(request=self.request.id, rows=tuple(row.prompt_tokens() for row in self.rows))]

    @property
    def ids(self) -> list[list[int]]:
        """Of the rows that the cache holds."""
        return [[*self._open[0].ids, *way.ids] for way in self._search.open] if self._open else []

    @property
    def done(self) -> bool:
        return not self._open

    def _begin(self) -> BeamSearch:
        request, row = self.request, self._open[0]
        return BeamSearch(
            request.beam_width, request.max_new_tokens, request.length_penalty, lambda ids: self._ends(row, ids)
        )

    def step(self) -> list[Event]:
        row, search, cache = self._open[0], self._search, self.cache
        start = cache.at
        end = self._engine.end_of_pass(cache, len(row.ids) + len(search.open[0].ids), all_logits=False)
        fed = [[*row.ids, *way.ids][start:end] for way in search.open]
        logits = self._engine.forward(self.request.id, fed, cache, all_logits=False)
        self._steps += 1
        if end < len(row.ids):
            return []
        self._search = search = search.advance(self._candidates(logits))
        events: list[Event] = [
            BeamsMoved(request=self.request.id, step=self._steps, row=row.number, beams=self._beams(row))
        ]
        if search.done:
            return [*events, self._finish()]
        self.cache = cache.select([way.parent for way in search.open])
        return events

    def _candidates(self, logits: torch.Tensor | None) -> list[list[tuple[int, float]]]:
        """2 x width for each open beam. Raises TrainingError on all ranks where the model's answer is no number."""
        count = min(2 * self.request.beam_width, self._engine.limits.vocabulary)

        def choose(logits: torch.Tensor) -> torch.Tensor:
            return ranked(self._engine.real(logits[:, -1]).double().log_softmax(-1), count)

        numbers = self._engine.ranks.chosen((len(self._search.open), 2 * count), logits, choose)
        if bool(numbers.isnan().any()):
            raise TrainingError("the model's logits are no numbers")
        return [
            [(int(token), value) for token, value in zip(row[::2], row[1::2], strict=True)] for row in numbers.tolist()
        ]

    # ---- what comes of it

    def _finish(self) -> RowFinished:
        """Of the first open row; the next one begins."""
        row = self._open.pop(0)
        beams = tuple(self._beam(row, way) for way in self._search.best)
        row.end = "stop" if beams[0].finished else "length"
        if self._open:
            self._search, self.cache = self._begin(), Cache(1, self.cache.positions)
        return RowFinished(request=self.request.id, row=row.number, reason=row.end, text=beams[0].text, beams=beams)

    def cancel(self) -> list[Event]:
        events: list[Event] = []
        for row in self._open:
            row.end = "cancelled"
            beams = self._beams(row) if row is self._open[0] else ()
            text = beams[0].text if beams else ""
            events.append(
                RowFinished(request=self.request.id, row=row.number, reason="cancelled", text=text, beams=beams)
            )
        self._open = []
        return events

    def _beams(self, row: Row) -> tuple[Beam, ...]:
        ways = sorted((*self._search.finished, *self._search.open), key=self._search.score, reverse=True)
        return tuple(self._beam(row, way) for way in ways if way.ids)

    def _beam(self, row: Row, way: Way) -> Beam:
        text = TextUntilStop(self.request.stop_words)
        return Beam(
            ids=way.ids,
            text=text.feed(self._text(row, way.ids)) + text.end(),
            log_probability=way.log_probability,
            score=self._search.score(way),
            finished=self._ends(row, way.ids),
        )

    def _ends(self, row: Row, ids: tuple[int, ...]) -> bool:
        if ids[-1] in row.stops:
            return True
        words = self.request.stop_words
        return bool(words) and any(word in self._text(row, ids) for word in words)

    def _text(self, row: Row, ids: tuple[int, ...]) -> str:
        """What these tokens add to the prompt's text; a stop token adds none."""
        kept = ids[:-1] if ids[-1] in row.stops else ids
        detokenize = self._engine.tokenizer.detokenize
        return detokenize([*row.ids, *kept])[len(detokenize(row.ids)) :]

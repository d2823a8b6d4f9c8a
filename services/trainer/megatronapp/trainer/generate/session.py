"""One request under way, stepped by all ranks alike: rows that grow together, by sampling or by what is given.

All rows are at the same position. The first passes go to the end of the shortest row; then every pass is one position
further, and a longer prompt's next token stands in for a drawn one. So no row holds padding before its end, and each
computes what it would alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from megatronapp.core.errors import TrainingError
from megatronapp.core.generation import Event, GenerationRequest, RowFinished, Started, Stepped, Token
from megatronapp.trainer.generate.cache import Cache
from megatronapp.trainer.generate.engine import Engine, ranked
from megatronapp.trainer.generate.rows import Row
from megatronapp.trainer.generate.sampling import decayed_top_p, draw, uniform

NOTHING_KNOWN = -1


class Session:
    """`step` until `done`. What it returns is the same on all ranks, but for logits, which rank 0 has."""

    def __init__(self, engine: Engine, request: GenerationRequest, rows: Sequence[Row], cache: Cache) -> None:
        self.request = request
        self.cache = cache
        self.rows = rows
        self._engine = engine
        self._steps = 0
        self._no_newline_after = _no_newline_after(engine, request)

    def start(self) -> list[Event]:
        started = Started(request=self.request.id, rows=tuple(row.prompt_tokens() for row in self.rows))
        return [started, *self._finished(self.rows)]

    @property
    def ids(self) -> list[list[int]]:
        return [row.ids for row in self.rows]

    @property
    def done(self) -> bool:
        return not any(self._is_open(row) for row in self.rows)

    def _is_open(self, row: Row) -> bool:
        return row.end is None and (row.most > 0 or self.cache.at < row.given - 1)

    # ---- one step

    def step(self) -> list[Event]:
        """Raises TrainingError on all ranks where the model's answer is no number."""
        start, ends = self.cache.at, [row.end for row in self.rows]
        drawing = [len(row.ids) for row in self.rows if row.draws]
        furthest = min(drawing) if drawing else max(len(row.ids) for row in self.rows if self._is_open(row)) - 1
        scored = any(self._is_scored(row, position) for row in self.rows for position in range(start + 1, furthest))
        end = self._engine.end_of_pass(self.cache, furthest, all_logits=scored)
        fed = [[row.ids[at] if at < len(row.ids) else 0 for at in range(start, end)] for row in self.rows]
        logits = self._engine.forward(self.request.id, fed, self.cache, all_logits=scored)
        positions = range(start + 1 if scored else end, end + 1)
        numbers = self._choose(logits, positions)
        values = self._logits(logits, len(positions)) if self.request.logits else None
        self._steps += 1
        tokens = [
            token
            for row, of_row in enumerate(self.rows)
            for place, position in enumerate(positions)
            if (token := self._take(of_row, position, numbers[row][place], values, place)) is not None
        ]
        events: list[Event] = [Stepped(request=self.request.id, step=self._steps, tokens=tuple(tokens))]
        return events + self._finished([row for row, before in zip(self.rows, ends, strict=True) if before is None])

    def _is_scored(self, row: Row, position: int) -> bool:
        """Whether a given token's probability is asked for."""
        scored_from = 1 if self.request.prompt_log_probabilities else max(row.prompt, 1)
        return scored_from <= position < row.given

    def _choose(self, logits: torch.Tensor | None, positions: range) -> list[list[list[float]]]:
        """For each row and position: id, its log-probability, then the candidates."""
        known = [[row.ids[at] if at < len(row.ids) else NOTHING_KNOWN for at in positions] for row in self.rows]
        count = self.request.top_candidates

        def choose(logits: torch.Tensor) -> torch.Tensor:
            real = self._engine.real(logits)
            ids = torch.tensor(known, device=real.device)
            last = torch.where(ids[:, -1] == NOTHING_KNOWN, self._draw(real[:, -1], positions[-1]), ids[:, -1])
            ids = torch.cat((ids[:, :-1].clamp(min=0), last[:, None]), dim=1)
            log_probabilities = real.double().log_softmax(-1)
            of_ids = log_probabilities.gather(-1, ids[..., None])
            return torch.cat((ids[..., None].double(), of_ids, ranked(log_probabilities, count)), dim=-1)

        shape = (len(self.rows), len(positions), 2 + 2 * count)
        numbers: list[list[list[float]]] = self._engine.ranks.chosen(shape, logits, choose).tolist()
        return numbers

    def _draw(self, logits: torch.Tensor, position: int) -> torch.Tensor:
        sampling, device = self.request.sampling, logits.device
        if self._no_newline_after is not None:
            colon, newline = self._no_newline_after
            after = [row.number for row in self.rows if len(row.ids) == position and row.ids[-1] == colon]
            logits = logits.clone()
            logits[after, newline] = -torch.inf
        uniforms = [uniform(self.request.seed + row.number, position) for row in self.rows]
        top_p = [decayed_top_p(sampling, row.drawn) for row in self.rows]
        numbers = torch.tensor([uniforms, top_p], dtype=torch.float64, device=device)
        return draw(logits, sampling, numbers[0], numbers[1])

    def _logits(self, logits: torch.Tensor | None, count: int) -> torch.Tensor:
        """[rows, count, vocabulary], float32."""
        shape = (len(self.rows), count, self._engine.limits.vocabulary)

        return self._engine.ranks.chosen(
            shape, logits, lambda logits: self._engine.real(logits).contiguous(), torch.float32
        )

    # ---- what comes of it

    def _take(
        self, row: Row, position: int, numbers: Sequence[float], logits: torch.Tensor | None, place: int
    ) -> Token | None:
        """The token at this position of the row, where there is one that anybody asked for."""
        token, log_probability = int(numbers[0]), numbers[1]
        if position < len(row.ids):
            if not self._is_scored(row, position):
                return None
            text, delta = row.given_token(position)
        elif row.draws and position == len(row.ids):
            text, delta = row.draw(token)
        else:
            return None
        if log_probability != log_probability:
            raise TrainingError(f"the model's logits at position {position} of row {row.number} are no numbers")
        return Token(
            row=row.number,
            position=position,
            id=token,
            text=text,
            delta=delta,
            piece=row.piece(token, text),
            origin=row.origin(position),
            log_probability=log_probability,
            candidates=self._engine.candidates(numbers[2:]),
            logits=b"" if logits is None else logits[row.number, place].numpy().astype("<f4").tobytes(),
        )

    def _finished(self, rows: Sequence[Row]) -> list[Event]:
        """Of those that were open before this step."""
        for row in rows:
            if row.end is None and not self._is_open(row):
                row.end = "length"
        return [
            RowFinished(request=self.request.id, row=row.number, reason=row.end, text="".join(row.added))
            for row in rows
            if row.end is not None
        ]

    def cancel(self) -> list[Event]:
        open_rows = [row for row in self.rows if row.end is None]
        for row in open_rows:
            row.cancel()
        return self._finished(open_rows)


def _no_newline_after(engine: Engine, request: GenerationRequest) -> tuple[int, int] | None:
    """The ids of a colon and of a newline, where the one must not follow the other."""
    if not request.no_newline_after_colon:
        return None
    return engine.tokenizer.tokenize(":")[-1], engine.tokenizer.tokenize("\n")[-1]

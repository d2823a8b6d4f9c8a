"""One request under way for gradient × input: one pass forward and back, all ranks alike."""

from __future__ import annotations

import torch

from megatronapp.core.errors import TrainingError, UsageError
from megatronapp.core.generation import Event, GenerationRequest, InputGradients, RowFinished, Started, Stepped, Token
from megatronapp.trainer.generate.engine import TOKENS_PER_PASS, Engine
from megatronapp.trainer.generate.gradients import Differentiated
from megatronapp.trainer.generate.rows import Row


class GradientSession:
    """As Session: `step` until `done`, which is once."""

    def __init__(self, engine: Engine, request: GenerationRequest, row: Row) -> None:
        """Raises UsageError for more tokens than one pass takes."""
        if len(row.ids) > TOKENS_PER_PASS:
            raise UsageError(f"gradients of {len(row.ids)} tokens: one pass takes {TOKENS_PER_PASS}")
        self.request = request
        self._engine = engine
        self._row = row

    def start(self) -> list[Event]:
        return [Started(request=self.request.id, rows=(self._row.prompt_tokens(),))]

    @property
    def done(self) -> bool:
        return self._row.end is not None

    def step(self) -> list[Event]:
        """Raises TrainingError on all ranks where the model's answer is no number."""
        row, request = self._row, self.request.id
        found = self._engine.differentiated(request, row.ids[:-1], self._answer)
        scores = self._scores(found)
        values = self._times_input(found)
        if not (scores.isfinite().all() and values.isfinite().all()):
            raise TrainingError("the model's logits, or their gradient, are no numbers")
        tokens = tuple(self._token(position, float(score)) for position, score in enumerate(scores, row.prompt))
        row.end = "length"
        return [
            Stepped(request=request, step=1, tokens=tokens),
            InputGradients(request=request, row=row.number, values=tuple(values.tolist())),
            self._finished(),
        ]

    def cancel(self) -> list[Event]:
        if self.done:
            return []
        self._row.cancel()
        return [self._finished()]

    def _of_continuation(self, logits: torch.Tensor) -> torch.Tensor:
        """[continuation]: log-probabilities."""
        row, real = self._row, self._engine.real(logits)[0].double().log_softmax(-1)
        ids = torch.tensor(row.ids[row.prompt :], device=real.device)
        return real[row.prompt - 1 :].gather(-1, ids[:, None])[:, 0]

    def _answer(self, logits: torch.Tensor) -> torch.Tensor:
        return self._of_continuation(logits).sum()

    def _scores(self, found: Differentiated) -> torch.Tensor:
        shape = (len(self._row.ids) - self._row.prompt,)
        return self._engine.ranks.chosen(shape, found.logits, self._of_continuation)

    def _times_input(self, found: Differentiated) -> torch.Tensor:
        """[token], of all but the last."""
        here = found.embedded is not None and found.gradient is not None
        mine = (found.embedded.double() * found.gradient.double()).sum(-1)[:, 0] if here else None  # type: ignore[union-attr]
        return self._engine.ranks.of_first((len(self._row.ids) - 1,), mine)

    def _token(self, position: int, log_probability: float) -> Token:
        text, delta = self._row.given_token(position)
        return Token(
            row=self._row.number,
            position=position,
            id=self._row.ids[position],
            text=text,
            delta=delta,
            piece=self._row.piece(self._row.ids[position], text),
            origin=self._row.origin(position),
            log_probability=log_probability,
        )

    def _finished(self) -> RowFinished:
        row = self._row
        assert row.end is not None  # noqa: S101
        return RowFinished(request=self.request.id, row=row.number, reason=row.end, text="".join(row.added))

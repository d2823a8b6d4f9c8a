"""Causal tracing: where a model holds what tells two prompts apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatronapp.core.errors import UsageError
from megatronapp.core.experiments.passes import Experiment, ModelShape, Pass, answer_of, answered
from megatronapp.core.generation import Prompt
from megatronapp.core.scope.intervention import patch
from megatronapp.core.scope.measures import Doubles

CLEAN = "clean"
MOST_ROWS = 64
"""Of one pass of a trace."""


@dataclass(frozen=True)
class Trace:
    """The answer's log-probability in the clean and the corrupted prompt, and in the corrupted one with one cell of the
    clean one: `patched` [layer, token] or, of a site with heads, [layer, head]."""

    tokens: list[str]
    """Of the corrupted prompt."""
    layers: list[int]
    clean: float
    corrupted: float
    patched: Doubles

    @property
    def effect(self) -> Doubles:
        """0: as corrupted, 1: as clean; NaN where the two prompts lead to the answer alike."""
        difference = self.clean - self.corrupted or np.nan
        return np.asarray((self.patched - self.corrupted) / difference)


def causal_trace(
    clean: Prompt,
    corrupted: Prompt,
    answer: Prompt,
    shape: ModelShape,
    *,
    site: str = "resid_post",
    layers: Sequence[int] = (),
    by_head: bool = False,
) -> Experiment[Trace]:
    """Values of the clean prompt in place of the corrupted one's, one layer and token (or head) at a time (Meng et al.,
    "Locating and Editing Factual Associations in GPT", 2022). Prompts are of the same number of tokens; of an answer of
    several tokens the log-probabilities are summed. Raises UsageError."""
    chosen = list(layers) or list(range(shape.layers))
    keep = (f"layers[{','.join(map(str, chosen))}].{site}",)
    kept = yield Pass(answered(clean, answer, keep=keep), name=CLEAN)
    given = yield Pass(answered(corrupted, answer))
    ids, tokens = [token.id for token in given.rows[0].prompt], [token.text for token in given.rows[0].prompt]
    if len(kept.rows[0].prompt) != len(ids):
        raise UsageError(
            f"the clean prompt has {len(kept.rows[0].prompt)} tokens, the corrupted one {len(ids)}: give as many"
        )
    columns = shape.heads if by_head else len(ids)
    cells = [(layer, column) for layer in chosen for column in range(columns)]
    found: list[float] = []
    for at in range(0, len(cells), MOST_ROWS):
        some = cells[at : at + MOST_ROWS]
        patches = [
            patch(site, CLEAN, layers=str(layer), rows=str(row), **{"heads" if by_head else "tokens": str(column)})
            for row, (layer, column) in enumerate(some)
        ]
        outcome = yield Pass(answered(tuple(ids), answer, rows=len(some), interventions=tuple(patches)))
        found += [answer_of(row) for row in outcome.rows]
    patched = np.array(found).reshape(len(chosen), columns)
    return Trace(tokens, chosen, answer_of(kept.rows[0]), answer_of(given.rows[0]), patched)

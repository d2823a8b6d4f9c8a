"""What the tokens of a picture are called: their texts, as in the midst of others."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from megatronapp.core.scope.frame import Section
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import Result
from megatronapp.core.scope.token_texts import pack_texts

if TYPE_CHECKING:
    from megatronapp.trainer.data.tokenizers import Tokenizer

KNOWN = 1 << 14
"""Texts that are kept for the next step."""


class Speller:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._text = lru_cache(KNOWN)(self._spelled)

    def __call__(self, result: Result) -> dict[Section, bytes]:
        """What goes with a frame of ids, on the host."""
        if not isinstance(result, Values):
            return {}
        ids = result.array[np.isfinite(result.array)].astype(np.int64)
        inside = ids[(ids >= 0) & (ids < self._tokenizer.vocab_size)]
        return {Section.TOKEN_TEXTS: pack_texts({token: self._text(token) for token in dict.fromkeys(inside.tolist())})}

    def _spelled(self, token: int) -> str:
        """Behind itself: a text's first token may lose its blank. Of no text by itself: as the vocabulary has it."""
        from megatronapp.trainer.data.tokenizers import REPLACEMENT  # who looks on without one may lack its library

        once, twice = (self._tokenizer.detokenize([token] * count) for count in (1, 2))
        text = twice[len(once) :]
        readable = REPLACEMENT not in text and any(each.isprintable() or each in "\n\r\t" for each in text)
        return text if readable else self._tokenizer.piece(token)

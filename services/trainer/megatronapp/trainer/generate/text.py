"""Token ids to text, piece by piece.

A token may end inside of a character. Its bytes are held back until the token that completes the character: decoded
without that one they are a single U+FFFD at the end of the text, as Unicode has decoders replace the longest beginning
of a character. What stands before it is final. Decoding looks at the few tokens since the last whole piece, and at that
piece, as a token's text may depend on the token before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from megatronapp.trainer.data.tokenizers import REPLACEMENT, Tokenizer


class GrowingText:
    """The text of tokens that come one by one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []
        """The last whole piece."""
        self._open: list[int] = []
        """What has come since, of whose text `_shown` characters are out."""
        self._shown = 0

    def add(self, token: int) -> str:
        """What the text grows by; empty while all that comes is held back."""
        self._open.append(token)
        text = self._text()
        if text.endswith(REPLACEMENT):
            fresh, self._shown = text[self._shown : -1], max(self._shown, len(text) - 1)
            return fresh
        return self._close(text)

    def piece(self, token: int) -> str:
        """How the vocabulary spells it."""
        return self._tokenizer.piece(token)

    def end(self) -> str:
        """What was held back, as nothing follows."""
        return self._close(self._text())

    def _text(self) -> str:
        known = len(self._tokenizer.detokenize(self._before))
        return self._tokenizer.detokenize(self._before + self._open)[known:]

    def _close(self, text: str) -> str:
        fresh = text[self._shown :]
        if self._open:
            self._before, self._open, self._shown = self._open, [], 0
        return fresh


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[list[str], GrowingText]:
    """The text of each of the tokens, and the text to go on with."""
    text = GrowingText(tokenizer)
    return [text.add(token) for token in ids], text

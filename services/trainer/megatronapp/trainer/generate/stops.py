"""When a row ends: at a stop token, at a stop word in what it adds to its prompt, or at its length."""

from __future__ import annotations

from collections.abc import Sequence

from megatronapp.core.generation import GenerationRequest, RowEnd


def stop_ids(request: GenerationRequest, end_of_document: int) -> frozenset[int]:
    return frozenset(request.stop_tokens) | (frozenset({end_of_document}) if request.stop_at_end_of_document else set())


def end_of_row(stops: frozenset[int], token: int, stopped: bool, drawn: int, most: int) -> RowEnd | None:
    """Why a row ends that has drawn `token` as the `drawn`-th of at most `most`, `stopped` by a word in its text; None:
    it goes on."""
    if token in stops or stopped:
        return "stop"
    return "length" if drawn >= most else None


class TextUntilStop:
    """Text that grows piece by piece, up to the first stop word."""

    """What may be the beginning of a stop word is held back until it is known to be none."""

    def __init__(self, stop_words: Sequence[str] = ()) -> None:
        self._stop_words = stop_words
        self._held = ""
        self.text = ""
        """All that was let through."""
        self.stopped = False

    def feed(self, piece: str) -> str:
        """What of the text may be shown now; nothing once it has stopped."""
        if self.stopped:
            return ""
        held = self._held + piece
        found = [at for word in self._stop_words if (at := held.find(word)) >= 0]
        if found:
            self.stopped = True
            return self._let_through(held, min(found))
        return self._let_through(held, len(held) - self._begun(held))

    def end(self) -> str:
        """What was held back, as nothing follows."""
        return "" if self.stopped else self._let_through(self._held, len(self._held))

    def _begun(self, text: str) -> int:
        """The longest end of `text` with which a stop word begins."""
        longest = max(map(len, self._stop_words), default=0) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(word.startswith(text[-size:]) for word in self._stop_words):
                return size
        return 0

    def _let_through(self, text: str, end: int) -> str:
        self._held = text[end:]
        self.text += text[:end]
        return text[:end]

"""What a terminal, or another program, reads of a request's events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from megatronapp.core.generation import Event, Prompt, RowFinished, Started, Stepped

Write = Callable[[str], object]


class PlainText:
    """One prompt: its text as it grows. Several: each row as it ends, under a line with its number. The prompt comes
    first."""

    def __init__(self, prompts: Sequence[Prompt], write: Write) -> None:
        self._prompts = [prompt if isinstance(prompt, str) else "" for prompt in prompts]
        self._write = write

    def show(self, event: Event) -> None:
        alone = len(self._prompts) == 1
        if isinstance(event, Started) and alone:
            self._write(self._prompts[0])
        elif isinstance(event, Stepped) and alone:
            self._write("".join(token.delta for token in event.tokens))
        elif isinstance(event, RowFinished) and event.beams:
            self._beams(event, alone)
        elif isinstance(event, RowFinished):
            self._write("\n" if alone else f"--- {event.row}\n{self._prompts[event.row]}{event.text}\n")

    def _beams(self, event: RowFinished, alone: bool) -> None:
        self._write("\n" if alone else f"--- {event.row}\n{self._prompts[event.row]}\n")
        for beam in event.beams:
            self._write(f"{beam.score:.4f}  {beam.text}\n")

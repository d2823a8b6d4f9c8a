"""What a terminal shows of events."""

from __future__ import annotations

from megatronapp.core.generation import Beam, Event, RowFinished, Started, Stepped, Token
from megatronapp.trainer.generate.output import PlainText


def shown(prompts: list[str], events: list[Event]) -> str:
    written: list[str] = []
    plain = PlainText(prompts, written.append)
    for event in events:
        plain.show(event)
    return "".join(written)


def stepped(row: int, delta: str) -> Stepped:
    token = Token(row=row, position=1, id=5, text="?", delta=delta, origin="sampled", log_probability=-1.0)
    return Stepped(request="", step=1, tokens=(token,))


def finished(row: int, text: str, *beams: Beam) -> RowFinished:
    return RowFinished(request="", row=row, reason="length", text=text, beams=beams)


def test_one_prompt_grows_by_its_deltas() -> None:
    events = [Started(request="", rows=()), stepped(0, " b"), stepped(0, ""), stepped(0, "c"), finished(0, " bc")]

    assert shown(["a"], events) == "a bc\n"


def test_several_appear_as_they_end() -> None:
    events = [Started(request="", rows=()), stepped(0, "x"), stepped(1, "y"), finished(1, "y"), finished(0, "x")]

    assert shown(["a", "b"], events) == "--- 1\nby\n--- 0\nax\n"


def test_nothing_appears_of_what_is_refused() -> None:
    assert shown(["a"], []) == ""


def test_beams_appear_best_first_with_their_scores() -> None:
    beams = [
        Beam(ids=(1,), text=text, log_probability=-1.0, score=score, finished=True)
        for text, score in (("x", -1.25), ("y", -2.0))
    ]

    assert shown(["a"], [Started(request="", rows=()), finished(0, "x", *beams)]) == "a\n-1.2500  x\n-2.0000  y\n"

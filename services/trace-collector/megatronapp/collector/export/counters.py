"""What spans tell of how much is held just then, as lines over time beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from megatronapp.collector.export.timeline import Track
from megatronapp.core.trace.span_names import SpanName

HELD, CAP, SLOTS = "activations held", "cap of activations", "slots held"
UNDER_WAY, UNDER_WAY_CAP = "bytes under way", "cap of bytes under way"
_OF_SPANS: dict[str, dict[str, str]] = {
    SpanName.DECIDE: {HELD: "tokens", CAP: "length_squares"},
    SpanName.IN_FLIGHT: {UNDER_WAY: "tokens", UNDER_WAY_CAP: "length_squares"},
    SpanName.WAIT_INPUT: {SLOTS: "tokens"},
}
"""By span and counter, the argument that has its value; a span does not carry what is 0."""


class Count(NamedTuple):
    """A counter's value from then on."""

    name: str
    at_ns: int
    value: int


def counts(track: Track) -> Iterator[Count]:
    """In the order of time. Where no cap holds a stage up, it has none."""
    for slice_ in track.slices:
        for counter, argument in _OF_SPANS.get(slice_.name, {}).items():
            value = slice_.arguments.get(argument, 0)
            if value or counter != CAP:
                yield Count(counter, slice_.start_ns, value)

"""What is shown is to be had again, exactly, by who asks for the same in another quantiser."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from megatronapp.core.scope.frame import Section, pack, unpack
from megatronapp.core.scope.quantize import Values, decode
from megatronapp.core.scope.results import to_frame
from megatronapp.trainer.agent.shown_frames import ShownFrames
from megatronapp.v1 import scope_pb2

VALUES = np.array([[1.5, np.nan], [-np.inf, 1e-30]], np.float32)


def tap(number: int, quantizer: str = "asinh", expression: str = "layers[*].resid_post") -> scope_pb2.ScopeTap:
    return scope_pb2.ScopeTap(id=number, expression=expression, quantizer=quantizer)


def keep(shown: ShownFrames, number: int, step: int, layer: int = 0, request: str = "") -> None:
    sections = {Section.REQUEST: request.encode()} if request else {}
    frame = replace(to_frame(Values(VALUES * step), "f32"), step=step, layer=layer, sections=sections)
    shown.keep(number, frame, pack(frame))


def steps(frames: list[tuple[int, bytes]]) -> list[tuple[int, int | None, int]]:
    """Tap, layer, step."""
    unpacked = [(number, unpack(data)) for number, data in frames]
    assert all(frame.subscription == number for number, frame in unpacked)
    return [(number, frame.layer, frame.step) for number, frame in unpacked]


def test_another_quantiser_gets_the_newest_of_each_layer_at_once() -> None:
    shown = ShownFrames()
    assert shown.ask([tap(1)]) == []
    for step in (3, 4):
        keep(shown, 1, step, layer=0)
        keep(shown, 1, step, layer=1)

    found = shown.ask([tap(1), tap(2, "f32")])

    assert steps(found) == [(2, 0, 4), (2, 1, 4)]
    np.testing.assert_array_equal(decode(unpack(found[0][1])).array, VALUES * 4)
    assert shown.ask([tap(1), tap(2, "f32")]) == []


def test_of_a_generation_each_step_is_kept() -> None:
    shown = ShownFrames()
    shown.ask([tap(1)])
    for step in (3, 4):
        keep(shown, 1, step, request="r")

    assert steps(shown.ask([tap(1), tap(2, "f16")])) == [(2, 0, 3), (2, 0, 4)]


def test_another_expression_gets_nothing() -> None:
    shown = ShownFrames()
    shown.ask([tap(1)])
    keep(shown, 1, 3)

    assert shown.ask([tap(1), tap(2, "f32", "layers[*].resid_post | last(1)")]) == []


def test_what_nobody_looks_at_any_more_is_forgotten() -> None:
    shown = ShownFrames()
    shown.ask([tap(1)])
    keep(shown, 1, 3)
    shown.ask([])
    keep(shown, 1, 4)  # one that was on its way

    assert shown.ask([tap(2, "f32")]) == []


def test_the_oldest_go_when_it_is_too_much() -> None:
    shown = ShownFrames(max_bytes=600)
    shown.ask([tap(1)])
    for step in range(1, 10):
        keep(shown, 1, step, request="r")

    found = shown.ask([tap(1), tap(2, "f32")])

    assert sum(len(data) for _, data in found) <= 600
    assert [step for _, _, step in steps(found)] == list(range(10 - len(found), 10))
    assert found

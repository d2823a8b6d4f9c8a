"""The GPU's clock on the host's: better than any single bracket, and not fooled by a clock that is set."""

from __future__ import annotations

import numpy as np
import pytest

from megatronapp.trainer.plugins.scan.host_line import Bracket, HostLine

START_NS = 5_000_000_000_000
STEP_NS = 400_000_000


def brackets(count: int, seed: int = 1, drift: float = 3e-6) -> tuple[list[Bracket], list[int]]:
    """Brackets of 8 to 11 us around events that lie within the middle half, and the true host times."""
    random = np.random.default_rng(seed)
    made, truth = [], []
    for i in range(count):
        true = START_NS + round(i * STEP_NS * (1 + drift))
        width = random.uniform(8_000, 11_000)
        inside = random.uniform(0.3, 0.7) * width
        made.append(Bracket(i * STEP_NS, round(true - inside), round(true - inside + width)))
        truth.append(true)
    return made, truth


def test_a_line_is_several_times_better_than_single_brackets() -> None:
    made, truth = brackets(200)
    line = HostLine()

    errors = [line.place(bracket).host_ns - true for bracket, true in zip(made, truth, strict=True)][32:]
    single = [bracket.middle_ns - true for bracket, true in zip(made, truth, strict=True)][32:]

    assert np.median(np.abs(errors)) < np.median(np.abs(single)) / 3


def test_the_first_bracket_is_its_own_middle() -> None:
    assert HostLine().place(Bracket(0, 1_000, 9_000)) == (5_000, 4_000, 0.0)


@pytest.mark.parametrize("drift", [30e-6, -30e-6])
def test_what_comes_after_a_reference_is_placed_by_the_clocks_relative_speed(drift: float) -> None:
    made, truth = brackets(60, drift=drift)
    line = HostLine()

    placed = [line.place(bracket) for bracket in made][-1]

    later_ns = 900_000_000
    assert abs(placed.after(later_ns) - truth[-1] - round(later_ns * (1 + drift))) < 1_500


def test_a_disturbed_bracket_does_not_move_the_line() -> None:
    made, truth = brackets(60)
    line = HostLine()
    for bracket in made[:-1]:
        line.place(bracket)

    placed = line.place(made[-1]._replace(after_ns=made[-1].after_ns + 300_000))

    assert abs(placed.host_ns - truth[-1]) < 1_500


def test_a_clock_that_was_set_makes_the_line_begin_anew() -> None:
    made, truth = brackets(60)
    line = HostLine()
    for bracket in made[:30]:
        line.place(bracket)

    jumped = [Bracket(b.device_ns, b.before_ns + 10**9, b.after_ns + 10**9) for b in made[30:]]
    placed = [line.place(bracket).host_ns for bracket in jumped]

    assert max(abs(p - t - 10**9) for p, t in zip(placed, truth[30:], strict=True)) < 5_000


def test_the_native_recorder_places_alike() -> None:
    native = pytest.importorskip("megatronapp.scan", reason="the native recorder is not installed")
    made, _ = brackets(100, seed=2)
    line = HostLine()

    ours = [line.place(bracket) for bracket in made]

    theirs = native.place_brackets([tuple(bracket) for bracket in made])
    assert np.abs(np.array(theirs)[:, :2] - np.array(ours)[:, :2]).max() <= 1
    assert np.allclose([drift for *_, drift in theirs], [placed.drift for placed in ours], atol=1e-12)

"""What is typed as an intervention."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from megatronapp.cli import scope
from megatronapp.cli.scope import intervention, numbers, scope_app
from megatronapp.core.errors import UsageError
from megatronapp.core.experiments import SweepPoint
from megatronapp.core.scope.intervention import Intervention


def test_an_intervention_is_read() -> None:
    found = intervention("kind=scale site=attn.context coefficient=0.5 layers=2 heads=0,3 redraw=true")

    assert found == Intervention(
        kind="scale", site="attn.context", coefficient=0.5, layers="2", heads="0,3", redraw=True
    )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("kind", "write name=value"),
        ("sort=zero", "write name=value, of place, site"),
        ("coefficient=much", "write a number"),
        ("vector=1,2", "from Python"),
    ],
)
def test_what_is_none_is_refused_in_one_line(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word) as refused:
        intervention(text)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "0.1,", "much", "1;2"])
def test_strengths_that_are_no_numbers_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"such as 0\.1,0\.3,1"):
        numbers(text)


def test_a_sweep_is_a_line_a_strength(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class Model:
        reason = ""

        def sweep(self, *given: object) -> list[SweepPoint]:
            asked.extend((self.reason, *given))
            return [SweepPoint(0.1, [1.0, 2.0], 1.5, 0.98), SweepPoint(1.0, [4.0, 4.0], 4.0, 0.0)]

    monkeypatch.setattr(scope, "_model", lambda *_: Model())
    arguments = ["sweep", "The king", "--intervention", "kind=noise1 site=mlp.out", "--coefficients", "0.1,1"]

    shown = CliRunner().invoke(scope_app, [*arguments, "--seeds", "2", "--reason", "how far"])

    assert asked == ["how far", "The king", Intervention(kind="noise1", site="mlp.out"), [0.1, 1.0], 2]
    assert [line.split() for line in shown.stdout.splitlines()[1:]] == [["0.1", "1.5", "0.98"], ["1", "4", "0"]]

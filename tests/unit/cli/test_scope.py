"""What is typed as an intervention."""

from __future__ import annotations

import pytest

from megatronapp.cli.scope import intervention
from megatronapp.core.errors import UsageError
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

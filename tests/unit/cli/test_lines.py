"""What people see of the ranks' logs."""

from __future__ import annotations

import re

import pytest

from megatronapp.cli.lines import readable

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def test_a_log_line_is_told_in_words() -> None:
    line = '{"loss": 5.5, "source": "x", "event": "step", "level": "info", "timestamp": "2026-01-01T00:00:00Z"}'

    shown = COLOURS.sub("", readable(line))

    assert shown.startswith("2026-01-01T00:00:00Z [info")
    assert "step" in shown
    assert "loss=5.5" in shown
    assert "source" not in shown


@pytest.mark.parametrize("line", ["", "Traceback (most recent call last):", '{"torn', "{}", '{"event": 3}', "[1]"])
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert readable(line) == line

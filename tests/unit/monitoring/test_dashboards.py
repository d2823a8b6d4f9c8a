"""The dashboards are what the code makes, and complete."""

from __future__ import annotations

import json

import pytest

from scripts.dashboards.__main__ import DASHBOARDS, FOLDER, documents
from tests.support.promql import selectors


@pytest.mark.parametrize("name", documents())
def test_the_committed_dashboard_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text() == documents()[name], "it has drifted; run: make chart"


def test_there_are_no_others() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == documents().keys()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_lie_beside_and_below_each_other(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name].build()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_asks_something_and_every_variable_is_used(name: str) -> None:
    board = DASHBOARDS[name].build()
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    text = json.dumps(board["panels"]) + json.dumps(board["templating"])

    for query in queries:
        assert selectors(query.replace("$__rate_interval", "1m"))
    for variable in board["templating"]["list"]:
        assert f"${variable['name']}" in text or f"${{{variable['name']}}}" in text

"""The chart's README lists every value as it is."""

from __future__ import annotations

import tomllib

import yaml

from scripts.chart_readme import readme
from tests.support.helm import CHART


def test_the_readme_is_up_to_date() -> None:
    assert (CHART / "README.md").read_text() == readme(), "the chart's README has drifted; run: make chart"


def test_the_chart_s_version_is_the_product_s() -> None:
    version = tomllib.loads((CHART.parents[2] / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert chart["version"] == chart["appVersion"] == version

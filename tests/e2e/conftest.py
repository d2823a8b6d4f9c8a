"""The order of the suites."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Compose last: it starts the images that the cluster's tests make where they are not there yet."""
    items.sort(key=lambda item: "e2e/compose" in item.path.as_posix())

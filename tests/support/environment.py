"""The settings classes behind the environment variables that chart and compose set."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from megatronapp.collector.settings import CollectorSettings
from megatronapp.core.settings import ServiceSettings
from megatronapp.detector.settings import DetectorSettings
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.operator.settings import OperatorSettings

SETTINGS: dict[str, type[ServiceSettings]] = {
    "collector": CollectorSettings,
    "detector": DetectorSettings,
    "gateway": GatewaySettings,
    "operator": OperatorSettings,
}


def load(service: str, environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    """The service's settings in this environment; fails on a variable that is no setting of it."""
    prefix = f"MEGATRONAPP_{service.upper()}_"
    for name, value in environment.items():
        if not name.startswith("MEGATRONAPP_"):
            continue
        assert name.startswith(prefix), name
        assert name.removeprefix(prefix).lower() in SETTINGS[service].model_fields, f"{name} is no setting"
        monkeypatch.setenv(name, value)
    return SETTINGS[service].load()

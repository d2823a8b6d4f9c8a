"""The committed OpenAPI document is what the gateway serves: the page's client is generated from it."""

from __future__ import annotations

from pathlib import Path

from megatronapp.gateway.openapi import document

COMMITTED = Path(__file__).resolve().parents[2] / "services/scope-gateway/openapi.json"


def test_the_committed_document_is_up_to_date() -> None:
    assert COMMITTED.read_text() == document(), (
        "openapi.json has drifted; run: python -m megatronapp.gateway.openapi > services/scope-gateway/openapi.json"
    )

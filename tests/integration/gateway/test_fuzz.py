"""Whatever is asked of what the OpenAPI document lists: no failure inside, and errors of the one shape."""

from __future__ import annotations

import json
import random
from typing import Any
from urllib.parse import quote

import pytest

from megatronapp.gateway.models import ErrorResponse
from megatronapp.gateway.openapi import document
from tests.integration.gateway.conftest import OPERATOR, Served
from tests.integration.gateway.support import RUN, finding, hello, message

TEXTS = ["", "0", "-1", "1e9", "999999999999999999999999", "NaN", "../..", "\x00", "a" * 5000, "é\u2028", "%", "0-5,7"]
GOOD = ["1", "3", "base", "perfetto", "open", RUN, "finding-1"]
BODIES: list[Any] = [
    None,
    [],
    {},
    "text",
    {"token": None},
    {"token": "x" * 5000},
    {"token": "\ud800"},
    {"enabled": True, "interval": 0, "continuous_iterations": 1, "granularity": "base"},
    {"enabled": True, "interval": 10**30, "continuous_iterations": 1, "granularity": "base"},
    {"enabled": True, "interval": 2, "continuous_iterations": 1, "granularity": "full", "more": 1},
    {"enabled": True, "interval": 2, "continuous_iterations": 1, "granularity": "full"},
]


@pytest.mark.parametrize("requests", [60, pytest.param(600, marks=pytest.mark.long)])
async def test_no_request_makes_the_gateway_fail(served: Served, requests: int) -> None:
    await served.publish(message(hello()), finding(1))
    await served.until("/api/v1/findings", lambda found: len(found) == 1)
    chance = random.Random(20)
    operations = [
        (method, path, operation)
        for path, methods in json.loads(document())["paths"].items()
        for method, operation in methods.items()
    ]

    failed = []
    async with served.client(OPERATOR) as client:
        for _ in range(requests):
            method, path, operation = chance.choice(operations)
            url, query = _arguments(chance, path, operation)
            body = json.dumps(chance.choice(BODIES)).encode() if "requestBody" in operation else None
            answer = await client.request(method, url, params=query, content=body)
            if answer.status_code >= 500:
                failed.append((method, url, query, body, answer.text))
            elif answer.status_code >= 400:
                ErrorResponse.model_validate(answer.json())

    assert not failed


def _arguments(chance: random.Random, path: str, operation: dict[str, Any]) -> tuple[str, dict[str, str]]:
    query = {}
    for parameter in operation.get("parameters", []):
        value = chance.choice(GOOD if chance.random() < 0.6 else TEXTS)
        if parameter["in"] == "path":
            value = chance.choice([RUN, "finding-1"]) if chance.random() < 0.7 else value or "-"
            path = path.replace(f"{{{parameter['name']}}}", quote(value, safe=""))
        elif chance.random() < 0.5:
            query[parameter["name"]] = value
    return path, query

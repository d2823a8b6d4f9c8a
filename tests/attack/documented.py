"""Requests of the gateway, made of its OpenAPI document: what is documented anew is attacked anew."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from megatronapp.gateway.openapi import document
from tests.attack.inputs import TEXTS, any_value, as_json, damaged, mutated

BODIES = (b"[" * 60_000, b'{"a":' * 60_000, b"9" * 5_000, b'{"token": "\\ud800"}', b"\xff\xfe", b"", b"null", b"1e400")


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    query: dict[str, str]
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    parameters: list[dict[str, Any]]
    body: dict[str, Any] | None
    """The schema of its body."""
    schemas: dict[str, Any]

    def request(self, chance: random.Random, known: Sequence[str]) -> Request:
        """`known` are runs and findings that are there."""
        path, query = self.path, {}
        for parameter in self.parameters:
            name, place = parameter["name"], parameter["in"]
            if place == "path":
                value = chance.choice(known) if chance.random() < 0.8 else chance.choice(TEXTS) or "-"
                path = path.replace(f"{{{name}}}", quote(value, safe="", errors="replace"))
            elif place == "query" and chance.random() < 0.6:
                good = chance.random() < 0.5
                query[name] = str(self.value(chance, parameter["schema"]) if good else chance.choice(TEXTS[:-4]))
        query = {name: value.encode("utf-8", "replace").decode() for name, value in query.items()}
        return Request(path, query, self._body(chance))

    def _body(self, chance: random.Random) -> bytes | None:
        if self.body is None:
            return None
        kind = chance.random()
        if kind < 0.1:
            return chance.choice(BODIES)
        text = as_json(mutated(chance, self.value(chance, self.body), chance.choice((0.0, 0.05, 0.3))))
        return damaged(chance, text) if kind < 0.25 else text

    def value(self, chance: random.Random, schema: dict[str, Any], depth: int = 0) -> Any:
        """A value that the schema allows, as far as types go."""
        if "$ref" in schema:
            return self.value(chance, self.schemas[schema["$ref"].rpartition("/")[2]], depth + 1)
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self.value(chance, chance.choice(schema[several]), depth + 1)
        if "enum" in schema:
            return chance.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        return self._of_type(chance, schema, depth)

    def _of_type(self, chance: random.Random, schema: dict[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        if kind == "object":
            found = {name: self.value(chance, each, depth + 1) for name, each in schema.get("properties", {}).items()}
            more = schema.get("additionalProperties")
            if isinstance(more, dict) and depth < 6:
                names = ("alertname", "severity", "rank", "node", "namespace", "training_job", "summary", "")
                found |= {name: self.value(chance, more, depth + 1) for name in chance.sample(names, 4)}
            return found
        if kind == "array":
            return [self.value(chance, schema.get("items", {}), depth + 1) for _ in range(chance.randrange(4))]
        if kind in ("integer", "number"):
            low, high = schema.get("minimum", 0), schema.get("maximum", 1_000)
            return chance.choice((low, high, int(low) + 1, 1))
        if kind == "string":
            if schema.get("format") == "date-time":
                return chance.choice(("2026-01-01T00:00:00Z", "2026-01-01T00:00:00", "0001-01-01T00:00:00Z", "9" * 30))
            return chance.choice(("P1", "7", "firing", "operator-token", chance.choice(TEXTS)))
        return {"boolean": chance.random() < 0.5, "null": None}.get(str(kind), any_value(chance))


def operations() -> list[Operation]:
    described = json.loads(document())
    schemas = described["components"]["schemas"]
    found = []
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            found.append(Operation(method, path, operation.get("parameters", []), body, schemas))
    return found

"""A pydantic model's JSON schema as the structural schema that Kubernetes takes.

Structural: no references, no `anyOf` but for int-or-string, every field typed, free-form objects marked.
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

KEPT = (
    "type",
    "format",
    "description",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
)
INT_OR_STRING: Schema = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}


def structural(model: type[BaseModel]) -> Schema:
    """The schema of `model` in camelCase, with defaults, so that the server fills them in."""
    raw = model.model_json_schema(by_alias=True)
    return _convert(raw, raw.get("$defs", {}))


def without_defaults(schema: Schema) -> Schema:
    """For what the operator writes itself: a default that the server adds would look like a change."""
    found = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in found:
        found["properties"] = {name: without_defaults(value) for name, value in found["properties"].items()}
    if "items" in found:
        found["items"] = without_defaults(found["items"])
    return found


def _convert(node: Schema, models: dict[str, Schema]) -> Schema:
    node = _resolved(node, models)
    options = node.get("anyOf", [])
    options = [option for option in options if option != {"type": "null"}]
    if {option.get("type") for option in options} == {"integer", "string"}:
        return {**_described(node), **INT_OR_STRING}
    if options:
        outer = {key: value for key, value in node.items() if key != "anyOf"}
        node = {**_resolved(options[0], models), **outer}
    found: Schema = {key: node[key] for key in KEPT if key in node}
    if "const" in node:
        found["enum"] = [node["const"]]
    if "exclusiveMinimum" in node:
        found |= {"minimum": node["exclusiveMinimum"], "exclusiveMinimum": True}
    if node.get("default") is not None:
        # A model's default is made of its fields' own, which the server fills in.
        found["default"] = {} if "properties" in node else node["default"]
    return found | _inside(node, models)


def _inside(node: Schema, models: dict[str, Schema]) -> Schema:
    """What a list or an object holds."""
    if node.get("type") == "array":
        return {"items": _convert(node["items"], models)}
    if node.get("type") != "object":
        return {}
    if "properties" in node:
        return {"properties": {name: _convert(value, models) for name, value in node["properties"].items()}}
    values = node.get("additionalProperties", True)
    if isinstance(values, dict) and values:
        return {"additionalProperties": _convert(values, models)}
    return {"x-kubernetes-preserve-unknown-fields": True}


def _resolved(node: Schema, models: dict[str, Schema]) -> Schema:
    """The node with its reference, also the one in a single `allOf`, put in; what stands beside it wins."""
    while "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        node = {**models[name], **{key: value for key, value in node.items() if key != "$ref"}}
    return node


def _described(node: Schema) -> Schema:
    return {key: node[key] for key in ("description", "default") if node.get(key) is not None}

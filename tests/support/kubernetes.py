"""Kubernetes' own schemas, strict: an unknown field is an error."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_validate.utils import all_versions, major_minor, schema_contents
from referencing import Registry, Resource


def validate(found: dict[str, Any], version: str) -> None:
    """Raises jsonschema.ValidationError. The definitions, a megabyte and a half, are read once a version."""
    group, _, api = found["apiVersion"].rpartition("/")
    _validator(version, found["kind"], f"{group.split('.')[0]}-{api}" if group else api).validate(found)


@cache
def _validator(version: str, kind: str, api: str) -> Draft202012Validator:
    schema = _schema(version, f"{kind.lower()}-{api}.json")
    return Draft202012Validator(schema, registry=Resource.from_contents(schema) @ _definitions(version))


@cache
def _definitions(version: str) -> Registry[Any]:
    registry: Registry[Any] = Resource.from_contents(_schema(version, "_definitions.json")) @ Registry()
    return registry.crawl()


def _schema(version: str, name: str) -> Any:
    exact = next(known for known in all_versions() if major_minor(known) == version)
    return schema_contents(f"kubernetes-json-schema/v{exact}-local-strict/{name}", version)

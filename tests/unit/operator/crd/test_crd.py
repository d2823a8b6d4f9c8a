"""The custom resource's definition follows the models, and is what Kubernetes takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatronapp.core.trainingjob import Spec
from megatronapp.operator.crd import definition
from megatronapp.operator.crd.__main__ import text

FILE = Path("deploy/helm/megatronapp/files/crds/trainingjob.yaml")


def _schema() -> dict[str, Any]:
    version = definition()["spec"]["versions"][0]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def _nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from _nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from _nodes(schema[key], f"{path}[{key}]")


def test_the_charts_file_is_what_the_models_say() -> None:
    assert FILE.read_text() == text(), "write it anew: python -m megatronapp.operator.crd > " + str(FILE)


def test_every_field_has_a_type_or_says_that_anything_goes() -> None:
    for path, node in _nodes(_schema()):
        typed = "type" in node or node.get("x-kubernetes-int-or-string")
        assert typed, f"{path} has no type"
        if node.get("type") == "object":
            assert {"properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"} & node.keys() or (
                path == ".metadata"
            ), path
        assert "$ref" not in node
        assert "allOf" not in node


def test_every_field_of_the_spec_is_there_in_camel_case() -> None:
    fields = {field.alias for field in Spec.model_fields.values()}

    assert set(_schema()["properties"]["spec"]["properties"]) == fields


def test_defaults_are_the_models() -> None:
    spec = _schema()["properties"]["spec"]["properties"]

    assert spec["nodes"]["default"] == 1
    assert spec["plugins"]["default"] == {}
    assert spec["plugins"]["properties"]["scan"]["properties"]["interval"]["default"] == 5
    assert "default" not in spec["elastic"]
    assert spec["sharedMemory"]["properties"]["size"]["default"] == "16Gi"


def test_the_status_has_no_defaults() -> None:
    for path, node in _nodes(_schema()["properties"]["status"]):
        assert "default" not in node, path


def test_columns_read_fields_that_exist() -> None:
    root = _schema()
    for column in definition()["spec"]["versions"][0]["additionalPrinterColumns"]:
        parts = column["jsonPath"].replace("[*]", "").strip(".").split(".")
        if parts[0] == "metadata":
            continue
        node = root
        for part in parts:
            node = node.get("items", node)["properties"][part]


def test_quantities_may_be_numbers_or_text() -> None:
    limits = _schema()["properties"]["spec"]["properties"]["resources"]["properties"]["limits"]

    assert limits["additionalProperties"]["x-kubernetes-int-or-string"] is True


def test_every_number_of_the_spec_has_bounds() -> None:
    """Seconds are added to dates, and counts are multiplied: none may be of any size."""
    for path, node in _nodes(_schema()["properties"]["spec"]):
        if node.get("type") == "integer" and ".scenario" not in path:
            assert node["maximum"] <= 10 * 365 * 86_400, path
            assert node["minimum"] >= 0, path


@pytest.mark.parametrize("field", ["mode", "backend", "managedBy"])
def test_what_an_attempt_is_made_by_never_changes(field: str) -> None:
    """The API server evaluates these rules (tests/e2e/kubernetes/test_life.py); none of the three has an if."""
    rules = {each["rule"] for each in _schema()["properties"]["spec"]["x-kubernetes-validations"]}

    assert f"self.{field} == oldSelf.{field}" in rules


def test_the_definition_is_plain_yaml() -> None:
    assert yaml.safe_load(text()) == definition()

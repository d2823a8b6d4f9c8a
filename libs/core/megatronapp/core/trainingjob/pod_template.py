"""`podTemplate` as far as this product reads it: the lists that are merged by a key, and what is the platform's own.

The API server knows no schema for it, so this is the border. Everything else in it is Kubernetes' matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from megatronapp.core.trainingjob.reserved import (
    TOKEN_FOLDER,
    TOKEN_VOLUME,
    TRAINER_CONTAINER,
    hides_token,
    is_reserved_env,
    is_reserved_key,
)

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
}
"""Lists whose items are told apart by a key; all others are replaced as a whole."""

RESERVED_POD_FIELDS = ("restartPolicy", "subdomain")
"""Attempts are the operator's matter, and ranks find each other by the job's Service."""

MAX_DEPTH = 32
"""Of a whole spec; a pod's deepest field lies 11 levels down."""
MAX_VALUES = 100_000


def check_size(given: object) -> None:
    """Raises ValueError for what is nested too deep or holds too much. Level by level: no depth is too much for it."""
    level, values = [given], 0
    for _ in range(MAX_DEPTH):
        level = list(islice((child for node in level for child in _children(node)), MAX_VALUES + 1))
        values += len(level)
        if values > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values")
    if level:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


def _children(node: object) -> Iterable[object]:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def check_keys(keys: dict[str, Any], where: str) -> None:
    """Labels or annotations. Raises ValueError for one of the platform's."""
    taken = next((key for key in keys if is_reserved_key(key)), None)
    if taken is not None:
        raise ValueError(f"{where}: {taken} is set by the platform; take another key")


def check(template: dict[str, Any]) -> None:
    """Raises ValueError that says what to change."""
    unknown = next((key for key in template if key not in {"metadata", "spec"}), None)
    if unknown is not None:
        raise ValueError(f"{unknown}: a pod template has only metadata and spec")
    _check_metadata(_object(template, "metadata", ""))
    _check_spec(_object(template, "spec", ""))


def _check_metadata(metadata: dict[str, Any]) -> None:
    for kind in metadata:
        if kind not in {"labels", "annotations"} and metadata[kind] is not None:
            raise ValueError(f"metadata.{kind}: only labels and annotations can be given")
    for kind in ("labels", "annotations"):
        found = _object(metadata, kind, "metadata.")
        wrong = next((key for key, value in found.items() if not isinstance(value, str | None)), None)
        if wrong is not None:
            raise ValueError(f"metadata.{kind}.{wrong} must be text; put it in quotes")
        check_keys(found, f"metadata.{kind}")


def _check_spec(spec: dict[str, Any]) -> None:
    for field in RESERVED_POD_FIELDS:
        if field in spec:
            raise ValueError(f"spec.{field} is set by the platform; leave it out")
    for where, key, value in _merged_lists(spec, "spec"):
        _check_items(where, key, value)
    if any(volume["name"] == TOKEN_VOLUME for volume in spec.get("volumes", ())):
        raise ValueError(f"spec.volumes: {TOKEN_VOLUME} is the platform's; take another name")
    for container in spec.get("containers", ()):
        if container["name"] == TRAINER_CONTAINER:
            _check_trainer(container)


def _check_trainer(container: dict[str, Any]) -> None:
    where = f"spec.containers.{TRAINER_CONTAINER}"
    name = next((found["name"] for found in container.get("env", ()) if is_reserved_env(found["name"])), None)
    if name is not None:
        raise ValueError(f"{where}.env: {name} is set by the platform; take another name")
    mounts = [found["mountPath"] for found in container.get("volumeMounts", ())]
    path = next((found for found in mounts if hides_token(found)), None)
    if path is not None:
        raise ValueError(f"{where}.volumeMounts: {path} would hide the platform's token in {TOKEN_FOLDER}")


def _merged_lists(node: object, where: str) -> Iterator[tuple[str, str, Any]]:
    """Wherever a list is told of that is merged by a key: where, which key, and what is given for it."""
    if isinstance(node, list):
        for number, item in enumerate(node):
            yield from _merged_lists(item, f"{where}.{number}")
    if isinstance(node, dict):
        for key, value in node.items():
            if key in MERGE_KEYS:
                yield f"{where}.{key}", MERGE_KEYS[key], value
            yield from _merged_lists(value, f"{where}.{key}")


def _check_items(where: str, key: str, items: object) -> None:
    if not isinstance(items, list):
        raise ValueError(f"{where} must be a list")
    seen: set[str] = set()
    for number, item in enumerate(items):
        name = item.get(key) if isinstance(item, dict) else None
        if not isinstance(name, str) or not name:
            raise ValueError(f"{where}.{number}: {key} must be given, as text")
        if name in seen:
            raise ValueError(f"{where}: {key} {name} is given twice")
        seen.add(name)


def _object(parent: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """What is given for `key`; nothing given is an empty object, and null would take the platform's out."""
    found = parent.get(key, {})
    if not isinstance(found, dict):
        raise ValueError(f"{where}{key} must be an object")
    return found

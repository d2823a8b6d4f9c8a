"""The object itself, and how it is read from a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from megatronapp.core.errors import ConfigError
from megatronapp.core.trainingjob.base import Model
from megatronapp.core.trainingjob.spec import Spec
from megatronapp.core.trainingjob.status import Status
from megatronapp.core.yaml_text import load_yaml_documents

MAX_NAME_LENGTH = 63 - len("-999-9999")
"""A child's name is `<job>-<attempt>-<index>`, and Kubernetes allows it 63 characters."""
MAX_NAME_LENGTH_APART = MAX_NAME_LENGTH - len("-forward")
"""Of a job whose forward ranks have pods of their own: `<job>-<attempt>-forward-<index>`."""


class Metadata(Model):
    """What of Kubernetes' metadata the product reads; the rest is taken as it comes."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(max_length=MAX_NAME_LENGTH, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class TrainingJob(Model):
    api_version: Literal["megatronapp.io/v1alpha1"]
    kind: Literal["TrainingJob"]
    metadata: Metadata
    spec: Spec
    status: Status | None = None

    @model_validator(mode="after")
    def _names_of_pods_fit(self) -> Self:
        if self.spec.plugins.fbd.apart and len(self.metadata.name) > MAX_NAME_LENGTH_APART:
            raise ValueError(
                f"metadata.name: at most {MAX_NAME_LENGTH_APART} characters with plugins.fbd.forwardNodeSelector, as "
                "pods are called <name>-<attempt>-forward-<index>"
            )
        return self

    @classmethod
    def load(cls, path: Path) -> TrainingJob:
        """Read a file. Raises ConfigError that names the file, the key and what is wrong with it."""
        try:
            return cls.parse(path.read_bytes(), str(path))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error

    @classmethod
    def parse(cls, text: str | bytes, source: str = "TrainingJob") -> TrainingJob:
        """From YAML or JSON; `source` names it in errors. What else is in the file is for `kubectl apply`."""
        try:
            return cls.model_validate(_only_job(load_yaml_documents(text, source), source))
        except ValidationError as error:
            raise ConfigError(f"{source}: {first_message(error)}") from error

    def dump(self) -> dict[str, Any]:
        """As it stands in a file: camelCase, without what is only a default."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _only_job(documents: list[Any], source: str) -> dict[str, Any]:
    """The job among the documents of a file; the only document as it is. Raises ConfigError."""
    if len(documents) == 1 and isinstance(documents[0], dict):
        return documents[0]
    jobs = [found for found in documents if isinstance(found, dict) and found.get("kind") == "TrainingJob"]
    if len(jobs) != 1:
        raise ConfigError(f"{source} holds {len(jobs) or 'no'} TrainingJob{'s, where one is wanted' if jobs else ''}")
    return jobs[0]


def first_message(error: ValidationError) -> str:
    """The first thing that is wrong, with the key as it is spelled in the file."""
    first = error.errors()[0]
    where = ".".join(to_camel(part) if isinstance(part, str) else str(part) for part in first["loc"])
    message = re.sub(r"^Value error, ", "", first["msg"])
    if first["type"] == "extra_forbidden":
        message = "there is no such key"
    return " ".join((f"{where}: {message}" if where else message).split())

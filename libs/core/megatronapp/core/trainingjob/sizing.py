"""How large a job is, and where its pods run."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from megatronapp.core.trainingjob.base import Model, ObjectName

Quantity = Annotated[int | str, Field(description="a Kubernetes quantity, such as 8, 500m or 16Gi")]


def _with_text_as_key(toleration: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(toleration.get("key", ""), str):
        raise ValueError("key must be text")  # pydantic's word for a wrong value
    return toleration


Toleration = Annotated[dict[str, Any], AfterValidator(_with_text_as_key)]


class Parallelism(Model):
    """Sizes of the model-parallel axes; what is left of the world is data parallelism."""

    tensor: int = Field(default=1, ge=1, le=1024)
    pipeline: int = Field(default=1, ge=1, le=1024)
    context: int = Field(default=1, ge=1, le=1024)
    expert: int = Field(default=1, ge=1, le=1024)
    virtual_pipeline: int = Field(default=1, ge=1, le=1024)

    @property
    def model_ranks(self) -> int:
        """Ranks of one data-parallel replica."""
        return self.tensor * self.pipeline * self.context

    @model_validator(mode="after")
    def _chunks_need_a_pipeline(self) -> Self:
        if self.virtual_pipeline > 1 and self.pipeline == 1:
            raise ValueError("virtualPipeline needs pipeline of at least 2")
        return self


class Resources(Model):
    limits: dict[str, Quantity] = Field(default_factory=dict)
    requests: dict[str, Quantity] = Field(default_factory=dict)


class SharedMemory(Model):
    """Shared memory of a pod; NCCL and the data loaders need far more than a container's default of 64 MiB."""

    size: Quantity = "16Gi"


class Rdma(Model):
    resource_name: ObjectName
    count: int = Field(default=1, ge=1, le=1024)
    networks: list[ObjectName] = Field(default_factory=list, max_length=16)


class Topology(Model):
    level: ObjectName = Field(description="the node label that names a rack, a zone or the like")
    mode: Literal["Required", "Preferred"] = "Required"


class Scheduling(Model):
    queue: str = Field(default="", description="Kueue's LocalQueue")
    gang: Literal["Auto", "None", "Coscheduling", "Volcano", "Native"] = "Auto"
    topology: Topology | None = None
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: list[Toleration] = Field(default_factory=list, max_length=32)
    exclude_nodes: list[ObjectName] = Field(default_factory=list, max_length=256)
    priority_class_name: str = ""


class Elastic(Model):
    min_nodes: int = Field(ge=1, le=10_000)
    max_nodes: int = Field(ge=1, le=10_000)

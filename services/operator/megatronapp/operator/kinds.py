"""The five kinds of objects that the operator follows."""

from __future__ import annotations

from typing import NamedTuple

from megatronapp.operator import names
from megatronapp.operator.crd.definition import GROUP, PLURAL, VERSION

OF_TRAINING_JOBS = f"{names.JOB_LABEL},{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"


class Kind(NamedTuple):
    group: str
    version: str
    plural: str
    selector: str = ""
    """On labels; "" for all objects."""
    namespaced: bool = True


TRAINING_JOBS = Kind(GROUP, VERSION, PLURAL)
JOBS = Kind("batch", "v1", "jobs", OF_TRAINING_JOBS)
PODS = Kind("", "v1", "pods", OF_TRAINING_JOBS)
SERVICES = Kind("", "v1", "services", OF_TRAINING_JOBS)
NODES = Kind("", "v1", "nodes", namespaced=False)
KINDS = (TRAINING_JOBS, JOBS, PODS, SERVICES, NODES)

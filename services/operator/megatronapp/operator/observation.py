"""All that one decision is made from: one TrainingJob and what is there for it, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from megatronapp.core.trainingjob import Reason, Spec, Status, TrainingJob
from megatronapp.core.trainingjob.status import ExcludedNode
from megatronapp.operator.attempt import as_one
from megatronapp.operator.render import Plan, RenderSettings
from megatronapp.operator.snapshots import ChildJob, Node, Pod, Report, is_stuck, parse_time


@dataclass(frozen=True)
class Limits:
    """What the installation allows and how patient it is."""

    remediation: str = "Taint"
    exclusion_seconds: int = 86_400
    progress_seconds: float = 15.0
    backends: frozenset[str] = frozenset()
    """Which of Coscheduling, Volcano and JobSet may be asked for."""


@dataclass(frozen=True)
class Breaker:
    """The circuit breaker as it stands: which nodes were acted on in its window, and how many may be."""

    acted: frozenset[str] = frozenset()
    limit: int = 1
    tripped: bool = False

    def allows(self, node: str) -> bool:
        return not self.tripped and (node in self.acted or len(self.acted) < self.limit)


@dataclass(frozen=True)
class Refusal:
    """What the API server said when a child could not be made."""

    message: str
    generation: int
    until: datetime


@dataclass(frozen=True)
class Hindrance:
    """What keeps an attempt from starting: Kubernetes' reason and words."""

    reason: Reason
    message: str
    passes: bool = False
    """By itself, and may take long."""


@dataclass(frozen=True)
class Explanation:
    """What events said of an object that does not start, and until when not to ask again."""

    subject: object
    hindrance: Hindrance | None
    until: datetime


@dataclass(frozen=True)
class Observation:
    job: TrainingJob
    children: tuple[ChildJob, ...]
    pods: tuple[Pod, ...]
    service: bool
    nodes: Mapping[str, Node]
    report: Report | None
    refusal: Refusal | None
    now: datetime
    platform: RenderSettings
    limits: Limits = field(default=Limits())
    breaker: Breaker = field(default=Breaker())
    explanation: Explanation | None = None

    @property
    def spec(self) -> Spec:
        return self.job.spec

    @cached_property
    def status(self) -> Status:
        return self.job.status or Status()

    @property
    def attempt(self) -> int:
        return max(1, self.status.attempt)

    @cached_property
    def current(self) -> ChildJob | None:
        """The newest attempt's Job; its Jobs as one, where it has two."""
        return as_one(self.parts)

    @cached_property
    def parts(self) -> tuple[ChildJob, ...]:
        """The newest attempt's Jobs, that of the job's first nodes first."""
        mine = (child for child in self.children if child.attempt == self.attempt)
        return tuple(sorted(mine, key=lambda child: child.role))

    @cached_property
    def ranks(self) -> tuple[Pod, ...]:
        """Pods of the newest attempt."""
        mine = (self.job.metadata.uid, self.attempt)
        return tuple(pod for pod in self.pods if (pod.run, pod.attempt) == mine)

    @cached_property
    def stuck(self) -> tuple[Pod, ...]:
        patience = self.spec.failure_policy.stuck_termination_seconds
        return tuple(pod for pod in self.ranks if is_stuck(pod, self.nodes, patience, self.now))

    @cached_property
    def live(self) -> tuple[Pod, ...]:
        """Pods of the newest attempt that run or will run, or that still end."""
        return tuple(pod for pod in self.ranks if not pod.ended and pod not in self.stuck)

    @cached_property
    def waiting(self) -> tuple[Pod, ...]:
        """Pods for which there is no place."""
        return tuple(pod for pod in self.live if pod.unschedulable and not pod.node)

    @property
    def edited(self) -> bool:
        """Whether the user has changed the spec since the last decision."""
        return self.job.metadata.generation != self.status.observed_generation

    @property
    def wanted_nodes(self) -> int:
        """On how many nodes the attempt shall run. An elastic job may have been given fewer than it asks for."""
        fits = self.spec.elastic is not None and not self.edited and self.status.nodes.desired > 0
        return self.status.nodes.desired if fits else self.spec.nodes

    @property
    def excluded(self) -> tuple[ExcludedNode, ...]:
        """Nodes that are left alone now."""
        return tuple(node for node in self.status.excluded_nodes if is_excluded(node, self.now))

    def plan(self, attempt: int, nodes: int, excluded: tuple[ExcludedNode, ...]) -> Plan:
        """What an attempt is made from; the user's own exclusions first."""
        given = [*self.spec.scheduling.exclude_nodes, *(node.name for node in excluded)]
        return Plan(self.job, attempt, nodes, tuple(dict.fromkeys(given)), self.platform)

    def since(self, text: str | None) -> timedelta | None:
        moment = parse_time(text)
        return self.now - moment if moment else None


def is_excluded(node: ExcludedNode, now: datetime) -> bool:
    until = parse_time(node.until)
    return until is None or now < until

"""A small cluster to let decisions loose on: Kubernetes' Job controller, nodes that get lost, and an operator that
may be killed between any two of its writes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from megatronapp.core.trainingjob import Status
from megatronapp.operator.actions import Action, Create, Delete, MarkNode, StartJob, StopJob, TripBreaker
from megatronapp.operator.observation import Breaker, Observation
from megatronapp.operator.reconcile import decide
from megatronapp.operator.snapshots import ChildJob, Node, Pod, Report, parse_time
from tests.unit.operator.samples import NOW, PLATFORM, UID, training_job

GRACE = timedelta(seconds=30)


class KilledError(Exception):
    """The operator was killed before its next write."""


class World:
    def __init__(self, **spec: object) -> None:
        self.spec = {"nodes": 2, **spec}
        self.generation = 1
        self.now: datetime = NOW
        self.status: Status | None = None
        self.service = self.policy = False
        self.children: dict[str, ChildJob] = {}
        self.pods: dict[str, Pod] = {}
        self.nodes = {name: Node(name) for name in ("node1", "node2", "node3", "node4")}
        self.report: Report | None = None
        self.tripped = False
        self.writes = 0
        self.made: list[str] = []
        """Names of Jobs in the order in which they were made."""

    # ---- the operator

    def observe(self) -> Observation:
        return Observation(
            job=training_job(self.status, self.generation, **self.spec),
            children=tuple(sorted(self.children.values(), key=lambda child: child.attempt)),
            pods=tuple(self.pods.values()),
            service=self.service,
            nodes=self.nodes,
            report=self.report,
            refusal=None,
            now=self.now,
            platform=PLATFORM,
            breaker=Breaker(limit=2, tripped=self.tripped),
        )

    def reconcile(self, killed_after: int | None = None) -> int:
        """One look. Returns the number of writes. Raises KilledError before the write of number `killed_after`."""
        decision, before = decide(self.observe()), self.writes
        last = None if killed_after is None else self.writes + killed_after
        if decision.status != self.status:
            self._write(last)
            self.status = decision.status
        for action in decision.actions:
            self._write(last)
            self._do(action)
        return self.writes - before

    def settle(self, rounds: int = 30) -> None:
        """Let operator and cluster take turns until neither has anything to do, nor waits for the next attempt."""
        for _ in range(rounds):
            if self.reconcile() + self.controllers() == 0 and not self.skip_backoff():
                return
        raise AssertionError("the operator does not come to rest")

    def skip_backoff(self) -> bool:
        """Let the time until the next attempt pass. Whether there was any."""
        until = parse_time(self.status.next_attempt_time) if self.status else None
        if until is None or until <= self.now:
            return False
        self.now = until
        return True

    def _write(self, last: int | None) -> None:
        if last is not None and self.writes >= last:
            raise KilledError
        self.writes += 1

    def _do(self, action: Action) -> None:
        match action:
            case Create(body) if body["kind"] == "NetworkPolicy":
                self.policy = True
            case Create(body) if body["kind"] == "Service":
                self.service = True
            case Create(body) if body["metadata"]["name"] not in self.children:
                self.made.append(body["metadata"]["name"])
                body["metadata"]["resourceVersion"] = str(self.writes)
                child = ChildJob.of(body)
                assert child is not None
                self.children[child.name] = child
            case StopJob(name, reason):
                self._change(name, stopped=str(reason))
            case StartJob(name):
                self._change(name, suspended=False)
            case Delete("Job", name):
                gone = self.children.pop(name, None)
                self.pods = {key: pod for key, pod in self.pods.items() if gone is None or not _is_of(gone, pod)}
            case Delete("NetworkPolicy", _):
                self.policy = False
            case Delete("Service", _):
                self.service = False
            case MarkNode(node, mark, _):
                self.nodes[node] = replace(self.nodes[node], mark=mark)
            case TripBreaker():
                self.tripped = True

    def _change(self, name: str, **values: object) -> None:
        if name in self.children:
            self.children[name] = replace(self.children[name], **values)  # type: ignore[arg-type]

    # ---- Kubernetes

    def controllers(self) -> int:
        """The Job controller, scheduler and kubelets take a step. Returns how much they changed."""
        before = (dict(self.children), dict(self.pods))
        for child in list(self.children.values()):
            self._run_job(child)
        for pod in list(self.pods.values()):
            self._run_pod(pod)
        return int(before != (self.children, self.pods))

    def _run_job(self, child: ChildJob) -> None:
        mine = [pod for pod in self.pods.values() if _is_of(child, pod)]
        if child.complete or child.failed:
            return
        if child.stopped or child.suspended or child.failing:
            for pod in mine:
                self._delete(pod)
        if any(pod.phase == "Failed" for pod in mine):
            ended = all(pod.ended for pod in mine)
            at = child.failed_at or self.now
            self._change(child.name, failing=True, failed=ended, reason="BackoffLimitExceeded", failed_at=at)
        elif mine and len(mine) == child.nodes and all(pod.phase == "Succeeded" for pod in mine):
            self._change(child.name, complete=True)
        elif not (child.stopped or child.suspended or child.failing):
            for index in range(len(mine), child.nodes):
                name = f"{child.name}-{index}"
                self.pods[name] = Pod(name=name, run=UID, attempt=child.attempt, role=child.role)

    def _run_pod(self, pod: Pod) -> None:
        if pod.delete_requested is not None and self.nodes[pod.node].ready:
            self.pods.pop(pod.name, None)
        elif pod.phase == "Pending" and not pod.node:
            taken = {other.node for other in self.pods.values() if not other.ended}
            avoided = {entry.name for entry in (self.status.excluded_nodes if self.status else ())}
            free = [n for n, node in self.nodes.items() if node.ready and n not in taken and n not in avoided]
            if free:
                self.pods[pod.name] = replace(pod, node=free[0], phase="Running", ready=True)

    def _delete(self, pod: Pod) -> None:
        if not pod.node:
            del self.pods[pod.name]
        elif not pod.ended and pod.delete_requested is None:
            self.pods[pod.name] = replace(pod, delete_requested=self.now, ready=False)

    # ---- what happens to it

    def ranks(self) -> list[Pod]:
        """Pods that run."""
        return [pod for pod in self.pods.values() if pod.phase == "Running" and pod.delete_requested is None]

    def end(self, pod: Pod, code: int) -> None:
        self.pods[pod.name] = replace(pod, phase="Failed" if code else "Succeeded", ready=False, exit_code=code)

    def lose(self, node: str) -> None:
        self.nodes[node] = replace(self.nodes[node], ready=False)
        for pod in self.ranks():
            if pod.node == node:
                self.pods[pod.name] = replace(pod, delete_requested=self.now, ready=False)

    def heal(self, node: str) -> None:
        self.nodes[node] = replace(self.nodes[node], ready=True)

    def edit(self, **spec: object) -> None:
        self.spec, self.generation = {**self.spec, **spec}, self.generation + 1

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def states(self) -> dict[int, list[str]]:
        """Of each attempt: whether its Jobs, in the order of their roles, are done, over, wait or run."""
        found: dict[int, list[str]] = {}
        for child in sorted(self.children.values(), key=lambda child: child.role):
            over = child.ending and (child.stopped or not child.complete)
            state = "over" if over else "done" if child.complete else "waits" if child.suspended else "runs"
            found.setdefault(child.attempt, []).append(state)
        return found

    def final(self) -> tuple[object, ...]:
        """What two runs of the same story must agree on."""
        status = self.status or Status()
        told = [(c.type, c.status, c.reason) for c in status.conditions]
        return (status.phase, status.attempt, status.restarts, told, sorted(self.children), tuple(self.made), UID)


def _is_of(child: ChildJob, pod: Pod) -> bool:
    return (pod.attempt, pod.role) == (child.attempt, child.role)

"""Decisions on a cluster to which things happen: they come to rest, whenever they are cut short."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from megatronapp.core.trainingjob import Phase
from tests.unit.operator.samples import report, suspicion
from tests.unit.operator.world import KilledError, World

APART = {
    "parallelism": {"pipeline": 2},
    "plugins": {"fbd": {"enabled": True, "forwardNodeSelector": {"pool": "old"}}},
}
"""Forward ranks have pods of their own: each attempt is two Jobs."""
ENDED = {Phase.SUCCEEDED, Phase.FAILED}


class Life(RuleBasedStateMachine):
    """A job's life on a small cluster."""

    @initialize(
        restarts=st.integers(0, 3),
        mode=st.sampled_from(["Observe", "ExcludeNode", "Taint"]),
        suspend=st.booleans(),
        apart=st.booleans(),
    )
    def begin(self, restarts: int, mode: str, suspend: bool, apart: bool) -> None:
        self.world = World(
            **(APART if apart else {}),
            suspend=suspend,
            failurePolicy={"maxRestarts": restarts},
            remediation={"mode": mode, "cooldownSeconds": 100},
        )
        self.attempt = self.restarts = 0

    @rule(after=st.integers(0, 5))
    def reconcile(self, after: int) -> None:
        with suppress(KilledError):
            self.world.reconcile(killed_after=after)

    @rule()
    def cluster(self) -> None:
        self.world.controllers()

    @precondition(lambda self: self.world.ranks())
    @rule(code=st.sampled_from([1, 2, 137, 143]))
    def fail(self, code: int) -> None:
        self.world.end(self.world.ranks()[0], code)

    @precondition(lambda self: self.world.ranks())
    @rule()
    def finish(self) -> None:
        for pod in self.world.ranks():
            self.world.end(pod, 0)

    @rule(node=st.sampled_from(["node1", "node2"]))
    def lose(self, node: str) -> None:
        self.world.lose(node)

    @rule()
    def heal(self) -> None:
        for node in self.world.nodes:
            self.world.heal(node)

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        self.world.edit(suspend=suspend)

    @rule(node=st.sampled_from(["node1", "node2", "node3"]))
    def blame(self, node: str) -> None:
        attempt = self.world.status.attempt if self.world.status else 1
        self.world.report = report(suspicion(node=node), attempt=attempt)

    @rule(seconds=st.sampled_from([1.0, 70.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)

    @invariant()
    def never_two_attempts_at_once(self) -> None:
        """But for pods on lost nodes, which nobody can end."""
        running = [child for child in self.world.children.values() if not child.stopped and not child.suspended]
        live = {c.attempt for c in running if not (c.failing or c.failed or c.complete)}
        assert len(live) <= 1

    @invariant()
    def no_pod_is_without_its_service_and_policy(self) -> None:
        assert not self.world.pods or (self.world.service and self.world.policy)

    @invariant()
    def counts_only_grow(self) -> None:
        status = self.world.status
        if status is not None:
            assert status.attempt >= self.attempt
            assert status.restarts >= self.restarts
            assert status.restarts <= self.world.spec["failurePolicy"]["maxRestarts"]  # type: ignore[index]
            self.attempt, self.restarts = status.attempt, status.restarts

    @invariant()
    def no_job_is_made_twice(self) -> None:
        assert len(self.world.made) == len(set(self.world.made))

    def teardown(self) -> None:
        """Left alone, the job comes to rest, and another reconcile then writes nothing."""
        if not hasattr(self, "world"):
            return
        self.heal()
        for _ in range(3):
            self.world.settle()
            self.world.wait(300)
        self.world.settle()
        assert self.world.reconcile() == 0
        jobs = 2 if self.world.spec.get("plugins") else 1
        for states in self.world.states().values():
            assert len(states) == jobs or states == ["over"]  # stopped before the other was made
            assert len(set(states) - {"done"}) <= 1


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestLife = Life.TestCase

Lifecycle = Callable[[World, Callable[[], None]], None]


def _restarts_and_succeeds(world: World, settle: Callable[[], None]) -> None:
    settle()
    world.end(world.ranks()[0], 1)
    settle()
    for pod in world.ranks():
        world.end(pod, 0)
    settle()


def _loses_a_node(world: World, settle: Callable[[], None]) -> None:
    settle()
    world.lose("node1")
    settle()
    world.wait(61)
    settle()


def _leaves_a_node(world: World, settle: Callable[[], None]) -> None:
    settle()
    world.report = report(suspicion())
    settle()


def _suspends_and_resumes(world: World, settle: Callable[[], None]) -> None:
    settle()
    world.edit(suspend=True)
    settle()
    world.edit(suspend=False)
    settle()


def _made_suspended_it_is_resumed(world: World, settle: Callable[[], None]) -> None:
    world.edit(suspend=True)
    settle()
    assert not world.service
    assert not world.policy
    world.edit(suspend=False)
    settle()
    assert world.service
    assert world.policy


def _made_suspended_it_is_changed_and_resumed(world: World, settle: Callable[[], None]) -> None:
    world.edit(suspend=True)
    settle()
    world.edit(suspend=False, image="another")
    settle()


LIFECYCLES = [
    _restarts_and_succeeds,
    _loses_a_node,
    _leaves_a_node,
    _suspends_and_resumes,
    _made_suspended_it_is_resumed,
    _made_suspended_it_is_changed_and_resumed,
]


@pytest.mark.parametrize("roles", [{}, APART], ids=["together", "apart"])
@pytest.mark.parametrize("lifecycle", LIFECYCLES)
def test_a_kill_before_any_write_changes_nothing_in_the_end(lifecycle: Lifecycle, roles: dict[str, object]) -> None:
    spec = {"remediation": {"mode": "Taint"}, **roles}
    calm = World(**spec)
    lifecycle(calm, calm.settle)

    for killed_at in range(calm.writes):
        world = World(**spec)

        def settle(world: World = world, killed_at: int = killed_at) -> None:
            for _ in range(60):
                left = killed_at - world.writes
                try:
                    moved = world.reconcile(
                        killed_after=left if left >= 0 and not getattr(world, "killed", 0) else None
                    )
                except KilledError:
                    world.killed = True  # type: ignore[attr-defined]
                    continue
                assert not world.pods or (world.service and world.policy)
                if moved + world.controllers() == 0 and not world.skip_backoff():
                    return

        lifecycle(world, settle)

        assert world.final() == calm.final(), f"killed before write {killed_at}"

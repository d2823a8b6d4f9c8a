"""What a bus promises. Both implementations pass the same test suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol


class Topic(StrEnum):
    STEPS = "steps"
    """RankMessage (hello, summary, heartbeat), collector → detector and gateway. Key: the run."""
    FINDINGS = "findings"
    """Finding, detector → gateway. Key: the run."""
    REFUTATIONS = "refutations"
    """Refutation, gateway → detector: a person says that a finding is none. Key: the run."""
    ANNOTATIONS = "annotations"
    """JSON of findings_store.annotations, gateway → gateways: what somebody said of a finding. Key: the finding."""
    TRACE_CONTROL = "trace-control"
    """TraceControl, gateway → collector. Key: the run."""
    INCIDENTS = "incidents"
    """JSON of gateway.notify.events, gateway → gateways: what Alertmanager said and who was told. Key: the incident."""
    PHASES = "phases"
    """JSON of gateway.phases, gateway → gateways: where TrainingJobs stand, as the operator says. Key: "jobs"."""
    HELLO_REQUEST = "hello-request"
    """Empty, detector → collector: publish the Hello of every connected rank again, for one who has missed them."""


KEPT_MESSAGES = 100_000
"""Messages that a topic keeps when nothing else is said."""
KEPT_OF_TOPIC: Mapping[str, int] = {
    Topic.FINDINGS: 20_000,
    Topic.REFUTATIONS: 2_000,
    Topic.ANNOTATIONS: 2_000,
    Topic.TRACE_CONTROL: 2_000,
    Topic.PHASES: 400,
    Topic.HELLO_REQUEST: 100,
}

READ_COUNT = 512
"""Messages that a reader takes at once, at most."""


def kept(topic: str, most: int) -> int:
    """How many messages the topic keeps on a bus that keeps `most` of any."""
    return min(most, KEPT_OF_TOPIC.get(topic, most))


class Message(NamedTuple):
    topic: str
    key: str
    value: bytes
    id: str


class Bus(Protocol):
    """Topics of messages, in order within a key, at least once. A topic is bounded: it forgets its oldest messages.

    Who wants everything follows; who shares work with others subscribes as one consumer of a group.
    """

    async def publish(self, topic: str, key: str, value: bytes) -> None:
        """Append one message. Raises UnavailableError when the bus can't take it now."""

    async def publish_all(self, topic: str, messages: Iterable[tuple[str, bytes]]) -> None:
        """Append messages, given as (key, value), in one exchange. After an UnavailableError some of them may be on
        the bus; to be sure, publish all again."""

    async def newest(self, topic: str) -> str:
        """Id of the newest message, empty where there is none. Raises UnavailableError when the bus can't tell now."""

    def follow(self, topic: str, *, from_start: bool = True) -> AsyncIterator[Sequence[Message]]:
        """Every message, as many at a time as are there; from the oldest kept one, or without from_start from the next
        one published after the first read. Leaves nothing behind on the bus. Ends only by cancellation."""

    def subscribe(self, topic: str, *, group: str, consumer: str, from_start: bool = True) -> AsyncIterator[Message]:
        """This consumer's share of what the group gets. A message that was not acked when its consumer ended is
        delivered to the group again. A new group starts as `follow` does, and stays on the bus for good."""

    async def ack(self, *messages: Message, group: str) -> None:
        """Never deliver these messages, which are of one topic, to the group again."""

    async def ping(self) -> None:
        """Raise UnavailableError when the bus does not answer."""

    async def close(self) -> None: ...

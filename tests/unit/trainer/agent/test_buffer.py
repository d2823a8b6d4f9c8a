from hypothesis import given
from hypothesis import strategies as st

from megatronapp.trainer.agent.buffer import ResendBuffer
from megatronapp.trainer.agent.outbox import Outgoing
from megatronapp.v1 import trace_pb2


def message(seq: int, body: str = "summary", rows: int = 1) -> Outgoing:
    made = trace_pb2.TraceMessage(seq=seq)
    if body == "batch":
        made.batch.count = rows
        made.batch.start_ns = b"x" * 100
    else:
        getattr(made, body).step = seq
    return Outgoing.of(made)


def drain(buffer: ResendBuffer) -> list[int]:
    seqs = []
    while found := buffer.next_unsent():
        seqs += [each.seq for each in found]
    return seqs


def filled(*bodies: str, capacity: int = 1 << 20) -> ResendBuffer:
    buffer = ResendBuffer(capacity)
    for seq, body in enumerate(bodies, 1):
        buffer.put(message(seq, body, rows=10))
    return buffer


def test_messages_are_handed_out_once_and_in_order() -> None:
    buffer = filled("summary", "batch", "heartbeat")

    assert drain(buffer) == [1, 2, 3]
    assert drain(buffer) == []


def test_as_many_as_fit_into_a_bundle_are_handed_out_at_once_and_a_large_one_alone() -> None:
    buffer = filled("summary", "heartbeat", "batch", "summary")
    small = len(message(1).data)

    bundles = [[each.seq for each in buffer.next_unsent(3 * small)] for _ in range(4)]

    assert bundles == [[1, 2], [3], [4], []]


def test_what_was_acknowledged_leaves_nothing_behind() -> None:
    buffer = ResendBuffer(1 << 20)
    for seq in range(1, 101):
        buffer.put(message(seq, "batch" if seq % 2 else "heartbeat"))
        buffer.next_unsent()
        buffer.acknowledge(seq)

    assert not any(buffer._oldest.values())
    assert not buffer._unsent


def test_after_a_reconnect_what_was_not_acknowledged_comes_again_under_the_same_number() -> None:
    buffer = filled("summary", "batch", "heartbeat")
    drain(buffer)

    buffer.acknowledge(1)
    buffer.reconnected()

    assert drain(buffer) == [2, 3]


def test_an_acknowledgement_counts_for_all_before_it() -> None:
    buffer = filled("summary", "batch", "heartbeat")

    buffer.acknowledge(2)

    assert len(buffer) == 1
    assert buffer.dropped == 0


def test_a_refused_message_is_left_out_and_counted() -> None:
    buffer = filled("summary", "batch", "heartbeat")
    buffer.acknowledge(1)

    assert buffer.leave_out_after(1)

    buffer.reconnected()
    assert drain(buffer) == [3]
    assert buffer.dropped == 10
    assert not buffer.leave_out_after(3)


def test_of_messages_one_of_which_is_too_large_the_largest_is_left_out() -> None:
    buffer = filled("summary", "batch", "heartbeat")

    assert buffer.leave_out_largest()

    assert drain(buffer) == [1, 3]
    assert not ResendBuffer(100).leave_out_largest()


def test_when_full_detail_goes_first_then_heartbeats_then_summaries() -> None:
    buffer = filled("summary", "batch", "heartbeat", "batch", capacity=150)

    assert drain(buffer) == [1, 3, 4]
    assert buffer.dropped == 10

    for seq in range(5, 40):
        buffer.put(message(seq, "summary"))

    buffer.reconnected()
    kept = drain(buffer)
    assert 3 not in kept
    assert kept == sorted(kept)
    assert kept[-1] == 39


@given(
    st.lists(st.sampled_from(["put batch", "put summary", "put heartbeat", "send", "ack", "reconnect"]), max_size=80)
)
def test_bytes_stay_bounded_and_nothing_is_handed_out_twice_on_a_connection(actions: list[str]) -> None:
    buffer, seq, sent, acknowledged, events = ResendBuffer(500), 0, list[int](), 0, 0
    for action in actions:
        if action.startswith("put"):
            seq += 1
            made = message(seq, action.split()[1])
            events += 1
            buffer.put(made)
        elif action == "send" and (found := buffer.next_unsent()):
            assert found[0].seq not in sent
            assert found[0].seq > acknowledged
            sent.append(found[0].seq)
        elif action == "ack" and sent:
            acknowledged = max(acknowledged, sent[-1])
            buffer.acknowledge(sent[-1])
        elif action == "reconnect":
            buffer.reconnected()
            sent.clear()
        assert buffer.bytes <= 500
    assert len(buffer) + buffer.dropped <= events

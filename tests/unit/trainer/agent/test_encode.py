"""Steps of many ranks at once, plausible and not: each becomes what it would have become alone."""

from __future__ import annotations

import json
from contextlib import suppress
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.trace.validate import check_fields, check_message
from megatronapp.trainer.agent import encode, layout
from megatronapp.trainer.agent.encode import MAX_BATCH_ROWS, StepMessages, encode_all
from megatronapp.trainer.agent.layout import StepEnd
from megatronapp.trainer.agent.span_table import Ints
from megatronapp.trainer.agent.spans import SpanNames
from megatronapp.trainer.agent.steps import Step
from megatronapp.trainer.plugins.scan.operations import Operation, document
from megatronapp.v1 import trace_pb2

NAMES = SpanNames.parse(json.loads(json.dumps(document())))
OTHERS = SpanNames.parse({**json.loads(json.dumps(document())), "summarized": [True] * len(NAMES.names)})


def table(rows: int, **columns: int) -> Ints:
    """Spans that follow one another."""
    made = np.zeros((len(layout.COLUMNS), rows), np.int64)
    made[layout.COLUMNS.index("first")] = np.arange(rows)
    for name, value in columns.items():
        made[layout.COLUMNS.index(name)] = value
    return made


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Of values that are usual, of some that can't be, and of any."""
    made = table(draw(st.integers(0, 6)))
    for name in draw(st.sets(st.sampled_from(layout.COLUMNS), max_size=6)):
        at = layout.COLUMNS.index(name)
        usual = st.integers(0, len(NAMES.names) - 1) if name == "name" else st.integers(0, 2)
        value = st.one_of(usual, usual, st.integers(-(1 << 63), (1 << 63) - 1))
        made[at] = draw(st.lists(value, min_size=made.shape[1], max_size=made.shape[1]))
    numbers = st.one_of(st.integers(0, 1000), st.integers(-(1 << 63), (1 << 63) - 1))
    end = StepEnd(
        draw(st.integers(0, 1 << 64 - 1)),
        *draw(st.tuples(numbers, numbers, numbers, numbers, numbers)),
        rows=made.shape[1],
        traced=draw(st.integers(0, 1)),
        known=draw(st.integers(0, 63)),
        phases=draw(st.integers(0, (1 << 32) - 1)),
    )
    return Step(end, made)


def serialized(messages: StepMessages) -> tuple[bytes, list[bytes], str]:
    return (
        messages.summary.SerializeToString(deterministic=True),
        [batch.SerializeToString(deterministic=True) for batch in messages.batches],
        messages.reason,
    )


@given(st.lists(st.tuples(st.sampled_from([NAMES, OTHERS]), steps()), max_size=6))
def test_a_step_among_others_becomes_what_it_becomes_alone(given_steps: list[tuple[SpanNames, Step]]) -> None:
    together = [serialized(messages) for messages in encode_all(given_steps)]

    alone = [serialized(messages) for step in given_steps for messages in encode_all([step])]

    refused = [bool(reason) for *_, reason in alone]
    assert [bool(reason) for *_, reason in together] == refused
    assert [each for each in together if not each[2]] == [each for each in alone if not each[2]]


@given(st.lists(steps(), max_size=4))
def test_what_is_not_refused_is_what_a_collector_takes(given_steps: list[Step]) -> None:
    for encoded in encode_all([(NAMES, step) for step in given_steps]):
        for message in (encoded.summary, *encoded.batches) if not encoded.reason else ():
            with suppress(DataError):
                check_fields(message)
                message.seq = 1
                taken = trace_pb2.TraceMessage.FromString(message.SerializeToString())
                try:
                    check_message(taken)
                except DataError as error:
                    pytest.fail(f"the collector would refuse it: {error}")


@pytest.mark.parametrize(
    "step",
    [
        table(2, name=len(NAMES.names)),
        table(2, first=2),
        table(2, end=1 << 62),
        table(3, name=Operation.FORWARD, tokens=1 << 62),
    ],
    ids=["unknown name", "first after its end", "time", "sum of tokens"],
)
def test_a_step_that_cannot_be_true_is_refused_with_a_reason_and_the_one_beside_it_is_not(step: Ints) -> None:
    end = StepEnd(1, rows=step.shape[1], traced=1)

    wrong, right = encode_all([(NAMES, Step(end, step)), (NAMES, Step(end, table(2)))])

    assert wrong.reason
    assert (right.reason, right.batches[0].batch.count) == ("", 2)


def test_steps_that_show_a_mistake_of_our_own_are_refused_each_and_told_of_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(encode, "_logged", set())
    monkeypatch.setattr(encode, "summarize", Mock(side_effect=KeyError("a mistake")))

    encoded = [each for _ in range(3) for each in encode_all([(NAMES, Step(StepEnd(1), table(1)))] * 2)]

    assert [each.reason for each in encoded] == ["KeyError('a mistake')"] * 6
    assert capsys.readouterr().out.count("step_not_encoded") == 1


def test_a_step_of_many_spans_goes_in_several_batches_the_last_of_which_says_so() -> None:
    rows = 2 * MAX_BATCH_ROWS + 1
    traced, other = StepEnd(1, rows=rows, traced=1), StepEnd(2, rows=rows)

    encoded = encode_all([(NAMES, Step(other, table(rows))), (NAMES, Step(traced, table(rows)))])

    assert [len(each.batches) for each in encoded] == [0, 3]
    batches = [message.batch for message in encoded[1].batches]
    assert [batch.count for batch in batches] == [MAX_BATCH_ROWS, MAX_BATCH_ROWS, 1]
    assert [batch.last for batch in batches] == [False, False, True]


def test_a_traced_step_without_spans_says_that_it_is_complete() -> None:
    (encoded,) = encode_all([(NAMES, Step(StepEnd(1, traced=1), table(0)))])

    assert [(message.batch.count, message.batch.last) for message in encoded.batches] == [(0, True)]

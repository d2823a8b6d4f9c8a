import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from megatronapp.core.findings import Cause, Evidence, Finding, Kind, State, Worker

findings = st.builds(
    Finding,
    id=st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=20),
    kind=st.sampled_from(Kind),
    cause=st.sampled_from(Cause),
    ranks=st.lists(st.integers(0, 4095), max_size=8).map(tuple),
    workers=st.lists(st.builds(Worker, dp=st.integers(0, 99), pp=st.integers(0, 99)), max_size=3).map(tuple),
    since_step=st.none() | st.integers(0, 2**40),
    effect_ratio=st.floats(0, 100),
    cost_ratio=st.floats(0, 100) | st.just(math.inf),
    confidence=st.floats(0, 1),
    state=st.sampled_from(State),
    page=st.booleans(),
    evidence=st.lists(
        st.builds(
            Evidence,
            signal=st.just("compute_effect"),
            text=st.just("slow"),
            steps=st.just((1, 2)),
            values=st.tuples(st.floats(0, 9), st.floats(0, 9)),
        ),
        max_size=2,
    ).map(tuple),
    opened_unix_ns=st.integers(0, 2**62),
)


@given(findings)
def test_protobuf_keeps_every_field(finding: Finding) -> None:
    assert Finding.from_proto(finding.to_proto()) == finding


def test_json_has_no_infinity() -> None:
    hang = Finding(id="h", kind=Kind.HANG, cause=Cause.HOST_CPU, cost_ratio=math.inf)

    assert '"cost_ratio":null' in hang.model_dump_json()


@pytest.mark.parametrize("wrong", [{"kind": "slow"}, {"confidence": 2}, {"rank": (1,)}])
def test_a_word_outside_the_vocabulary_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Finding.model_validate({"id": "x", "kind": "hang", "cause": "unknown"} | wrong)
